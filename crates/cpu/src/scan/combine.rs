//! The operations of scans.

use std::marker::PhantomData;

use keyfold_core::Complex;

use crate::reduce::monoid::Addend;

/// An operation that combines the result up to an element with the next element.
pub(super) trait Combine: 'static {
    type Number: Copy + Send + Sync + 'static;
    /// Whether a long lane may be divided into blocks whose results are combined: not for products of floats,
    /// since a block's product may overflow where those of the whole lane don't.
    const IN_BLOCKS: bool;
    fn combine(a: Self::Number, b: Self::Number) -> Self::Number;
}

pub(super) struct Sums<A>(PhantomData<A>);

impl<A: Addend> Combine for Sums<A> {
    type Number = A;
    const IN_BLOCKS: bool = true;
    #[inline(always)]
    fn combine(a: A, b: A) -> A {
        a.plus(b)
    }
}

/// Numbers that can be multiplied.
pub(super) trait Factor: Copy + Send + Sync + 'static {
    /// Whether products wrap, so that their order doesn't matter.
    const WRAPS: bool;
    fn times(self, other: Self) -> Self;
}

macro_rules! factor {
    // A macro, since no trait of the standard library covers both wrapping and plain products.
    ($($type:ty, $wraps:expr, $times:expr;)*) => {$(
        impl Factor for $type {
            const WRAPS: bool = $wraps;
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                $times(self, other)
            }
        }
    )*};
}

factor! {
    i64, true, i64::wrapping_mul;
    u64, true, u64::wrapping_mul;
    f32, false, std::ops::Mul::mul;
    f64, false, std::ops::Mul::mul;
    Complex<f32>, false, std::ops::Mul::mul;
    Complex<f64>, false, std::ops::Mul::mul;
}

pub(super) struct Products<A>(PhantomData<A>);

impl<A: Factor> Combine for Products<A> {
    type Number = A;
    const IN_BLOCKS: bool = A::WRAPS;
    #[inline(always)]
    fn combine(a: A, b: A) -> A {
        a.times(b)
    }
}
