//! The loops of binary functions.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Sub};

use keyfold_core::{Complex, DType};
use keyfold_expr::Binary;

use crate::math::complex::quotient;
use crate::math::complex_power::power;

use super::floor_division::{self, FloatDivision};
use super::integer::Integer;
use super::kernel::{Kernel, Map2, Run, binary_kernel, binary_scalar_kernel};
use super::streaming_kernels;
use crate::isa::Isa;
use crate::math::Real;

macro_rules! functions {
    // A macro, since closures can't be compiled per level.
    ($($name:ident<$t:ident: $bound:path>($a:ident, $b:ident) -> $r:ty = $value:expr;)*) => {$(
        struct $name;
        impl<$t: Copy + 'static + $bound> Map2<$t, $r> for $name {
            #[inline(always)]
            fn apply<I: Isa>($a: $t, $b: $t) -> $r {
                $value
            }
        }
    )*};
}

/// Sums, differences and products; those of integers wrap.
pub(super) trait Arithmetic {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
}

macro_rules! arithmetic {
    (wrapping: $($t:ident)*) => {$(
        impl Arithmetic for $t {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
    )*};
    (plain: $($t:ty)*) => {$(
        impl Arithmetic for $t {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.add(other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.sub(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.mul(other)
            }
        }
    )*};
}

arithmetic! { wrapping: u8 u16 u32 u64 }
arithmetic! { plain: f32 f64 Complex<f32> Complex<f64> }

functions! {
    Plus<T: Arithmetic>(a, b) -> T = a.plus(b);
    Minus<T: Arithmetic>(a, b) -> T = a.minus(b);
    Times<T: Arithmetic>(a, b) -> T = a.times(b);
    TrueDiv<T: Div<Output = T>>(a, b) -> T = a.div(b);
    IntegerFloorDiv<T: Integer>(a, b) -> T = a.floor_div(b);
    IntegerMod<T: Integer>(a, b) -> T = a.modulo(b);
    ShiftLeft<T: Integer>(a, b) -> T = a.shift_left(b);
    ShiftRight<T: Integer>(a, b) -> T = a.shift_right(b);
    Power<T: Real>(a, b) -> T = a.pow::<I>(b);
    ComplexPower<T: ComplexPow>(a, b) -> T = a.complex_pow(b);
    ComplexDiv<T: ComplexPow>(a, b) -> T = a.complex_div(b);
    // If either operand is NaN, the result is NaN.
    Minimum<T: PartialOrd>(a, b) -> T = if a < b || is_nan(a) { a } else { b };
    Maximum<T: PartialOrd>(a, b) -> T = if a > b || is_nan(a) { a } else { b };
    Equal<T: PartialEq>(a, b) -> u8 = u8::from(a == b);
    NotEqual<T: PartialEq>(a, b) -> u8 = u8::from(a != b);
    Less<T: PartialOrd>(a, b) -> u8 = u8::from(a < b);
    LessEqual<T: PartialOrd>(a, b) -> u8 = u8::from(a <= b);
    And<T: BitAnd<Output = T>>(a, b) -> T = a.bitand(b);
    Or<T: BitOr<Output = T>>(a, b) -> T = a.bitor(b);
    Xor<T: BitXor<Output = T>>(a, b) -> T = a.bitxor(b);
}

#[inline(always)]
#[expect(clippy::eq_op, reason = "that is what tells NaN from all others")]
fn is_nan<T: PartialOrd + Copy>(a: T) -> bool {
    a != a
}

/// # Safety
/// As [`Run`](super::kernel::Run).
unsafe fn run_integer_powers<T: Integer>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    _: *const u8,
    len: usize,
) -> bool {
    let (dst, a, b) = (dst.cast::<T>(), a.cast::<T>(), b.cast::<T>());
    let mut fault = false;
    for i in 0..len {
        // SAFETY: the caller's promise.
        unsafe {
            let (power, negative) = (*a.add(i)).power(*b.add(i));
            *dst.add(i) = power;
            fault |= negative;
        }
    }
    fault
}

/// The kernels of integers: `T` has the signedness, `B` is the unsigned type of the same width.
fn integer_kernel<T, B>(op: Binary) -> Option<Kernel>
where
    T: Integer + PartialOrd + Copy + 'static,
    B: Arithmetic + Integer + PartialEq + Copy + 'static,
    B: BitAnd<Output = B> + BitOr<Output = B> + BitXor<Output = B>,
{
    Some(match op {
        Binary::Add => binary_kernel::<_, B, _>(Plus),
        Binary::Sub => binary_kernel::<_, B, _>(Minus),
        Binary::Mul => binary_kernel::<_, B, _>(Times),
        // Processors have no vector instruction for integer division.
        Binary::FloorDiv => binary_scalar_kernel::<_, T, _>(IntegerFloorDiv),
        Binary::Mod => binary_scalar_kernel::<_, T, _>(IntegerMod),
        Binary::Pow => Kernel::from(run_integer_powers::<T> as Run),
        Binary::Min => binary_kernel::<_, T, _>(Minimum),
        Binary::Max => binary_kernel::<_, T, _>(Maximum),
        Binary::Eq => binary_kernel::<_, B, _>(Equal),
        Binary::Ne => binary_kernel::<_, B, _>(NotEqual),
        Binary::Lt | Binary::Gt => binary_kernel::<_, T, _>(Less),
        Binary::Le | Binary::Ge => binary_kernel::<_, T, _>(LessEqual),
        Binary::And => binary_kernel::<_, B, _>(And),
        Binary::Or => binary_kernel::<_, B, _>(Or),
        Binary::Xor => binary_kernel::<_, B, _>(Xor),
        Binary::Shl => binary_kernel::<_, B, _>(ShiftLeft),
        Binary::Shr => binary_kernel::<_, T, _>(ShiftRight),
        Binary::Div => return None,
    })
}

fn bool_kernel(op: Binary) -> Option<Kernel> {
    match op {
        Binary::Add => integer_kernel::<u8, u8>(Binary::Or),
        Binary::Mul => integer_kernel::<u8, u8>(Binary::And),
        Binary::Min
        | Binary::Max
        | Binary::And
        | Binary::Or
        | Binary::Xor
        | Binary::Eq
        | Binary::Ne
        | Binary::Lt
        | Binary::Le
        | Binary::Gt
        | Binary::Ge => integer_kernel::<u8, u8>(op),
        _ => None,
    }
}

fn float_kernel<T>(op: Binary) -> Option<Kernel>
where
    T: FloatDivision + Arithmetic + PartialOrd + Div<Output = T>,
{
    Some(match op {
        Binary::Add => streaming_kernels::binary_kernel::<_, T, _>(Plus),
        Binary::Sub => streaming_kernels::binary_kernel::<_, T, _>(Minus),
        Binary::Mul => streaming_kernels::binary_kernel::<_, T, _>(Times),
        Binary::Div => streaming_kernels::binary_kernel::<_, T, _>(TrueDiv),
        Binary::FloorDiv => binary_kernel::<_, T, _>(floor_division::FloatFloorDiv),
        Binary::Mod => binary_kernel::<_, T, _>(floor_division::FloatMod),
        Binary::Pow => streaming_kernels::binary_kernel::<_, T, _>(Power),
        Binary::Min => streaming_kernels::binary_kernel::<_, T, _>(Minimum),
        Binary::Max => streaming_kernels::binary_kernel::<_, T, _>(Maximum),
        Binary::Eq => binary_kernel::<_, T, _>(Equal),
        Binary::Ne => binary_kernel::<_, T, _>(NotEqual),
        Binary::Lt | Binary::Gt => binary_kernel::<_, T, _>(Less),
        Binary::Le | Binary::Ge => binary_kernel::<_, T, _>(LessEqual),
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => return None,
    })
}

trait ComplexPow {
    fn complex_pow(self, exponent: Self) -> Self;
    fn complex_div(self, divisor: Self) -> Self;
}
impl ComplexPow for Complex<f32> {
    fn complex_pow(self, exponent: Self) -> Self {
        power(self, exponent)
    }
    fn complex_div(self, divisor: Self) -> Self {
        quotient(self, divisor)
    }
}
impl ComplexPow for Complex<f64> {
    fn complex_pow(self, exponent: Self) -> Self {
        power(self, exponent)
    }
    fn complex_div(self, divisor: Self) -> Self {
        quotient(self, divisor)
    }
}

fn complex_kernel<T>(op: Binary) -> Option<Kernel>
where
    T: ComplexPow + Arithmetic + PartialEq + Copy + 'static,
{
    Some(match op {
        Binary::Add => binary_kernel::<_, T, _>(Plus),
        Binary::Sub => binary_kernel::<_, T, _>(Minus),
        Binary::Mul => binary_kernel::<_, T, _>(Times),
        Binary::Div => binary_scalar_kernel::<_, T, _>(ComplexDiv),
        Binary::Pow => binary_scalar_kernel::<_, T, _>(ComplexPower),
        Binary::Eq => binary_kernel::<_, T, _>(Equal),
        Binary::Ne => binary_kernel::<_, T, _>(NotEqual),
        _ => return None,
    })
}

/// Returns the kernel of a binary function for operands of `dtype`, and whether the operands are to be
/// swapped; `None` if the function isn't defined for the dtype.
pub(crate) fn binary(op: Binary, dtype: DType) -> Option<(Kernel, bool)> {
    let kernel = match dtype {
        DType::Bool => bool_kernel(op),
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
    };
    Some((kernel?, matches!(op, Binary::Gt | Binary::Ge)))
}
