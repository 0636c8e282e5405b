//! The floats that softmax is computed in, and the statistics of a lane.

use keyfold_kit::isa::Isa;
use keyfold_kit::math::Real;

use crate::reduce::convert::To;
use crate::reduce::monoid::{Addend, Extreme, Monoid, Ordered};

/// A float type that softmax is computed in.
pub(super) trait Float: Ordered + Addend + To<Self> {
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn reciprocal(self) -> Self;
    fn exp<I: Isa>(self) -> Self;
    fn ln(self) -> Self;
    /// As `ln`, in vector code.
    fn log<I: Isa>(self) -> Self;
    const ONE: Self;
}

macro_rules! float {
    ($($type:ty),*) => {$(
        impl Float for $type {
            const ONE: Self = 1.0;
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn reciprocal(self) -> Self {
                1.0 / self
            }
            #[inline(always)]
            fn exp<I: Isa>(self) -> Self {
                Real::exp::<I>(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                <$type>::ln(self)
            }
            #[inline(always)]
            fn log<I: Isa>(self) -> Self {
                Real::log::<I>(self)
            }
        }
    )*};
}
float!(f32, f64);

/// The maximum of a lane, and the sum of the exponentials of the differences from it.
#[derive(Clone, Copy)]
pub(super) struct MaxAndSum<A> {
    pub(super) greatest: A,
    pub(super) sum: A,
}

impl<A: Float> MaxAndSum<A> {
    pub(super) const NONE: Self = MaxAndSum { greatest: A::LOWEST, sum: A::ZERO };

    /// Joins the statistics of two parts.
    #[inline(always)]
    pub(super) fn join<I: Isa>(self, other: Self) -> Self {
        let greatest = Extreme::<A, false>::combine(self.greatest, other.greatest);
        let part = |s: Self| {
            // If all elements are negative infinity the sum is 0, and the difference from the maximum
            // would be NaN.
            let scaled = s.sum.times(s.greatest.minus(greatest).exp::<I>());
            if s.sum == A::ZERO { A::ZERO } else { scaled }
        };
        MaxAndSum { greatest, sum: part(self).plus(part(other)) }
    }

    /// The normalizer: the factor of the exponentials, or for the logarithm the subtrahend of the
    /// differences.
    #[inline(always)]
    pub(super) fn normalizer(self, log: bool) -> A {
        if log { self.sum.ln() } else { self.sum.reciprocal() }
    }
}
