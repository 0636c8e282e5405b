//! What is done with two elements.

use keyfold_core::Complex;

use super::convert::To;

/// A way to combine two numbers into one, in any order up to rounding.
pub(crate) trait Monoid: 'static {
    type Number: Copy + Send + Sync + 'static;
    /// Combined with a number it changes nothing.
    const IDENTITY: Self::Number;
    fn combine(a: Self::Number, b: Self::Number) -> Self::Number;
    /// Whether there are numbers for which [`Monoid::quick`] isn't [`Monoid::combine`].
    const SPECIAL: bool = false;
    /// Whether it's such a number.
    #[inline(always)]
    fn is_special(_: Self::Number) -> bool {
        false
    }
    /// The same in fewer instructions, where neither is special.
    #[inline(always)]
    fn quick(a: Self::Number, b: Self::Number) -> Self::Number {
        Self::combine(a, b)
    }
    /// Whether there are numbers that nothing still to come can change: [`Monoid::is_final`].
    const DECIDES: bool = false;
    /// Whether nothing that is still to come can change it.
    #[inline(always)]
    fn is_final(_: Self::Number) -> bool {
        false
    }
}

/// Numbers that can be added and, for means, divided.
pub(crate) trait Addend: To<Self> + Copy + Send + Sync + 'static {
    /// What added to a number changes nothing: for floats -0.0, since 0.0 would change that.
    const NEUTRAL: Self;
    const ZERO: Self;
    /// Whole numbers wrap around.
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
    const IDENTITY: T = T::NEUTRAL;
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        a.plus(b)
    }
}

/// Numbers with an order; a NaN is both the greatest and the smallest, as in NumPy.
pub(crate) trait Ordered: To<Self> + Copy + Send + Sync + PartialEq + 'static {
    const LOWEST: Self;
    const HIGHEST: Self;
    /// Whether there are any that aren't numbers.
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

/// Whether `b` is beyond `a`: less for the smallest, greater for the greatest; false for NaN.
#[inline(always)]
pub(crate) fn beyond<T: Ordered, const MIN: bool>(a: T, b: T) -> bool {
    if MIN { b.less(a) } else { a.less(b) }
}

/// The smallest number, or the greatest.
pub(crate) struct Extreme<T, const MIN: bool>(std::marker::PhantomData<T>);

impl<T: Ordered, const MIN: bool> Monoid for Extreme<T, MIN> {
    type Number = T;
    const IDENTITY: T = if MIN { T::HIGHEST } else { T::LOWEST };
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        // Where `a` is a NaN nothing is beyond it.
        if beyond::<T, MIN>(a, b) | b.is_nan() { b } else { a }
    }
    const SPECIAL: bool = T::NAN;
    #[inline(always)]
    fn is_special(x: T) -> bool {
        x.is_nan()
    }
    #[inline(always)]
    fn quick(a: T, b: T) -> T {
        if beyond::<T, MIN>(a, b) { b } else { a }
    }
}

/// Whether all numbers are not zero, as the smallest: at zero it's decided. Or whether any is, as the
/// greatest: beyond zero it's decided.
pub(crate) struct Decision<T, const ALL: bool>(std::marker::PhantomData<T>);

impl<T: Ordered, const ALL: bool> Monoid for Decision<T, ALL> {
    type Number = T;
    const IDENTITY: T = if ALL { T::HIGHEST } else { T::LOWEST };
    const DECIDES: bool = true;
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        if beyond::<T, ALL>(a, b) { b } else { a }
    }
    #[inline(always)]
    fn is_final(a: T) -> bool {
        (a == T::LOWEST) == ALL
    }
}
