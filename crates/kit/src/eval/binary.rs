//! The loops of functions of two numbers.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Sub};

use keyfold_core::{Complex, DType};
use keyfold_expr::Binary;

use crate::math::complex::quotient;
use crate::math::complex_power::power;

use super::chunks;
use super::division::{self, Floating};
use super::kernel::{Kernel, Map2, Run, two, two_plain};
use super::number::Whole;
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

/// Sums, differences and products; those of whole numbers wrap.
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
    Over<T: Div<Output = T>>(a, b) -> T = a.div(b);
    WholeOver<T: Whole>(a, b) -> T = a.floor_div(b);
    WholeRest<T: Whole>(a, b) -> T = a.modulo(b);
    Left<T: Whole>(a, b) -> T = a.shift_left(b);
    Right<T: Whole>(a, b) -> T = a.shift_right(b);
    Power<T: Real>(a, b) -> T = a.pow::<I>(b);
    ComplexPower<T: ComplexPow>(a, b) -> T = a.complex_pow(b);
    ComplexOver<T: ComplexPow>(a, b) -> T = a.complex_div(b);
    // Where they are no numbers (`a != a`) that is the result, whichever it is.
    Least<T: PartialOrd>(a, b) -> T = if a < b || nan(a) { a } else { b };
    Greatest<T: PartialOrd>(a, b) -> T = if a > b || nan(a) { a } else { b };
    Same<T: PartialEq>(a, b) -> u8 = u8::from(a == b);
    Different<T: PartialEq>(a, b) -> u8 = u8::from(a != b);
    Below<T: PartialOrd>(a, b) -> u8 = u8::from(a < b);
    NotAbove<T: PartialOrd>(a, b) -> u8 = u8::from(a <= b);
    Both<T: BitAnd<Output = T>>(a, b) -> T = a.bitand(b);
    Either<T: BitOr<Output = T>>(a, b) -> T = a.bitor(b);
    OneOf<T: BitXor<Output = T>>(a, b) -> T = a.bitxor(b);
}

#[inline(always)]
#[expect(clippy::eq_op, reason = "that is what tells NaN from all others")]
fn nan<T: PartialOrd + Copy>(a: T) -> bool {
    a != a
}

/// # Safety
/// As [`Run`](super::kernel::Run).
unsafe fn run_powers<T: Whole>(
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

/// Of whole numbers `T`, whose bits are a `B`.
fn for_whole<T, B>(op: Binary) -> Option<Kernel>
where
    T: Whole + PartialOrd + Copy + 'static,
    B: Arithmetic + Whole + PartialEq + Copy + 'static,
    B: BitAnd<Output = B> + BitOr<Output = B> + BitXor<Output = B>,
{
    Some(match op {
        Binary::Add => two::<_, B, _>(Plus),
        Binary::Sub => two::<_, B, _>(Minus),
        Binary::Mul => two::<_, B, _>(Times),
        // A processor has no vector instruction for these.
        Binary::FloorDiv => two_plain::<_, T, _>(WholeOver),
        Binary::Mod => two_plain::<_, T, _>(WholeRest),
        Binary::Pow => Kernel::from(run_powers::<T> as Run),
        Binary::Min => two::<_, T, _>(Least),
        Binary::Max => two::<_, T, _>(Greatest),
        Binary::Eq => two::<_, B, _>(Same),
        Binary::Ne => two::<_, B, _>(Different),
        Binary::Lt | Binary::Gt => two::<_, T, _>(Below),
        Binary::Le | Binary::Ge => two::<_, T, _>(NotAbove),
        Binary::And => two::<_, B, _>(Both),
        Binary::Or => two::<_, B, _>(Either),
        Binary::Xor => two::<_, B, _>(OneOf),
        Binary::Shl => two::<_, B, _>(Left),
        Binary::Shr => two::<_, T, _>(Right),
        Binary::Div => return None,
    })
}

fn for_bool(op: Binary) -> Option<Kernel> {
    match op {
        Binary::Add => for_whole::<u8, u8>(Binary::Or),
        Binary::Mul => for_whole::<u8, u8>(Binary::And),
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
        | Binary::Ge => for_whole::<u8, u8>(op),
        _ => None,
    }
}

fn for_float<T>(op: Binary) -> Option<Kernel>
where
    T: Floating + Arithmetic + PartialOrd + Div<Output = T>,
{
    Some(match op {
        Binary::Add => chunks::two::<_, T, _>(Plus),
        Binary::Sub => chunks::two::<_, T, _>(Minus),
        Binary::Mul => chunks::two::<_, T, _>(Times),
        Binary::Div => chunks::two::<_, T, _>(Over),
        Binary::FloorDiv => two::<_, T, _>(division::Over),
        Binary::Mod => two::<_, T, _>(division::Rest),
        Binary::Pow => chunks::two::<_, T, _>(Power),
        Binary::Min => chunks::two::<_, T, _>(Least),
        Binary::Max => chunks::two::<_, T, _>(Greatest),
        Binary::Eq => two::<_, T, _>(Same),
        Binary::Ne => two::<_, T, _>(Different),
        Binary::Lt | Binary::Gt => two::<_, T, _>(Below),
        Binary::Le | Binary::Ge => two::<_, T, _>(NotAbove),
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

fn for_complex<T>(op: Binary) -> Option<Kernel>
where
    T: ComplexPow + Arithmetic + PartialEq + Copy + 'static,
{
    Some(match op {
        Binary::Add => two::<_, T, _>(Plus),
        Binary::Sub => two::<_, T, _>(Minus),
        Binary::Mul => two::<_, T, _>(Times),
        Binary::Div => two_plain::<_, T, _>(ComplexOver),
        Binary::Pow => two_plain::<_, T, _>(ComplexPower),
        Binary::Eq => two::<_, T, _>(Same),
        Binary::Ne => two::<_, T, _>(Different),
        _ => return None,
    })
}

/// The kernel of a function of two numbers of this dtype, and whether the operands have to change
/// places; nothing if the function isn't defined for it.
pub(crate) fn binary(op: Binary, dtype: DType) -> Option<(Kernel, bool)> {
    let kernel = match dtype {
        DType::Bool => for_bool(op),
        DType::U8 => for_whole::<u8, u8>(op),
        DType::U16 => for_whole::<u16, u16>(op),
        DType::U32 => for_whole::<u32, u32>(op),
        DType::U64 => for_whole::<u64, u64>(op),
        DType::I8 => for_whole::<i8, u8>(op),
        DType::I16 => for_whole::<i16, u16>(op),
        DType::I32 => for_whole::<i32, u32>(op),
        DType::I64 => for_whole::<i64, u64>(op),
        DType::F32 => for_float::<f32>(op),
        DType::F64 => for_float::<f64>(op),
        DType::C64 => for_complex::<Complex<f32>>(op),
        DType::C128 => for_complex::<Complex<f64>>(op),
        // Halves are computed in float32.
        DType::F16 | DType::BF16 => None,
    };
    Some((kernel?, matches!(op, Binary::Gt | Binary::Ge)))
}
