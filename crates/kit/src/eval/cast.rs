//! The loops of conversions.

use keyfold_core::{Complex, DType, bf16, f16};

use super::chunks;
use super::convert::Convert;
use super::kernel::{Kernel, Map1, one};
use crate::half::{self, Half};
use crate::isa::Isa;

struct As;
impl<A: Convert<R>, R: 'static> Map1<A, R> for As {
    #[inline(always)]
    fn apply<I: Isa>(a: A) -> R {
        a.convert::<I>()
    }
}

/// Whether it is anything but 0.
struct Truth;
impl<A: PartialEq + Default + Copy + 'static> Map1<A, u8> for Truth {
    #[inline(always)]
    fn apply<I: Isa>(a: A) -> u8 {
        u8::from(a != A::default())
    }
}

/// Rounds to a half float and back.
struct Rounded<H>(H);
impl<H: Half> Map1<f32, f32> for Rounded<H> {
    #[inline(always)]
    fn apply<I: Isa>(a: f32) -> f32 {
        H::narrow(a).widen()
    }
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [f32], a: &[f32]) {
        half::round::<H, I>(a, dst);
    }
}
impl<H: Half> Map1<f64, f32> for Rounded<H> {
    #[inline(always)]
    fn apply<I: Isa>(a: f64) -> f32 {
        H::narrow_f64(a).widen()
    }
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [f32], a: &[f64]) {
        half::round_f64::<H, I>(a, dst);
    }
}

fn from_whole<A>(to: DType) -> Option<Kernel>
where
    A: Convert<u8> + Convert<u16> + Convert<u32> + Convert<u64> + Convert<f32> + Convert<f64>,
    A: Convert<Complex<f32>> + Convert<Complex<f64>> + PartialEq + Default,
{
    Some(match to {
        DType::Bool => one::<_, A, u8>(Truth),
        DType::U8 | DType::I8 => one::<_, A, u8>(As),
        DType::U16 | DType::I16 => one::<_, A, u16>(As),
        DType::U32 | DType::I32 => one::<_, A, u32>(As),
        DType::U64 | DType::I64 => one::<_, A, u64>(As),
        DType::F32 => one::<_, A, f32>(As),
        DType::F64 => one::<_, A, f64>(As),
        DType::C64 => one::<_, A, Complex<f32>>(As),
        DType::C128 => one::<_, A, Complex<f64>>(As),
        DType::F16 | DType::BF16 => return None,
    })
}

fn from_float<A>(to: DType) -> Option<Kernel>
where
    A: Convert<u8> + Convert<u16> + Convert<u32> + Convert<u64> + Convert<f32> + Convert<f64>,
    A: Convert<i8> + Convert<i16> + Convert<i32> + Convert<i64>,
    A: Convert<Complex<f32>> + Convert<Complex<f64>> + PartialEq + Default,
{
    Some(match to {
        DType::I8 => one::<_, A, i8>(As),
        DType::I16 => one::<_, A, i16>(As),
        DType::I32 => one::<_, A, i32>(As),
        DType::I64 => one::<_, A, i64>(As),
        _ => return from_whole::<A>(to),
    })
}

/// Of the conversions that are often done to large tensors, each with its loop for those.
fn usual(from: DType, to: DType) -> Option<Kernel> {
    Some(match (from, to) {
        (DType::F32, DType::F64) => chunks::one::<_, f32, f64>(As),
        (DType::F32, DType::I32) => chunks::one::<_, f32, i32>(As),
        (DType::F32, DType::I64) => chunks::one::<_, f32, i64>(As),
        (DType::F64, DType::F32) => chunks::one::<_, f64, f32>(As),
        (DType::F64, DType::I32) => chunks::one::<_, f64, i32>(As),
        (DType::F64, DType::I64) => chunks::one::<_, f64, i64>(As),
        (DType::I32, DType::F32) => chunks::one::<_, i32, f32>(As),
        (DType::I32, DType::F64) => chunks::one::<_, i32, f64>(As),
        (DType::I32, DType::I64) => chunks::one::<_, i32, u64>(As),
        (DType::I64, DType::F32) => chunks::one::<_, i64, f32>(As),
        (DType::I64, DType::F64) => chunks::one::<_, i64, f64>(As),
        (DType::I64, DType::I32) => chunks::one::<_, i64, u32>(As),
        _ => return None,
    })
}

/// The kernel that converts from one dtype to another, neither a half. From complex numbers there
/// are conversions to complex ones and to bools, and nothing else.
pub(crate) fn cast(from: DType, to: DType) -> Option<Kernel> {
    usual(from, to).or_else(|| match from {
        DType::Bool | DType::U8 => from_whole::<u8>(to),
        DType::U16 => from_whole::<u16>(to),
        DType::U32 => from_whole::<u32>(to),
        DType::U64 => from_whole::<u64>(to),
        DType::I8 => from_whole::<i8>(to),
        DType::I16 => from_whole::<i16>(to),
        DType::I32 => from_whole::<i32>(to),
        DType::I64 => from_whole::<i64>(to),
        DType::F32 => from_float::<f32>(to),
        DType::F64 => from_float::<f64>(to),
        DType::C64 if to == DType::Bool => Some(one::<_, Complex<f32>, u8>(Truth)),
        DType::C64 if to == DType::C128 => Some(one::<_, Complex<f32>, Complex<f64>>(As)),
        DType::C128 if to == DType::Bool => Some(one::<_, Complex<f64>, u8>(Truth)),
        DType::C128 if to == DType::C64 => Some(one::<_, Complex<f64>, Complex<f32>>(As)),
        DType::C64 | DType::C128 | DType::F16 | DType::BF16 => None,
    })
}

/// The kernel that rounds float32 or float64 to a half, kept as float32; nothing for other dtypes.
pub(crate) fn round(to: DType, from: DType) -> Option<Kernel> {
    Some(match (to, from) {
        (DType::BF16, DType::F64) => one::<_, f64, f32>(Rounded(bf16::ZERO)),
        (DType::BF16, DType::F32) => one::<_, f32, f32>(Rounded(bf16::ZERO)),
        (DType::F16, DType::F64) => one::<_, f64, f32>(Rounded(f16::ZERO)),
        (DType::F16, DType::F32) => one::<_, f32, f32>(Rounded(f16::ZERO)),
        _ => return None,
    })
}

/// What the result's store rounds to a half: a float32 for each float64.
struct Between<H>(H);
impl<H: Half> Map1<f64, f32> for Between<H> {
    #[inline(always)]
    fn apply<I: Isa>(a: f64) -> f32 {
        H::between(a)
    }
}

/// As [`round`] of float64, where the result is stored as that half, which rounds it.
pub(crate) fn before_store(to: DType) -> Option<Kernel> {
    match to {
        DType::BF16 => Some(chunks::one::<_, f64, f32>(Between(bf16::ZERO))),
        DType::F16 => Some(chunks::one::<_, f64, f32>(Between(f16::ZERO))),
        _ => None,
    }
}
