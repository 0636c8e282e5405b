//! Softmax and its logarithm along one dimension, stable: the greatest element of each lane is
//! subtracted first.
//!
//! `log_softmax` is `x - max - ln(sum)`, and not the logarithm of the share, which may have
//! underflowed to 0.

mod columns;
mod columns_loops;
mod lanes;
mod rows;

use keyfold_core::{DType, Dims, Result, bf16, f16, layout};
use keyfold_tensor::Tensor;

use self::lanes::Float;
use super::blocks::{Input, Sink};
use super::convert::To;
use super::geometry::{Dim, Geometry};
use super::sum::Computed;
use super::{base, check_ordered, out_base};
use crate::op::Op;
use crate::promote::floating;

/// The axis and the result's dtype; its shape is that of `x`.
///
/// # Errors
/// For complex numbers, and an axis that isn't there.
pub(crate) fn plan(op: Op, x: &Tensor, dim: i64) -> Result<(usize, DType)> {
    check_ordered(op, x.dtype())?;
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    Ok((axis, floating(x.dtype())))
}

/// Writes the softmax of `x`, or its logarithm, into a tensor of its shape and the planned dtype
/// that shares no memory with it.
///
/// # Errors
/// When a tensor's memory can't be reached, or the result's not be written.
pub(crate) fn compute_into(log: bool, axis: usize, x: &Tensor, out: &Tensor) -> Result<()> {
    let to = out_base(out)?;
    macro_rules! of {
        // Elements as they are stored, what is computed in, and what the results are stored as.
        ($type:ty; $float:ty => $result:ty) => {{
            let input = Input::plain::<$type>(base::<$type>(x)?);
            into::<$type, $float, $result>(log, axis, (x, input), (out, Sink::of::<$result>(to)))
        }};
        ($float:ty => $result:ty) => {{
            let input = <$float>::input(x)?;
            into::<$float, $float, $result>(log, axis, (x, input), (out, Sink::of::<$result>(to)))
        }};
    }
    match (x.dtype(), out.dtype()) {
        (DType::F16, DType::F16) => of!(f16; f32 => f16),
        (DType::BF16, DType::BF16) => of!(bf16; f32 => bf16),
        (_, DType::F16) => of!(f32 => f16),
        (_, DType::BF16) => of!(f32 => bf16),
        (_, DType::F32) => of!(f32 => f32),
        _ => of!(f64 => f64),
    }
}

fn into<S, A, D>(
    log: bool,
    axis: usize,
    (x, mut input): (&Tensor, Input<S>),
    (out, mut sink): (&Tensor, Sink<D>),
) -> Result<()>
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    if x.numel() == 0 {
        return Ok(());
    }
    let mut all = Dims::<Dim>::filled(Dim::default(), x.ndim())?;
    let mut flags = Dims::<bool>::filled(false, x.ndim())?;
    flags[axis] = true;
    for (d, dim) in all.iter_mut().enumerate() {
        *dim = Dim { size: x.shape()[d], x: x.strides()[d], out: out.strides()[d] };
    }
    let geometry = Geometry::new(&all, &flags, false);
    input.base = input.at(geometry.x_base);
    sink.base = sink.base.wrapping_offset(geometry.out_base * sink.size as isize);
    let job = Job { geometry: &geometry, input, sink, log };
    if geometry.along_rows() || geometry.kept.is_empty() || geometry.is_narrow() {
        rows::softmax_rows::<S, A, D>(&job)
    } else {
        columns::softmax_columns::<S, A, D>(&job)
    }
}

/// What there is to do.
struct Job<'a, S, D> {
    geometry: &'a Geometry,
    input: Input<S>,
    sink: Sink<D>,
    log: bool,
}
