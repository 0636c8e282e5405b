//! The loops of functions of two numbers.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Sub};

use keyfold_core::{Complex, DType};

use crate::math::complex::quotient;

use super::chunks;
use super::division::{self, Floating};
use super::kernel::{Kernel, Map2, Run, two, two_plain};
use super::number::Whole;
use crate::graph::Binary;
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

/// The kernel for whole numbers whose sign doesn't matter, and bools.
fn for_bits(op: Binary, size: usize) -> Kernel {
    macro_rules! by_size {
        ($f:ident) => {
            match size {
                1 => two::<_, u8, _>($f),
                2 => two::<_, u16, _>($f),
                4 => two::<_, u32, _>($f),
                _ => two::<_, u64, _>($f),
            }
        };
    }
    match op {
        Binary::Add => by_size!(Plus),
        Binary::Sub => by_size!(Minus),
        Binary::Mul => by_size!(Times),
        Binary::Eq => by_size!(Same),
        Binary::Ne => by_size!(Different),
        Binary::And => by_size!(Both),
        Binary::Or => by_size!(Either),
        Binary::Xor => by_size!(OneOf),
        _ => by_size!(Left),
    }
}

fn for_whole(op: Binary, dtype: DType) -> Kernel {
    macro_rules! by_dtype {
        ($make:ident, $f:expr) => {
            match dtype {
                DType::U8 | DType::Bool => $make::<_, u8, _>($f),
                DType::U16 => $make::<_, u16, _>($f),
                DType::U32 => $make::<_, u32, _>($f),
                DType::U64 => $make::<_, u64, _>($f),
                DType::I8 => $make::<_, i8, _>($f),
                DType::I16 => $make::<_, i16, _>($f),
                DType::I32 => $make::<_, i32, _>($f),
                _ => $make::<_, i64, _>($f),
            }
        };
    }
    match op {
        // A processor has no vector instruction for these.
        Binary::FloorDiv => by_dtype!(two_plain, WholeOver),
        Binary::Mod => by_dtype!(two_plain, WholeRest),
        Binary::Pow => Kernel::from(match dtype {
            DType::U8 | DType::Bool => run_powers::<u8> as Run,
            DType::U16 => run_powers::<u16>,
            DType::U32 => run_powers::<u32>,
            DType::U64 => run_powers::<u64>,
            DType::I8 => run_powers::<i8>,
            DType::I16 => run_powers::<i16>,
            DType::I32 => run_powers::<i32>,
            _ => run_powers::<i64>,
        }),
        Binary::Min => by_dtype!(two, Least),
        Binary::Max => by_dtype!(two, Greatest),
        Binary::Lt | Binary::Gt => by_dtype!(two, Below),
        Binary::Le | Binary::Ge => by_dtype!(two, NotAbove),
        Binary::Shr => by_dtype!(two, Right),
        _ => for_bits(op, dtype.size()),
    }
}

fn for_float<T>(op: Binary) -> Kernel
where
    T: Floating + Arithmetic + PartialOrd + Div<Output = T>,
{
    match op {
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
        _ => two::<_, T, _>(NotAbove),
    }
}

trait ComplexPow {
    fn complex_pow(self, exponent: Self) -> Self;
    fn complex_div(self, divisor: Self) -> Self;
}
impl ComplexPow for Complex<f32> {
    fn complex_pow(self, exponent: Self) -> Self {
        self.powc(exponent)
    }
    fn complex_div(self, divisor: Self) -> Self {
        quotient(self, divisor)
    }
}
impl ComplexPow for Complex<f64> {
    fn complex_pow(self, exponent: Self) -> Self {
        self.powc(exponent)
    }
    fn complex_div(self, divisor: Self) -> Self {
        quotient(self, divisor)
    }
}

fn for_complex<T>(op: Binary) -> Kernel
where
    T: ComplexPow + Arithmetic + PartialEq + Copy + 'static,
{
    match op {
        Binary::Add => two::<_, T, _>(Plus),
        Binary::Sub => two::<_, T, _>(Minus),
        Binary::Mul => two::<_, T, _>(Times),
        Binary::Div => two_plain::<_, T, _>(ComplexOver),
        Binary::Pow => two_plain::<_, T, _>(ComplexPower),
        Binary::Eq => two::<_, T, _>(Same),
        _ => two::<_, T, _>(Different),
    }
}

/// The kernel of a function of two numbers of this dtype, for which it is defined, and whether the
/// operands have to change places.
pub(crate) fn binary(op: Binary, dtype: DType) -> (Kernel, bool) {
    let kernel = match dtype {
        DType::F32 => for_float::<f32>(op),
        DType::F64 => for_float::<f64>(op),
        DType::C64 => for_complex::<Complex<f32>>(op),
        DType::C128 => for_complex::<Complex<f64>>(op),
        DType::Bool => match op {
            Binary::Add => for_bits(Binary::Or, 1),
            Binary::Mul => for_bits(Binary::And, 1),
            _ => for_whole(op, dtype),
        },
        _ => for_whole(op, dtype),
    };
    (kernel, matches!(op, Binary::Gt | Binary::Ge))
}
