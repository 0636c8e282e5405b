//! `gather` and `scatter_add`: the index has one position along a dimension for each element.

use keyfold_backend::Operation;
use keyfold_core::{ErrorKind, Result, layout};
use keyfold_layers::autocast::Category;
use keyfold_tensor::Tensor;

use super::bounds::Indexed;
use super::{
    READS_INDEX, SOURCE_READS_INDEX, Selection, batched, batching, copy_and_modify, gradients,
};
use crate::convert::to_dtype;
use crate::index_dtype::{as_int64, check_integer};
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::LINEAR;
use crate::naming::Naming;
use crate::op::Op;
use crate::promote::{check_assignable, computed};
use crate::row::{Layers, Row};
use crate::vjp::formula;

/// Returns the normalized dimension, after checks that the index is of integers, has the rank of the other
/// tensors, and fits into `source` and, except along that dimension, into `x`.
fn check(op: &Op, x: &Tensor, dim: i64, index: &Tensor, source: Option<&Tensor>) -> Result<usize> {
    check_integer(op, index)?;
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

const GATHER: &Operation = &Operation::new("gather");
const SCATTER_ADD: &Operation = &Operation::new("scatter_add");

#[inline(always)]
fn gather<'t>(
    call: Call<'_, ()>,
    (x, dim, index): (&'t Tensor, i64, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    let axis = check(&call, x, dim, index, None)?;
    let picked = Selection::along(GATHER, x.shape(), axis, as_int64(&call, index)?);
    let run = move |picked: &Selection<'t>, op: &Op, out: &Tensor| picked.launch(op, x, out);
    let (device, shape) = (call.device_of(x), index.shape().clone());
    Ok(CallPlan::new(device, shape, x.dtype(), Indexed { picked, run }))
}

/// Copies `x` and adds each element of `source` at its position along a dimension.
#[inline(always)]
fn scatter_add<'t>(
    call: Call<'_, ()>,
    (x, dim, index, source): (&'t Tensor, i64, &'t Tensor, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    let axis = check(&call, x, dim, index, Some(source))?;
    check_assignable(&call, source.dtype(), x.dtype())?;
    // Sums of float16 and bfloat16 are rounded once, at the end.
    let dtype = computed(x.dtype());
    let picked = Selection::along(SCATTER_ADD, x.shape(), axis, as_int64(&call, index)?);
    let run = move |picked: &Selection<'t>, op: &Op, out: &Tensor| {
        let source = to_dtype(op, source, dtype)?;
        copy_and_modify(op, x, dtype, out, |copy| picked.launch(op, &source, copy))
    };
    let (device, shape) = (call.device_of(x), x.shape().clone());
    Ok(CallPlan::new(device, shape, x.dtype(), Indexed { picked, run }))
}

/// Returns the rows of `gather` and `scatter_add`.
pub(super) fn rows() -> Result<Vec<Row>> {
    Ok(vec![
        Row::computes::<(&Tensor, i64, &Tensor), _, _>(
            ("aten::gather", ""),
            "Tensor self, int dim, Tensor index",
            |_| (),
            gather,
            Layers {
                derivative: formula(READS_INDEX, gradients::gather),
                tangent: LINEAR,
                batching: batched(batching::gather),
                autocast: Category::Leave,
            },
            Naming::Unnamed("the array API has none"),
        )?,
        Row::computes::<(&Tensor, i64, &Tensor, &Tensor), _, _>(
            ("aten::scatter_add", ""),
            "Tensor self, int dim, Tensor index, Tensor src",
            |_| (),
            scatter_add,
            Layers {
                derivative: formula(SOURCE_READS_INDEX, gradients::scatter_add),
                tangent: LINEAR,
                batching: batched(batching::gather),
                autocast: Category::FullPrecision,
            },
            Naming::Unnamed("the array API has none"),
        )?,
    ])
}
