//! The loops of functions of one number, and of conversions.

use keyfold_core::{Complex, DType};

use crate::math::complex;

use super::chunks::{self, function};
use super::kernel::{Kernel, Map1, one, one_plain};
use super::number::Whole;
use crate::graph::Unary;
use crate::isa::Isa;
use crate::math::{Real, function as math};

macro_rules! functions {
    // A macro, since closures can't be compiled per level.
    ($($name:ident<$t:ident: $bound:path>($a:ident) -> $r:ty = $value:expr;)*) => {$(
        struct $name;
        impl<$t: Copy + 'static + $bound> Map1<$t, $r> for $name {
            #[inline(always)]
            fn apply<I: Isa>($a: $t) -> $r {
                $value
            }
        }
    )*};
}

/// The functions of complex numbers.
trait ComplexFunctions {
    type Part;
    fn negative(self) -> Self;
    fn length(self) -> Self::Part;
    fn exponential(self) -> Self;
    fn logarithm(self) -> Self;
    fn root(self) -> Self;
    fn inverse_root(self) -> Self;
    fn sine(self) -> Self;
    fn cosine(self) -> Self;
    fn tangent(self) -> Self;
    fn no_number(self) -> bool;
    fn finite(self) -> bool;
}

macro_rules! complex {
    ($($float:ident)*) => {$(
        impl ComplexFunctions for Complex<$float> {
            type Part = $float;
            #[inline(always)]
            fn negative(self) -> Self {
                -self
            }
            fn length(self) -> $float {
                self.norm()
            }
            fn exponential(self) -> Self {
                complex::exp(self)
            }
            fn logarithm(self) -> Self {
                complex::log(self)
            }
            fn root(self) -> Self {
                complex::sqrt(self)
            }
            fn inverse_root(self) -> Self {
                complex::quotient(Complex::new(1.0, 0.0), complex::sqrt(self))
            }
            fn sine(self) -> Self {
                complex::sin(self)
            }
            fn cosine(self) -> Self {
                complex::cos(self)
            }
            fn tangent(self) -> Self {
                complex::tanh(self)
            }
            fn no_number(self) -> bool {
                self.is_nan()
            }
            fn finite(self) -> bool {
                self.is_finite()
            }
        }
    )*};
}

complex! { f32 f64 }

/// A whole number whose sign doesn't matter.
trait Bits {
    fn negated(self) -> Self;
    fn turned(self) -> Self;
}

