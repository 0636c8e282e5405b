//! The loops of conversions.

use keyfold_core::{Complex, DType, bf16, f16};

use super::convert::Convert;
use super::kernel::{Kernel, Map1, unary_kernel};
use super::streaming_kernels;
use crate::half::{self, Half};
use crate::isa::Isa;

struct Converted;
impl<A: Convert<R>, R: 'static> Map1<A, R> for Converted {
    #[inline(always)]
    fn apply<I: Isa>(a: A) -> R {
        a.convert::<I>()
    }
}

/// Whether a number is nonzero.
struct IsNonzero;
impl<A: PartialEq + Default + Copy + 'static> Map1<A, u8> for IsNonzero {
    #[inline(always)]
    fn apply<I: Isa>(a: A) -> u8 {
        u8::from(a != A::default())
    }
}

/// Rounds to a half and widens the half again.
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

fn from_integer<A>(to: DType) -> Option<Kernel>
where
    A: Convert<u8> + Convert<u16> + Convert<u32> + Convert<u64> + Convert<f32> + Convert<f64>,
    A: Convert<Complex<f32>> + Convert<Complex<f64>> + PartialEq + Default,
{
    Some(match to {
        DType::Bool => unary_kernel::<_, A, u8>(IsNonzero),
        DType::U8 | DType::I8 => unary_kernel::<_, A, u8>(Converted),
        DType::U16 | DType::I16 => unary_kernel::<_, A, u16>(Converted),
        DType::U32 | DType::I32 => unary_kernel::<_, A, u32>(Converted),
        DType::U64 | DType::I64 => unary_kernel::<_, A, u64>(Converted),
        DType::F32 => unary_kernel::<_, A, f32>(Converted),
        DType::F64 => unary_kernel::<_, A, f64>(Converted),
        DType::C64 => unary_kernel::<_, A, Complex<f32>>(Converted),
        DType::C128 => unary_kernel::<_, A, Complex<f64>>(Converted),
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
        DType::I8 => unary_kernel::<_, A, i8>(Converted),
        DType::I16 => unary_kernel::<_, A, i16>(Converted),
        DType::I32 => unary_kernel::<_, A, i32>(Converted),
        DType::I64 => unary_kernel::<_, A, i64>(Converted),
        _ => return from_integer::<A>(to),
    })
}

/// The conversions that are often applied to large tensors: their kernels have streaming loops.
fn streaming_cast(from: DType, to: DType) -> Option<Kernel> {
    Some(match (from, to) {
        (DType::F32, DType::F64) => streaming_kernels::unary_kernel::<_, f32, f64>(Converted),
        (DType::F32, DType::I32) => streaming_kernels::unary_kernel::<_, f32, i32>(Converted),
        (DType::F32, DType::I64) => streaming_kernels::unary_kernel::<_, f32, i64>(Converted),
        (DType::F64, DType::F32) => streaming_kernels::unary_kernel::<_, f64, f32>(Converted),
        (DType::F64, DType::I32) => streaming_kernels::unary_kernel::<_, f64, i32>(Converted),
        (DType::F64, DType::I64) => streaming_kernels::unary_kernel::<_, f64, i64>(Converted),
        (DType::I32, DType::F32) => streaming_kernels::unary_kernel::<_, i32, f32>(Converted),
        (DType::I32, DType::F64) => streaming_kernels::unary_kernel::<_, i32, f64>(Converted),
        (DType::I32, DType::I64) => streaming_kernels::unary_kernel::<_, i32, u64>(Converted),
        (DType::I64, DType::F32) => streaming_kernels::unary_kernel::<_, i64, f32>(Converted),
        (DType::I64, DType::F64) => streaming_kernels::unary_kernel::<_, i64, f64>(Converted),
        (DType::I64, DType::I32) => streaming_kernels::unary_kernel::<_, i64, u32>(Converted),
        _ => return None,
    })
}

/// Returns the kernel that converts one dtype to another, neither a half. Complex numbers convert to
/// complex numbers and to bools only.
pub(crate) fn cast(from: DType, to: DType) -> Option<Kernel> {
    streaming_cast(from, to).or_else(|| match from {
        DType::Bool | DType::U8 => from_integer::<u8>(to),
        DType::U16 => from_integer::<u16>(to),
        DType::U32 => from_integer::<u32>(to),
        DType::U64 => from_integer::<u64>(to),
        DType::I8 => from_integer::<i8>(to),
        DType::I16 => from_integer::<i16>(to),
        DType::I32 => from_integer::<i32>(to),
        DType::I64 => from_integer::<i64>(to),
        DType::F32 => from_float::<f32>(to),
        DType::F64 => from_float::<f64>(to),
        DType::C64 if to == DType::Bool => Some(unary_kernel::<_, Complex<f32>, u8>(IsNonzero)),
        DType::C64 if to == DType::C128 => {
            Some(unary_kernel::<_, Complex<f32>, Complex<f64>>(Converted))
        }
        DType::C128 if to == DType::Bool => Some(unary_kernel::<_, Complex<f64>, u8>(IsNonzero)),
        DType::C128 if to == DType::C64 => {
            Some(unary_kernel::<_, Complex<f64>, Complex<f32>>(Converted))
        }
        DType::C64 | DType::C128 | DType::F16 | DType::BF16 => None,
    })
}

/// Returns the kernel that rounds float32 or float64 to a half, kept as float32; `None` for other
/// dtypes.
pub(crate) fn round(to: DType, from: DType) -> Option<Kernel> {
    Some(match (to, from) {
        (DType::BF16, DType::F64) => unary_kernel::<_, f64, f32>(Rounded(bf16::ZERO)),
        (DType::BF16, DType::F32) => unary_kernel::<_, f32, f32>(Rounded(bf16::ZERO)),
        (DType::F16, DType::F64) => unary_kernel::<_, f64, f32>(Rounded(f16::ZERO)),
        (DType::F16, DType::F32) => unary_kernel::<_, f32, f32>(Rounded(f16::ZERO)),
        _ => return None,
    })
}

/// Converts float64 to a float32 that rounds to the same half as the float64 would.
struct RoundedToOdd<H>(H);
impl<H: Half> Map1<f64, f32> for RoundedToOdd<H> {
    #[inline(always)]
    fn apply<I: Isa>(a: f64) -> f32 {
        H::round_to_odd_f32(a)
    }
}

/// As [`round`] of float64, for results that are stored as that half: the store does the rounding.
pub(crate) fn round_before_store(to: DType) -> Option<Kernel> {
    match to {
        DType::BF16 => {
            Some(streaming_kernels::unary_kernel::<_, f64, f32>(RoundedToOdd(bf16::ZERO)))
        }
        DType::F16 => Some(streaming_kernels::unary_kernel::<_, f64, f32>(RoundedToOdd(f16::ZERO))),
        _ => None,
    }
}
