//! The operations of reductions, as monoids.

use keyfold_core::Complex;

use super::convert::To;

/// An operation that combines two numbers, associative and commutative up to rounding.
pub(crate) trait Monoid: 'static {
    type Number: Copy + Send + Sync + 'static;
    /// The reduction identity: combining it with a number returns the number.
    const IDENTITY: Self::Number;
    fn combine(a: Self::Number, b: Self::Number) -> Self::Number;
    /// Whether there are numbers for which [`Monoid::combine_ordinary`] differs from [`Monoid::combine`].
    const HAS_SPECIAL: bool = false;
    /// Whether the number is such a number.
    #[inline(always)]
    fn is_special(_: Self::Number) -> bool {
        false
    }
    /// As [`Monoid::combine`], in fewer instructions; neither number may be special.
    #[inline(always)]
    fn combine_ordinary(a: Self::Number, b: Self::Number) -> Self::Number {
        Self::combine(a, b)
    }
    /// The same operation without absorbing elements, by which monoids share the loops that don't look for them.
    type Plain: Monoid<Number = Self::Number>;
    /// Whether the monoid has absorbing elements: [`Monoid::is_absorbing`].
    const HAS_ABSORBING: bool = false;
    /// Whether the number is absorbing: combining it with any other returns it.
    #[inline(always)]
    fn is_absorbing(_: Self::Number) -> bool {
        false
    }
}

/// Numbers that can be added and, for means, divided.
pub(crate) trait Addend: To<Self> + Copy + Send + Sync + 'static {
    /// The identity of addition: for floats -0.0, since adding 0.0 to -0.0 would change it.
    const NEUTRAL: Self;
    const ZERO: Self;
    /// The sum; integers wrap.
    fn plus(self, other: Self) -> Self;
    fn divide(all: &mut [Self], by: f64);
}

macro_rules! whole_addend {
    ($($type:ty),*) => {$(
        impl Addend for $type {
            const NEUTRAL: Self = 0;
            const ZERO: Self = 0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn divide(_: &mut [Self], _: f64) {}
        }
    )*};
}
whole_addend!(i32, u32, i64, u64);

macro_rules! float_addend {
    ($($type:ty),*) => {$(
        impl Addend for $type {
            const NEUTRAL: Self = -0.0;
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn divide(all: &mut [Self], by: f64) {
                all.iter_mut().for_each(|x| *x /= by as $type);
            }
        }
        impl Addend for Complex<$type> {
            const NEUTRAL: Self = Complex::new(-0.0, -0.0);
            const ZERO: Self = Complex::new(0.0, 0.0);
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                Complex::new(self.re + other.re, self.im + other.im)
            }
            fn divide(all: &mut [Self], by: f64) {
                all.iter_mut().for_each(|x| *x /= by as $type);
            }
        }
    )*};
}
float_addend!(f32, f64);

pub(crate) struct Sum<T>(std::marker::PhantomData<T>);
impl<T: Addend> Monoid for Sum<T> {
    type Number = T;
    type Plain = Self;
    const IDENTITY: T = T::NEUTRAL;
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        a.plus(b)
    }
}

/// Numbers with an order; NaN counts as both the greatest and the smallest, as in NumPy.
pub(crate) trait Ordered: To<Self> + Copy + Send + Sync + PartialEq + 'static {
    const LOWEST: Self;
    const HIGHEST: Self;
    /// Whether the type has NaN.
    const NAN: bool;
    fn is_nan(self) -> bool;
    fn less(self, other: Self) -> bool;
}

macro_rules! ordered {
    ($($type:ty, $low:expr, $high:expr, $x:ident => $nan:expr;)*) => {$(
        impl Ordered for $type {
            const LOWEST: Self = $low;
            const HIGHEST: Self = $high;
            const NAN: bool = $low != <$type>::MIN;
            #[inline(always)]
            fn is_nan(self) -> bool {
                let $x = self;
                $nan
            }
            #[inline(always)]
            fn less(self, other: Self) -> bool {
                self < other
            }
        }
    )*};
}
ordered! {
    u8, 0, u8::MAX, _x => false;
    u16, 0, u16::MAX, _x => false;
    u32, 0, u32::MAX, _x => false;
    u64, 0, u64::MAX, _x => false;
    i8, i8::MIN, i8::MAX, _x => false;
    i16, i16::MIN, i16::MAX, _x => false;
    i32, i32::MIN, i32::MAX, _x => false;
    i64, i64::MIN, i64::MAX, _x => false;
    f32, f32::NEG_INFINITY, f32::INFINITY, x => x.is_nan();
    f64, f64::NEG_INFINITY, f64::INFINITY, x => x.is_nan();
}

/// Whether `b` is beyond `a`: less for the minimum, greater for the maximum; false for NaN.
#[inline(always)]
pub(crate) fn beyond<T: Ordered, const MIN: bool>(a: T, b: T) -> bool {
    if MIN { b.less(a) } else { a.less(b) }
}

/// The minimum, or the maximum.
pub(crate) struct Extreme<T, const MIN: bool>(std::marker::PhantomData<T>);

impl<T: Ordered, const MIN: bool> Monoid for Extreme<T, MIN> {
    type Number = T;
    type Plain = Self;
    const IDENTITY: T = if MIN { T::HIGHEST } else { T::LOWEST };
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        // If `a` is NaN nothing is beyond it.
        if beyond::<T, MIN>(a, b) | b.is_nan() { b } else { a }
    }
    const HAS_SPECIAL: bool = T::NAN;
    #[inline(always)]
    fn is_special(x: T) -> bool {
        x.is_nan()
    }
    #[inline(always)]
    fn combine_ordinary(a: T, b: T) -> T {
        if beyond::<T, MIN>(a, b) { b } else { a }
    }
}

/// Whether all numbers are nonzero, computed as the minimum, for which 0 is absorbing; or whether any
/// is, computed as the maximum, for which every number above 0 is absorbing.
pub(crate) struct AllOrAny<T, const ALL: bool>(std::marker::PhantomData<T>);

impl<T: Ordered, const ALL: bool> Monoid for AllOrAny<T, ALL> {
    type Number = T;
    type Plain = Extreme<T, ALL>;
    const IDENTITY: T = if ALL { T::HIGHEST } else { T::LOWEST };
    const HAS_ABSORBING: bool = true;
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        Self::Plain::combine(a, b)
    }
    #[inline(always)]
    fn is_absorbing(a: T) -> bool {
        (a == T::LOWEST) == ALL
    }
}
