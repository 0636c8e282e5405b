//! What is done with two elements.

use keyfold_core::Complex;

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
pub(crate) trait Addend: Copy + Send + Sync + 'static {
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
pub(crate) trait Ordered: Copy + Send + Sync + PartialEq + 'static {
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

/// Which of two numbers is kept.
pub(crate) trait Pick: 'static {
    fn worst<T: Ordered>() -> T;
    /// Whether `b` is beyond `a`; false for NaN.
    fn beyond<T: Ordered>(a: T, b: T) -> bool;
}

pub(crate) struct Greatest;
impl Pick for Greatest {
    #[inline(always)]
    fn worst<T: Ordered>() -> T {
        T::LOWEST
    }
    #[inline(always)]
    fn beyond<T: Ordered>(a: T, b: T) -> bool {
        a.less(b)
    }
}

pub(crate) struct Smallest;
impl Pick for Smallest {
    #[inline(always)]
    fn worst<T: Ordered>() -> T {
        T::HIGHEST
    }
    #[inline(always)]
    fn beyond<T: Ordered>(a: T, b: T) -> bool {
        b.less(a)
    }
}

pub(crate) struct Extreme<P, T>(std::marker::PhantomData<(P, T)>);

macro_rules! extreme {
    ($($pick:ty, $identity:ident;)*) => {$(
        impl<T: Ordered> Monoid for Extreme<$pick, T> {
            type Number = T;
            const IDENTITY: T = T::$identity;
            #[inline(always)]
            fn combine(a: T, b: T) -> T {
                // Where `a` is a NaN nothing is beyond it.
                if <$pick>::beyond(a, b) | b.is_nan() { b } else { a }
            }
            const SPECIAL: bool = T::NAN;
            #[inline(always)]
            fn is_special(x: T) -> bool {
                x.is_nan()
            }
            #[inline(always)]
            fn quick(a: T, b: T) -> T {
                if <$pick>::beyond(a, b) { b } else { a }
            }
        }
    )*};
}
extreme! {
    Greatest, LOWEST;
    Smallest, HIGHEST;
}

/// Whether any is not zero, as the greatest: beyond zero it's decided.
pub(crate) struct Any<T>(std::marker::PhantomData<T>);
/// Whether all are not zero, as the smallest: at zero it's decided.
pub(crate) struct All<T>(std::marker::PhantomData<T>);

impl<T: Ordered> Monoid for Any<T> {
    type Number = T;
    const IDENTITY: T = T::LOWEST;
    const DECIDES: bool = true;
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        if a.less(b) { b } else { a }
    }
    #[inline(always)]
    fn is_final(a: T) -> bool {
        a != T::LOWEST
    }
}

impl<T: Ordered> Monoid for All<T> {
    type Number = T;
    const IDENTITY: T = T::HIGHEST;
    const DECIDES: bool = true;
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        if b.less(a) { b } else { a }
    }
    #[inline(always)]
    fn is_final(a: T) -> bool {
        a == T::LOWEST
    }
}
