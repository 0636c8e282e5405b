//! The greatest and the smallest element. A NaN is both, as in NumPy.

use keyfold_core::{DType, Result, bf16, f16};
use keyfold_tensor::Tensor;

use super::blocks::{Input, Sink};
use super::convert::{Plain, To};
use super::geometry::{Geometry, Reduction};
use super::monoid::{Extreme, Greatest, Ordered, Smallest};
use super::ops::Ops;
use super::quantify::{self, Quantity};
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
    // Of bools the greatest is "any", the smallest "all", which are often decided early.
    if x.dtype() == DType::Bool {
        let quantity = if end == End::Greatest { Quantity::Any } else { Quantity::All };
        return quantify::compute_into(quantity, reduction, x, out);
    }
    let to = out_base(out)?;
    macro_rules! of {
        ($type:ty, $stored:ty; $number:ty => $to:ty) => {
            into::<$type, $number>(
                end,
                reduction.geometry(x, out, false),
                Input::plain::<$type>(base::<$stored>(x)?),
                Sink::<$number>::of::<$to>(to),
            )
        };
    }
    macro_rules! same {
        ($type:ty) => {
            of!($type, $type; $type => $type)
        };
    }
    match x.dtype() {
        DType::F16 => of!(f16, f16; f32 => f16),
        DType::BF16 => of!(bf16, bf16; f32 => bf16),
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
        // Bools are done, the others refused by `plan`.
        DType::Bool | DType::C64 | DType::C128 => Ok(()),
    }
}

fn into<S, T>(end: End, geometry: Geometry, input: Input<S>, sink: Sink<T>) -> Result<()>
where
    S: To<T> + Copy + 'static,
    T: Ordered + To<T>,
{
    let ops = match end {
        End::Greatest => Ops::of::<Plain<S, T>, Extreme<Greatest, T>, Extreme<Greatest, T>>(),
        End::Smallest => Ops::of::<Plain<S, T>, Extreme<Smallest, T>, Extreme<Smallest, T>>(),
    };
    run(geometry, input, ops, sink, T::LOWEST)
}
