//! The operators.

use keyfold_core::{DType, Result};
use keyfold_dispatch::Kernel;
use keyfold_tensor::{IntList, Tensor};

use super::extreme::End;
use super::geometry::Reduction;
use super::quantify::Quantity;
use super::sum::Total;
use super::{arg, extreme, quantify, softmax, sum};
use crate::op::{Op, Registrar};

/// A result of that shape and dtype, written by `compute` unless on Meta.
fn fresh(
    op: Op,
    shape: &[usize],
    dtype: DType,
    compute: impl FnOnce(&Tensor) -> Result<()>,
) -> Result<Tensor> {
    let out = op.output(shape, dtype)?;
    if !op.is_meta() {
        op.at(compute(&out))?;
    }
    Ok(out)
}

fn total(
    op: Op,
    total: Total,
    x: &Tensor,
    dims: Option<&[i64]>,
    keepdim: bool,
    dtype: Option<DType>,
) -> Result<Tensor> {
    let (plan, dtype) = sum::plan(op, total, x, dims, keepdim, dtype)?;
    fresh(op, &plan.shape, dtype, |out| sum::compute_into(total, &plan, x, out))
}

fn extreme(op: Op, end: End, x: &Tensor, dims: Option<&[i64]>, keepdim: bool) -> Result<Tensor> {
    let plan = extreme::plan(op, x, dims, keepdim)?;
    fresh(op, &plan.shape, x.dtype(), |out| extreme::compute_into(end, &plan, x, out))
}

fn quantify(
    op: Op,
    quantity: Quantity,
    x: &Tensor,
    dims: Option<&[i64]>,
    keepdim: bool,
) -> Result<Tensor> {
    let plan = Reduction::new(op, x.shape(), dims, keepdim)?;
    fresh(op, &plan.shape, DType::Bool, |out| quantify::compute_into(quantity, &plan, x, out))
}

fn arg_extreme(op: Op, end: End, x: &Tensor, dim: Option<i64>, keepdim: bool) -> Result<Tensor> {
    let dims = dim.as_ref().map(std::slice::from_ref);
    let plan = extreme::plan(op, x, dims, keepdim)?;
    fresh(op, &plan.shape, DType::I64, |out| arg::compute_into(end, &plan, x, out))
}

fn soft(op: Op, log: bool, x: &Tensor, dim: i64) -> Result<Tensor> {
    let (axis, dtype) = softmax::plan(op, x, dim)?;
    fresh(op, x.shape(), dtype, |out| softmax::compute_into(log, axis, x, out))
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    for (all, dim, what) in [
        (
            "aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor",
            "aten::sum.dim(Tensor self, int[]? dim, bool keepdim=False, *, \
             ScalarType? dtype=None) -> Tensor",
            Total::Sum,
        ),
        (
            "aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor",
            "aten::mean.dim(Tensor self, int[]? dim, bool keepdim=False, *, \
             ScalarType? dtype=None) -> Tensor",
            Total::Mean,
        ),
    ] {
        ops.op(all, |op| {
            Kernel::typed(move |x: &Tensor, dtype: Option<DType>| {
                total(op, what, x, None, false, dtype)
            })
        })?;
        ops.op(dim, |op| {
            Kernel::typed(
                move |x: &Tensor, dim: Option<IntList>, keepdim: bool, dtype: Option<DType>| {
                    total(op, what, x, dim.as_deref(), keepdim, dtype)
                },
            )
        })?;
    }
    for (all, dim, arg, end) in [
        (
            "aten::max(Tensor self) -> Tensor",
            "aten::amax(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
            "aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
            End::Greatest,
        ),
        (
            "aten::min(Tensor self) -> Tensor",
            "aten::amin(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
            "aten::argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
            End::Smallest,
        ),
    ] {
        ops.op(all, |op| Kernel::typed(move |x: &Tensor| extreme(op, end, x, None, false)))?;
        ops.op(dim, |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool| {
                extreme(op, end, x, dim.as_deref(), keepdim)
            })
        })?;
        ops.op(arg, |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<i64>, keepdim: bool| {
                arg_extreme(op, end, x, dim, keepdim)
            })
        })?;
    }
    for (schema, quantity) in [
        ("aten::all(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor", Quantity::All),
        ("aten::any(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor", Quantity::Any),
    ] {
        ops.op(schema, |op| {
            Kernel::typed(move |x: &Tensor, dim: Option<IntList>, keepdim: bool| {
                quantify(op, quantity, x, dim.as_deref(), keepdim)
            })
        })?;
    }
    for (schema, log) in [
        ("aten::softmax(Tensor self, int dim) -> Tensor", false),
        ("aten::log_softmax(Tensor self, int dim) -> Tensor", true),
    ] {
        ops.op(schema, |op| Kernel::typed(move |x: &Tensor, dim: i64| soft(op, log, x, dim)))?;
    }
    Ok(())
}
