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
use super::geometry::{Dim, Geometry};
use super::sum::Computed;
use super::{check_ordered, out_base};
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
    match out.dtype() {
        DType::F16 => into(log, axis, x, out, f32::input(x)?, Sink::of::<f16>(to), false),
        DType::BF16 => into(log, axis, x, out, f32::input(x)?, Sink::of::<bf16>(to), false),
        DType::F32 => into(log, axis, x, out, f32::input(x)?, Sink::of::<f32>(to), true),
        _ => into(log, axis, x, out, f64::input(x)?, Sink::of::<f64>(to), true),
    }
}

fn into<A: Float>(
    log: bool,
    axis: usize,
    x: &Tensor,
    out: &Tensor,
    mut input: Input<A>,
    mut sink: Sink<A>,
    in_place: bool,
) -> Result<()> {
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
    let job = Job { geometry: &geometry, input, sink, in_place, log };
    if geometry.along_rows() || geometry.kept.is_empty() {
        rows::softmax_rows(&job)
    } else {
        columns::softmax_columns(&job)
    }
}

/// What there is to do.
struct Job<'a, A> {
    geometry: &'a Geometry,
    input: Input<A>,
    sink: Sink<A>,
    /// Whether results are stored as the numbers that they're computed as.
    in_place: bool,
    log: bool,
}
