//! The greatest and the smallest element. A NaN is both, as in NumPy.

use keyfold_core::{DType, Result, bf16, f16};
use keyfold_tensor::Tensor;

use super::blocks::{Input, Sink};
use super::convert::Truth;
use super::geometry::Reduction;
use super::monoid::{Extreme, Greatest, Ordered, Smallest};
use super::ops::Ops;
use super::{base, check_ordered, out_base, run};
use crate::op::Op;

/// Which of the elements is kept.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum End {
    Greatest,
    Smallest,
}

/// The result's shape; its dtype is that of `x`.
///
/// # Errors
/// For complex numbers, which have no order; for dimensions that aren't there or are named twice;
/// and where there is nothing to choose from.
pub(crate) fn plan(op: Op, x: &Tensor, dims: Option<&[i64]>, keepdim: bool) -> Result<Reduction> {
    check_ordered(op, x.dtype())?;
    let reduction = Reduction::new(op, x.shape(), dims, keepdim)?;
    reduction.check_nonempty(op, x.shape())?;
    Ok(reduction)
}

/// Writes the extremes of the lanes of `x` into a tensor of the planned shape and its dtype that
/// shares no memory with it.
///
/// # Errors
/// When a tensor's memory can't be reached, or the result's not be written.
pub(crate) fn compute_into(
    end: End,
    reduction: &Reduction,
    x: &Tensor,
    out: &Tensor,
) -> Result<()> {
    let to = out_base(out)?;
    macro_rules! same {
        ($type:ty) => {
            into(
                end,
                reduction,
                x,
                out,
                Input::plain::<$type>(base::<$type>(x)?),
                Sink::<$type>::of::<$type>(to),
            )
        };
    }
    match x.dtype() {
        // Of bools the greatest is "any", the smallest "all".
        DType::Bool => {
            let input = Input::plain::<Truth>(base::<u8>(x)?);
            into(end, reduction, x, out, input, Sink::<u8>::of::<Truth>(to))
        }
        DType::F16 => {
            let input = Input::plain::<f16>(base::<f16>(x)?);
            into(end, reduction, x, out, input, Sink::<f32>::of::<f16>(to))
        }
        DType::BF16 => {
            let input = Input::plain::<bf16>(base::<bf16>(x)?);
            into(end, reduction, x, out, input, Sink::<f32>::of::<bf16>(to))
        }
        DType::U8 => same!(u8),
        DType::U16 => same!(u16),
        DType::U32 => same!(u32),
        DType::U64 => same!(u64),
        DType::I8 => same!(i8),
        DType::I16 => same!(i16),
        DType::I32 => same!(i32),
        DType::I64 => same!(i64),
        DType::F32 => same!(f32),
        DType::F64 => same!(f64),
        // Refused by `plan`.
        DType::C64 | DType::C128 => Ok(()),
    }
}

fn into<T: Ordered>(
    end: End,
    reduction: &Reduction,
    x: &Tensor,
    out: &Tensor,
    input: Input<T>,
    sink: Sink<T>,
) -> Result<()> {
    let ops = match end {
        End::Greatest => Ops::of::<Extreme<Greatest, T>>(),
        End::Smallest => Ops::of::<Extreme<Smallest, T>>(),
    };
    run(reduction.geometry(x, out, false), input, ops, sink, T::LOWEST)
}
