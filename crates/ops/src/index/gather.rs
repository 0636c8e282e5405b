//! Elements picked, and added, by an index of the result's own shape: one position along a dimension
//! for each element.

use keyfold_backend::{GpuBackend, IndexOp, IndexParams};
use keyfold_core::{ErrorKind, Result, layout};
use keyfold_dispatch::Kernel;
use keyfold_layers::autocast::Category;
use keyfold_tensor::Tensor;

use super::{INDEX, INDEX_OF_SOURCE, batched, batching, gradients};
use crate::gradient::given;
use crate::map::cast;
use crate::op::Op;
use crate::positions::{as_int64, check_whole};
use crate::promote::{check_assignable, computed, rounded};
use crate::row::{Layers, Row};

/// The dimension, after checks that the index is of whole numbers, has as many dimensions as each of
/// the others, and fits into `x` (but along that dimension) and `source`.
fn check(op: &Op, x: &Tensor, dim: i64, index: &Tensor, source: Option<&Tensor>) -> Result<usize> {
    check_whole(op, index)?;
    let axis = op.at(layout::normalize_axis(dim, x.ndim()))?;
    let others = [("self", Some(x), Some(axis)), ("src", source, None)];
    for (name, other, free) in others {
        let Some(other) = other else { continue };
        let fits = other.ndim() == index.ndim()
            && (0..index.ndim()).all(|d| Some(d) == free || index.shape()[d] <= other.shape()[d]);
        if !fits {
            let but =
                if free.is_some() { format!(" but along dimension {axis}") } else { String::new() };
            let message = format!(
                "an index of shape {:?} doesn't fit argument '{name}' of shape {:?}; it needs as \
                 many dimensions, none of them longer{but}",
                index.shape(),
                other.shape()
            );
            return Err(op.error(ErrorKind::Shape, message));
        }
    }
    Ok(axis)
}

/// Launches an operation along a dimension.
fn launch(op: &Op, which: IndexOp, axis: usize, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    let kernel = op.kernel(GpuBackend::index, |index| index.index(which, out.dtype()))?;
    let params = IndexParams { op: which, at: 0, dims: 1 << axis };
    // SAFETY: results were made by their kernels and nobody else has them.
    op.at(unsafe { kernel.launch(&params, inputs, out) })
}

fn gather(op: &Op, x: &Tensor, dim: i64, index: &Tensor) -> Result<Tensor> {
    let axis = check(op, x, dim, index, None)?;
    let out = op.output(op.device_of(x), index.shape(), x.dtype())?;
    if !op.is_meta() {
        let index = as_int64(op, index)?;
        launch(op, IndexOp::Gather, axis, &[x, &index], &out)?;
    }
    Ok(out)
}

/// A copy of `x` with each element of `source` added at its position along a dimension.
fn scatter_add(op: &Op, x: &Tensor, dim: i64, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    let axis = check(op, x, dim, index, Some(source))?;
    check_assignable(op, source.dtype(), x.dtype())?;
    // Sums of halves are rounded once, at the end.
    let dtype = computed(x.dtype());
    let copy = cast(op, x, dtype)?;
    if !op.is_meta() {
        let source = cast(op, source, dtype)?;
        let index = as_int64(op, index)?;
        launch(op, IndexOp::ScatterAdd, axis, &[&source, &index], &copy)?;
    }
    rounded(op, copy, x.dtype())
}

/// The rows of `gather` and `scatter_add`.
pub(super) fn rows() -> Result<Vec<Row>> {
    Ok(vec![
        Row::computes(
            "aten::gather(Tensor self, int dim, Tensor index) -> Tensor",
            |op| {
                Kernel::typed(move |x: &Tensor, dim: i64, index: &Tensor| {
                    gather(&op, x, dim, index)
                })
            },
            Layers {
                derivative: given(INDEX, gradients::gather),
                batching: batched(batching::gather),
                autocast: Category::Leave,
            },
        )?,
        Row::computes(
            "aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
            |op| {
                Kernel::typed(move |x: &Tensor, dim: i64, index: &Tensor, source: &Tensor| {
                    scatter_add(&op, x, dim, index, source)
                })
            },
            Layers {
                derivative: given(INDEX_OF_SOURCE, gradients::scatter_add),
                batching: batched(batching::gather),
                autocast: Category::FullPrecision,
            },
        )?,
    ])
}
