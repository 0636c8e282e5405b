//! The loops of unary functions.

use keyfold_core::{Complex, DType};
use keyfold_expr::Unary;

use crate::math::complex;

use super::integer::Integer;
use super::kernel::{Kernel, Map1, unary_kernel, unary_scalar_kernel};
use super::streaming_kernels::{self, math_kernel};
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

/// The unary functions of complex numbers.
trait ComplexFunctions: Copy {
    type Part;
    fn negative(self) -> Self;
    fn abs(self) -> Self::Part;
    fn sign(self) -> Self;
    fn conjugate(self) -> Self;
    fn real(self) -> Self::Part;
    fn imag(self) -> Self::Part;
    fn exp(self) -> Self;
    fn log(self) -> Self;
    fn sqrt(self) -> Self;
    fn rsqrt(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tanh(self) -> Self;
    fn is_nan(self) -> bool;
    fn is_finite(self) -> bool;
}

macro_rules! complex {
    ($($float:ident)*) => {$(
        impl ComplexFunctions for Complex<$float> {
            type Part = $float;
            #[inline(always)]
            fn negative(self) -> Self {
                -self
            }
            fn abs(self) -> $float {
                self.norm()
            }
            fn sign(self) -> Self {
                complex::sign(self)
            }
            #[inline(always)]
            fn conjugate(self) -> Self {
                self.conj()
            }
            #[inline(always)]
            fn real(self) -> $float {
                self.re
            }
            #[inline(always)]
            fn imag(self) -> $float {
                self.im
            }
            fn exp(self) -> Self {
                complex::exp(self)
            }
            fn log(self) -> Self {
                complex::log(self)
            }
            fn sqrt(self) -> Self {
                complex::sqrt(self)
            }
            fn rsqrt(self) -> Self {
                complex::quotient(Complex::new(1.0, 0.0), complex::sqrt(self))
            }
            fn sin(self) -> Self {
                complex::sin(self)
            }
            fn cos(self) -> Self {
                complex::cos(self)
            }
            fn tanh(self) -> Self {
                complex::tanh(self)
            }
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            fn is_finite(self) -> bool {
                self.is_finite()
            }
        }
    )*};
}

complex! { f32 f64 }

/// An unsigned integer that stands for a signed or unsigned one of its width.
trait UnsignedBits {
    fn wrapping_negate(self) -> Self;
    fn bit_not(self) -> Self;
}

macro_rules! bits {
    ($($t:ident)*) => {$(
        impl UnsignedBits for $t {
            #[inline(always)]
            fn wrapping_negate(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn bit_not(self) -> Self {
                !self
            }
        }
    )*};
}

bits! { u8 u16 u32 u64 }

functions! {
    IntegerNeg<T: UnsignedBits>(a) -> T = a.wrapping_negate();
    BitNot<T: UnsignedBits>(a) -> T = a.bit_not();
    IntegerAbs<T: Integer>(a) -> T = a.absolute();
    IntegerSign<T: Integer>(a) -> T = a.sign();
    Neg<T: Real>(a) -> T = -a;
    IsNan<T: Real>(a) -> u8 = u8::from(a.is_nan());
    IsFinite<T: Real>(a) -> u8 = u8::from(a.is_finite());
    ComplexNegative<T: ComplexFunctions>(a) -> T = a.negative();
    ComplexAbs<T: ComplexFunctions>(a) -> T::Part = a.abs();
    ComplexSign<T: ComplexFunctions>(a) -> T = a.sign();
    ComplexConj<T: ComplexFunctions>(a) -> T = a.conjugate();
    ComplexReal<T: ComplexFunctions>(a) -> T::Part = a.real();
    ComplexImag<T: ComplexFunctions>(a) -> T::Part = a.imag();
    ComplexExp<T: ComplexFunctions>(a) -> T = a.exp();
    ComplexLog<T: ComplexFunctions>(a) -> T = a.log();
    ComplexSqrt<T: ComplexFunctions>(a) -> T = a.sqrt();
    ComplexRsqrt<T: ComplexFunctions>(a) -> T = a.rsqrt();
    ComplexSin<T: ComplexFunctions>(a) -> T = a.sin();
    ComplexCos<T: ComplexFunctions>(a) -> T = a.cos();
    ComplexTanh<T: ComplexFunctions>(a) -> T = a.tanh();
    ComplexIsNan<T: ComplexFunctions>(a) -> u8 = u8::from(a.is_nan());
    ComplexIsFinite<T: ComplexFunctions>(a) -> u8 = u8::from(a.is_finite());
}

struct LogicalNot;
impl Map1<u8, u8> for LogicalNot {
    #[inline(always)]
    fn apply<I: Isa>(a: u8) -> u8 {
        a ^ 1
    }
}

/// The kernels of integers: `T` has the signedness, `B` is the unsigned type of the same width.
fn integer_kernel<T: Integer + Copy + 'static, B: UnsignedBits + Copy + 'static>(
    op: Unary,
) -> Option<Kernel> {
    match op {
        Unary::Neg => Some(unary_kernel::<_, B, B>(IntegerNeg)),
        Unary::Not => Some(unary_kernel::<_, B, B>(BitNot)),
        Unary::Abs => Some(unary_kernel::<_, T, T>(IntegerAbs)),
        Unary::Sign => Some(unary_kernel::<_, T, T>(IntegerSign)),
        _ => None,
    }
}

fn float_kernel<T: Real>(op: Unary) -> Option<Kernel> {
    Some(match op {
        Unary::Neg => streaming_kernels::unary_kernel::<_, T, _>(Neg),
        Unary::Abs => math_kernel::<math::Abs, T>(),
        Unary::Sign => math_kernel::<math::Sign, T>(),
        Unary::Exp => math_kernel::<math::Exp, T>(),
        Unary::Expm1 => math_kernel::<math::Expm1, T>(),
        Unary::Log => math_kernel::<math::Log, T>(),
        Unary::Log2 => math_kernel::<math::Log2, T>(),
        Unary::Log10 => math_kernel::<math::Log10, T>(),
        Unary::Log1p => math_kernel::<math::Log1p, T>(),
        Unary::Sqrt => math_kernel::<math::Sqrt, T>(),
        Unary::Rsqrt => math_kernel::<math::Rsqrt, T>(),
        Unary::Sin => math_kernel::<math::Sin, T>(),
        Unary::Cos => math_kernel::<math::Cos, T>(),
        Unary::Tanh => math_kernel::<math::Tanh, T>(),
        Unary::Sigmoid => math_kernel::<math::Sigmoid, T>(),
        Unary::Erf => math_kernel::<math::Erf, T>(),
        Unary::Erfc => math_kernel::<math::Erfc, T>(),
        Unary::Floor => math_kernel::<math::Floor, T>(),
        Unary::Ceil => math_kernel::<math::Ceil, T>(),
        Unary::Round => math_kernel::<math::Round, T>(),
        Unary::Trunc => math_kernel::<math::Trunc, T>(),
        Unary::IsNan => unary_kernel::<_, T, _>(IsNan),
        Unary::IsFinite => unary_kernel::<_, T, _>(IsFinite),
        Unary::Not | Unary::Conj | Unary::Real | Unary::Imag => return None,
    })
}

fn complex_kernel<T: ComplexFunctions + Copy + 'static>(op: Unary) -> Option<Kernel> {
    Some(match op {
        Unary::Neg => unary_kernel::<_, T, _>(ComplexNegative),
        Unary::Abs => unary_scalar_kernel::<_, T, _>(ComplexAbs),
        Unary::Sign => unary_scalar_kernel::<_, T, _>(ComplexSign),
        Unary::Conj => unary_kernel::<_, T, _>(ComplexConj),
        Unary::Real => unary_kernel::<_, T, _>(ComplexReal),
        Unary::Imag => unary_kernel::<_, T, _>(ComplexImag),
        Unary::Exp => unary_scalar_kernel::<_, T, _>(ComplexExp),
        Unary::Log => unary_scalar_kernel::<_, T, _>(ComplexLog),
        Unary::Sqrt => unary_scalar_kernel::<_, T, _>(ComplexSqrt),
        Unary::Rsqrt => unary_scalar_kernel::<_, T, _>(ComplexRsqrt),
        Unary::Sin => unary_scalar_kernel::<_, T, _>(ComplexSin),
        Unary::Cos => unary_scalar_kernel::<_, T, _>(ComplexCos),
        Unary::Tanh => unary_scalar_kernel::<_, T, _>(ComplexTanh),
        Unary::IsNan => unary_scalar_kernel::<_, T, _>(ComplexIsNan),
        Unary::IsFinite => unary_scalar_kernel::<_, T, _>(ComplexIsFinite),
        _ => return None,
    })
}

/// Returns the kernel of a unary function for operands of `dtype`; `None` if the function isn't defined
/// for it.
pub(crate) fn unary(op: Unary, dtype: DType) -> Option<Kernel> {
    match dtype {
        DType::Bool => (op == Unary::Not).then(|| unary_kernel::<_, u8, u8>(LogicalNot)),
        DType::U8 => integer_kernel::<u8, u8>(op),
        DType::U16 => integer_kernel::<u16, u16>(op),
        DType::U32 => integer_kernel::<u32, u32>(op),
        DType::U64 => integer_kernel::<u64, u64>(op),
        DType::I8 => integer_kernel::<i8, u8>(op),
        DType::I16 => integer_kernel::<i16, u16>(op),
        DType::I32 => integer_kernel::<i32, u32>(op),
        DType::I64 => integer_kernel::<i64, u64>(op),
        DType::F32 => float_kernel::<f32>(op),
        DType::F64 => float_kernel::<f64>(op),
        DType::C64 => complex_kernel::<Complex<f32>>(op),
        DType::C128 => complex_kernel::<Complex<f64>>(op),
        // Halves are computed as float32.
        DType::F16 | DType::BF16 => None,
    }
}
