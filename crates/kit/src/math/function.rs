//! The elementary functions as types, so that loops can be generic over them.

use crate::isa::Isa;
use crate::math::Real;

/// A unary function.
pub trait Function: 'static {
    /// Returns the value, right for every argument.
    fn apply<T: Real, I: Isa>(x: T) -> T;

    /// Returns the value by vector code, right if [`Function::is_in_range`].
    #[inline(always)]
    fn apply_in_range<T: Real, I: Isa>(x: T) -> T {
        Self::apply::<T, I>(x)
    }

    /// Whether [`Function::apply_in_range`] is right.
    #[inline(always)]
    fn is_in_range<T: Real>(_: T) -> bool {
        true
    }

    /// Computes a slice if there is faster code than a loop, and returns whether it did. A result
    /// doesn't depend on its position in the slice.
    #[inline(always)]
    fn apply_all<T: Real, I: Isa>(_: &[T], _: &mut [T]) -> bool {
        false
    }

    /// As [`Function::apply_all`], for a [`Scaling`] of the function.
    #[inline(always)]
    fn apply_scaled<T: Real, I: Isa>(_: &[T], _: &[T], _: Scaling<T>, _: &mut [T]) -> bool {
        false
    }
}

/// The arithmetic around a function `f` in a fused kernel:
/// `(f(x * argument_scale) + value_offset) * (max(y, factor_min) * factor_scale)`.
#[derive(Clone, Copy, Debug)]
pub struct Scaling<T> {
    /// The multiplier of the argument.
    pub argument_scale: T,
    /// The addend of the value.
    pub value_offset: T,
    /// The lower bound of the factor; -inf for none.
    pub factor_min: T,
    /// The multiplier of the factor.
    pub factor_scale: T,
}

/// A binary function.
pub trait Function2: 'static {
    /// Returns the value.
    fn apply<T: Real, I: Isa>(x: T, y: T) -> T;
}

macro_rules! functions {
    // A type per function, since a generic method can't be named as a value.
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
    fn apply_in_range<T: Real, I: Isa>(x: T) -> T {
        x.sin_in_range::<I>()
    }

    #[inline(always)]
    fn is_in_range<T: Real>(x: T) -> bool {
        is_in_range(x)
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
    fn apply_in_range<T: Real, I: Isa>(x: T) -> T {
        x.cos_in_range::<I>()
    }

    #[inline(always)]
    fn is_in_range<T: Real>(x: T) -> bool {
        is_in_range(x)
    }
}

/// NaN counts as in range: its result is NaN.
#[inline(always)]
fn is_in_range<T: Real>(x: T) -> bool {
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
    fn apply_scaled<T: Real, I: Isa>(x: &[T], y: &[T], scaling: Scaling<T>, out: &mut [T]) -> bool {
        T::scaled::<Erf, I>(x, y, scaling, out)
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
    fn apply_scaled<T: Real, I: Isa>(x: &[T], y: &[T], scaling: Scaling<T>, out: &mut [T]) -> bool {
        T::scaled::<Erfc, I>(x, y, scaling, out)
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
    fn apply_scaled<T: Real, I: Isa>(x: &[T], y: &[T], scaling: Scaling<T>, out: &mut [T]) -> bool {
        T::scaled::<Exp, I>(x, y, scaling, out)
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
    fn apply_scaled<T: Real, I: Isa>(x: &[T], y: &[T], scaling: Scaling<T>, out: &mut [T]) -> bool {
        T::scaled::<Sigmoid, I>(x, y, scaling, out)
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
