//! The functions as types, so that a loop can be generic over which function it applies.

use crate::isa::Isa;
use crate::math::Real;

/// A function of one number.
pub trait Function: 'static {
    /// Its value, right for every argument.
    fn apply<T: Real, I: Isa>(x: T) -> T;

    /// Its value in a loop of vector code: right wherever [`Function::is_near`].
    #[inline(always)]
    fn apply_near<T: Real, I: Isa>(x: T) -> T {
        Self::apply::<T, I>(x)
    }

    /// Whether [`Function::apply_near`] is right.
    #[inline(always)]
    fn is_near<T: Real>(_: T) -> bool {
        true
    }

    /// Its values, if there is a faster way for many; returns whether it is done. What it gives doesn't
    /// depend on an element's place.
    #[inline(always)]
    fn apply_all<T: Real, I: Isa>(_: &[T], _: &mut [T]) -> bool {
        false
    }

    /// Likewise with something around it.
    #[inline(always)]
    fn apply_around<T: Real, I: Isa>(_: &[T], _: &[T], _: Around<T>, _: &mut [T]) -> bool {
        false
    }
}

/// The computation around a function `f` in a fused kernel: `(f(x * before) + behind) * (max(y, least) * times)`.
#[derive(Clone, Copy, Debug)]
pub struct Around<T> {
    /// What the argument is multiplied with.
    pub before: T,
    /// What is added to the value.
    pub behind: T,
    /// What the factor is at least; -inf leaves all as they are.
    pub least: T,
    /// What the factor is multiplied with.
    pub times: T,
}

/// A function of two numbers.
pub trait Function2: 'static {
    /// Its value.
    fn apply<T: Real, I: Isa>(x: T, y: T) -> T;
}

macro_rules! functions {
    // A type per function: there is no way to name a generic method as one.
    ($($(#[$doc:meta])* $name:ident: |$x:ident, $level:ident| $value:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Function for $name {
            #[inline(always)]
            fn apply<T: Real, $level: Isa>($x: T) -> T {
                $value
            }
        }
    )*};
}

functions! {
    /// [`Real::exp2`]
    Exp2: |x, I| x.exp2::<I>();
    /// [`Real::expm1`]
    Expm1: |x, I| x.expm1::<I>();
    /// [`Real::log`]
    Log: |x, I| x.log::<I>();
    /// [`Real::log2`]
    Log2: |x, I| x.log2::<I>();
    /// [`Real::log10`]
    Log10: |x, I| x.log10::<I>();
    /// [`Real::log1p`]
    Log1p: |x, I| x.log1p::<I>();
    /// [`Real::sqrt`]
    Sqrt: |x, I| x.sqrt();
    /// [`Real::rsqrt`]
    Rsqrt: |x, I| x.rsqrt();
    /// [`Real::tanh`]
    Tanh: |x, I| x.tanh::<I>();
    /// [`Real::floor`]
    Floor: |x, I| x.floor::<I>();
    /// [`Real::ceil`]
    Ceil: |x, I| x.ceil::<I>();
    /// [`Real::round`]
    Round: |x, I| x.round::<I>();
    /// [`Real::trunc`]
    Trunc: |x, I| x.trunc::<I>();
    /// [`Real::abs`]
    Abs: |x, I| x.abs();
    /// [`Real::sign`]
    Sign: |x, I| x.sign();
}

/// [`Real::sin`]
#[derive(Clone, Copy, Debug)]
pub struct Sin;

impl Function for Sin {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T) -> T {
        x.sin::<I>()
    }

    #[inline(always)]
    fn apply_near<T: Real, I: Isa>(x: T) -> T {
        x.sin_near::<I>()
    }

    #[inline(always)]
    fn is_near<T: Real>(x: T) -> bool {
        is_near(x)
    }
}

/// [`Real::cos`]
#[derive(Clone, Copy, Debug)]
pub struct Cos;

impl Function for Cos {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T) -> T {
        x.cos::<I>()
    }

    #[inline(always)]
    fn apply_near<T: Real, I: Isa>(x: T) -> T {
        x.cos_near::<I>()
    }

    #[inline(always)]
    fn is_near<T: Real>(x: T) -> bool {
        is_near(x)
    }
}

/// NaN is near: it gives NaN.
#[inline(always)]
fn is_near<T: Real>(x: T) -> bool {
    let far = x.abs() > T::SIN_LIMIT;
    !far
}

/// [`Real::erf`]
#[derive(Clone, Copy, Debug)]
pub struct Erf;

impl Function for Erf {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T) -> T {
        x.erf::<I>()
    }

    #[inline(always)]
    fn apply_all<T: Real, I: Isa>(x: &[T], out: &mut [T]) -> bool {
        T::all::<Erf, I>(x, out)
    }

    #[inline(always)]
    fn apply_around<T: Real, I: Isa>(x: &[T], y: &[T], around: Around<T>, out: &mut [T]) -> bool {
        T::around::<Erf, I>(x, y, around, out)
    }
}

/// [`Real::erfc`]
#[derive(Clone, Copy, Debug)]
pub struct Erfc;

impl Function for Erfc {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T) -> T {
        x.erfc::<I>()
    }

    #[inline(always)]
    fn apply_all<T: Real, I: Isa>(x: &[T], out: &mut [T]) -> bool {
        T::all::<Erfc, I>(x, out)
    }

    #[inline(always)]
    fn apply_around<T: Real, I: Isa>(x: &[T], y: &[T], around: Around<T>, out: &mut [T]) -> bool {
        T::around::<Erfc, I>(x, y, around, out)
    }
}

/// [`Real::exp`]
#[derive(Clone, Copy, Debug)]
pub struct Exp;

impl Function for Exp {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T) -> T {
        x.exp::<I>()
    }

    #[inline(always)]
    fn apply_all<T: Real, I: Isa>(x: &[T], out: &mut [T]) -> bool {
        T::all::<Exp, I>(x, out)
    }

    #[inline(always)]
    fn apply_around<T: Real, I: Isa>(x: &[T], y: &[T], around: Around<T>, out: &mut [T]) -> bool {
        T::around::<Exp, I>(x, y, around, out)
    }
}

/// [`Real::sigmoid`]
#[derive(Clone, Copy, Debug)]
pub struct Sigmoid;

impl Function for Sigmoid {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T) -> T {
        x.sigmoid::<I>()
    }

    #[inline(always)]
    fn apply_all<T: Real, I: Isa>(x: &[T], out: &mut [T]) -> bool {
        T::all::<Sigmoid, I>(x, out)
    }

    #[inline(always)]
    fn apply_around<T: Real, I: Isa>(x: &[T], y: &[T], around: Around<T>, out: &mut [T]) -> bool {
        T::around::<Sigmoid, I>(x, y, around, out)
    }
}

/// [`Real::pow`]
#[derive(Clone, Copy, Debug)]
pub struct Pow;

impl Function2 for Pow {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T, y: T) -> T {
        x.pow::<I>(y)
    }
}

/// [`Real::min`]
#[derive(Clone, Copy, Debug)]
pub struct Min;

impl Function2 for Min {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T, y: T) -> T {
        x.min(y)
    }
}

/// [`Real::max`]
#[derive(Clone, Copy, Debug)]
pub struct Max;

impl Function2 for Max {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T, y: T) -> T {
        x.max(y)
    }
}