macro_rules! bits {
    ($($t:ident)*) => {$(
        impl Bits for $t {
            #[inline(always)]
            fn negated(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn turned(self) -> Self {
                !self
            }
        }
    )*};
}

bits! { u8 u16 u32 u64 }

functions! {
    Negated<T: Bits>(a) -> T = a.negated();
    Turned<T: Bits>(a) -> T = a.turned();
    Absolute<T: Whole>(a) -> T = a.absolute();
    WholeSign<T: Whole>(a) -> T = a.sign();
    Negative<T: Real>(a) -> T = -a;
    NoNumber<T: Real>(a) -> u8 = u8::from(a.is_nan());
    Finite<T: Real>(a) -> u8 = u8::from(a.is_finite());
    ComplexNegative<T: ComplexFunctions>(a) -> T = a.negative();
    ComplexLength<T: ComplexFunctions>(a) -> T::Part = a.length();
    ComplexExp<T: ComplexFunctions>(a) -> T = a.exponential();
    ComplexLog<T: ComplexFunctions>(a) -> T = a.logarithm();
    ComplexSqrt<T: ComplexFunctions>(a) -> T = a.root();
    ComplexRsqrt<T: ComplexFunctions>(a) -> T = a.inverse_root();
    ComplexSin<T: ComplexFunctions>(a) -> T = a.sine();
    ComplexCos<T: ComplexFunctions>(a) -> T = a.cosine();
    ComplexTanh<T: ComplexFunctions>(a) -> T = a.tangent();
    ComplexNoNumber<T: ComplexFunctions>(a) -> u8 = u8::from(a.no_number());
    ComplexFinite<T: ComplexFunctions>(a) -> u8 = u8::from(a.finite());
}

struct Opposite;
impl Map1<u8, u8> for Opposite {
    #[inline(always)]
    fn apply<I: Isa>(a: u8) -> u8 {
        a ^ 1
    }
}

fn for_bits<F>(size: usize, f: F) -> Kernel
where
    F: Map1<u8, u8> + Map1<u16, u16> + Map1<u32, u32> + Map1<u64, u64>,
{
    match size {
        1 => one::<_, u8, u8>(f),
        2 => one::<_, u16, u16>(f),
        4 => one::<_, u32, u32>(f),
        _ => one::<_, u64, u64>(f),
    }
}

fn for_whole(op: Unary, dtype: DType) -> Kernel {
    macro_rules! by_dtype {
        ($f:expr) => {
            match dtype {
                DType::U8 | DType::Bool => one::<_, u8, u8>($f),
                DType::U16 => one::<_, u16, u16>($f),
                DType::U32 => one::<_, u32, u32>($f),
                DType::U64 => one::<_, u64, u64>($f),
                DType::I8 => one::<_, i8, i8>($f),
                DType::I16 => one::<_, i16, i16>($f),
                DType::I32 => one::<_, i32, i32>($f),
                _ => one::<_, i64, i64>($f),
            }
        };
    }
    match op {
        Unary::Neg => for_bits(dtype.size(), Negated),
        Unary::Not if dtype == DType::Bool => one(Opposite),
        Unary::Not => for_bits(dtype.size(), Turned),
        Unary::Abs => by_dtype!(Absolute),
        _ => by_dtype!(WholeSign),
    }
}

fn for_float<T: Real>(op: Unary) -> Kernel {
    match op {
        Unary::Neg => chunks::one::<_, T, _>(Negative),
        Unary::Abs => function::<math::Abs, T>(),
        Unary::Sign => function::<math::Sign, T>(),
        Unary::Exp => function::<math::Exp, T>(),
        Unary::Expm1 => function::<math::Expm1, T>(),
        Unary::Log => function::<math::Log, T>(),
        Unary::Log2 => function::<math::Log2, T>(),
        Unary::Log10 => function::<math::Log10, T>(),
        Unary::Log1p => function::<math::Log1p, T>(),
        Unary::Sqrt => function::<math::Sqrt, T>(),
        Unary::Rsqrt => function::<math::Rsqrt, T>(),
        Unary::Sin => function::<math::Sin, T>(),
        Unary::Cos => function::<math::Cos, T>(),
        Unary::Tanh => function::<math::Tanh, T>(),
        Unary::Sigmoid => function::<math::Sigmoid, T>(),
        Unary::Erf => function::<math::Erf, T>(),
        Unary::Erfc => function::<math::Erfc, T>(),
        Unary::Floor => function::<math::Floor, T>(),
        Unary::Ceil => function::<math::Ceil, T>(),
        Unary::Round => function::<math::Round, T>(),
        Unary::Trunc => function::<math::Trunc, T>(),
        Unary::IsNan => one::<_, T, _>(NoNumber),
        // "~" isn't defined for floats.
        Unary::IsFinite | Unary::Not => one::<_, T, _>(Finite),
    }
}

fn for_complex<T: ComplexFunctions + Copy + 'static>(op: Unary) -> Kernel {
    match op {
        Unary::Neg => one::<_, T, _>(ComplexNegative),
        Unary::Abs => one_plain::<_, T, _>(ComplexLength),
        Unary::Exp => one_plain::<_, T, _>(ComplexExp),
        Unary::Log => one_plain::<_, T, _>(ComplexLog),
        Unary::Sqrt => one_plain::<_, T, _>(ComplexSqrt),
        Unary::Rsqrt => one_plain::<_, T, _>(ComplexRsqrt),
        Unary::Sin => one_plain::<_, T, _>(ComplexSin),
        Unary::Cos => one_plain::<_, T, _>(ComplexCos),
        Unary::Tanh => one_plain::<_, T, _>(ComplexTanh),
        Unary::IsNan => one_plain::<_, T, _>(ComplexNoNumber),
        // The others aren't defined for complex numbers.
        _ => one_plain::<_, T, _>(ComplexFinite),
    }
}

/// The kernel of a function of one number of this dtype, for which it is defined.
pub(crate) fn unary(op: Unary, dtype: DType) -> Kernel {
    match dtype {
        DType::F32 => for_float::<f32>(op),
        DType::F64 => for_float::<f64>(op),
        DType::C64 => for_complex::<Complex<f32>>(op),
        DType::C128 => for_complex::<Complex<f64>>(op),
        _ => for_whole(op, dtype),
    }
}
