//! Whether all elements, or any, are true: not zero. A NaN is true.

use keyfold_backend::ReduceParams;
use keyfold_core::{Complex, DType, Element, Result, bf16, f16};
use keyfold_tensor::Tensor;

use super::blocks::{Input, Sink};
use super::convert::{Bits, Convert, To, Truth};
use super::geometry::Reduction;
use super::monoid::{All, Any, Ordered};
use super::ops::Ops;
use super::{Kernel, base, out_base, run};
use crate::kernel::HostKernel;

/// The kernel for elements of a dtype: whether all are true, or any.
pub(crate) fn kernel(all: bool, dtype: DType) -> Kernel {
    macro_rules! of {
        // The type whose bits are looked at, and the one that the elements are stored as.
        ($type:ty, $stored:ty) => {
            match all {
                true => HostKernel::new(|params, inputs, out| {
                    launch::<Bits<$type>, $stored>(true, params, inputs[0], out)
                }),
                false => HostKernel::new(|params, inputs, out| {
                    launch::<Bits<$type>, $stored>(false, params, inputs[0], out)
                }),
            }
        };
    }
    match dtype {
        DType::Bool | DType::U8 => of!(u8, u8),
        DType::U16 => of!(u16, u16),
        DType::U32 => of!(u32, u32),
        DType::U64 => of!(u64, u64),
        // Of whole numbers the bits are the same.
        DType::I8 => of!(u8, i8),
        DType::I16 => of!(u16, i16),
        DType::I32 => of!(u32, i32),
        DType::I64 => of!(u64, i64),
        DType::F16 => of!(f16, f16),
        DType::BF16 => of!(bf16, bf16),
        DType::F32 => of!(f32, f32),
        DType::F64 => of!(f64, f64),
        DType::C64 => of!(Complex<f32>, Complex<f32>),
        DType::C128 => of!(Complex<f64>, Complex<f64>),
    }
}

fn launch<C: Convert, S: Element>(
    all: bool,
    params: &ReduceParams,
    x: &Tensor,
    out: &Tensor,
) -> Result<()>
where
    C::From: To<C::From>,
    C::To: Ordered + To<Truth> + To<C::To>,
{
    let geometry = Reduction::new(params, x).geometry(x, out, false);
    let (ops, empty) = match all {
        true => (Ops::of::<C, All<C::To>, All<C::To>>(), C::To::HIGHEST),
        false => (Ops::of::<C, Any<C::To>, Any<C::To>>(), C::To::LOWEST),
    };
    let input = Input::<C::From>::plain::<C::From>(base::<S>(x)?);
    run(geometry, input, ops, Sink::of::<Truth>(out_base(out)?), empty)
}
