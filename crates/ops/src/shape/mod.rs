//! Views, copies and conversions. They support every dtype.

pub(crate) mod batching;
mod concat;
mod concat_batching;
mod concat_gradients;
pub(crate) mod gradients;
mod split;

use keyfold_core::{DType, Device, ErrorKind, Result, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Vjp;
use keyfold_layers::vmap;
use keyfold_tensor::{IntList, Tensor};

use crate::convert::{cast, conversion};
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::LINEAR;
use crate::naming::{Naming, UNARY_PARAMETERS, named};
use crate::op::Op;
use crate::row::{Batching, COMPUTES, Gradient, Layers, Row, Rule};
use crate::vjp::{READS_NOTHING, formula};

/// Broadcasts to those sizes; -1 keeps a dimension's size.
fn expand(op: &Op, x: &Tensor, size: &[i64]) -> Result<Tensor> {
    let mut sizes = size.to_vec();
    let added = size.len().saturating_sub(x.ndim());
    for (i, new) in sizes.iter_mut().enumerate() {
        if *new != -1 {
            continue;
        }
        let old = i.checked_sub(added).and_then(|i| x.shape().get(i)).ok_or_else(|| {
            let message = format!("size -1 at place {i} of {size:?} has no dimension to keep");
            op.error(ErrorKind::Shape, message)
        })?;
        *new = *old as i64;
    }
    let view = op.at(x.broadcast_to(&op.shape(&sizes)?))?;
    // An expanded view is read-only, since several of its positions share an element.
    Ok(if view.numel() > x.numel() { view.into_read_only() } else { view })
}

/// Removes the dimensions of size 1.
fn squeeze(op: &Op, x: &Tensor) -> Result<Tensor> {
    let mut x = x.detach();
    for axis in (0..x.ndim()).rev() {
        if x.shape()[axis] == 1 {
            x = op.at(x.squeeze(axis as i64))?;
        }
    }
    Ok(x)
}

/// Returns a view if the tensor is contiguous, else a contiguous copy.
fn contiguous(op: &Op, (x,): (&Tensor,)) -> Result<Tensor> {
    if x.is_contiguous() { Ok(x.detach()) } else { cast(op, x, x.dtype()) }
}

/// Returns a view in another shape where the strides allow it, else a copy.
fn reshape(op: &Op, (x, sizes): (&Tensor, IntList)) -> Result<Tensor> {
    if !op.is_meta() {
        return op.at(x.reshape(&sizes));
    }
    let shape = op.at(layout::infer_shape(&sizes, x.numel()))?;
    match op.at(x.reshape_view(&shape))? {
        Some(view) => Ok(view),
        None => op.output(Device::META, &shape, x.dtype()),
    }
}

#[inline(always)]
fn clone(call: Call<'_, ()>, (x,): (&Tensor,)) -> Result<CallPlan<impl Run>> {
    conversion(&call, x, x.dtype())
}

#[inline(always)]
fn to(call: Call<'_, ()>, (x, dtype): (&Tensor, DType)) -> Result<CallPlan<impl Run>> {
    conversion(&call, x, dtype)
}

/// Returns the rows of views, copies and conversions.
pub(crate) fn rows() -> Result<Vec<Row>> {
    fn layers(vjp: Vjp, batching: vmap::Rule) -> Layers {
        let (derivative, batching) = (formula(READS_NOTHING, vjp), Batching::Rule(batching));
        let (tangent, batching) = (LINEAR, Rule::Given(batching));
        Layers { derivative, tangent, batching, autocast: Category::Leave }
    }
    let mut rows = vec![
        Row::view::<(&Tensor, IntList)>(
            "aten::reshape(Tensor(a) self, int[] shape) -> Tensor(a)",
            reshape,
            layers(gradients::reshape, batching::reshape),
            Naming::PartOf("reshape"),
        )?
        .with_host_lock(COMPUTES),
        Row::view::<(&Tensor,)>(
            "aten::contiguous(Tensor(a) self) -> Tensor(a)",
            contiguous,
            layers(gradients::same, batching::contiguous),
            Naming::Unnamed("`Tensor.contiguous` calls it"),
        )?
        .with_host_lock(COMPUTES),
        Row::computes::<(&Tensor,), _, _>(
            ("aten::clone", ""),
            "Tensor self",
            |_| (),
            clone,
            layers(gradients::same, vmap::single),
            named("positive", UNARY_PARAMETERS, "Return a copy."),
        )?,
        Row::computes::<(&Tensor, DType), _, _>(
            ("aten::to", ""),
            "Tensor self, ScalarType dtype",
            |_| (),
            to,
            layers(gradients::same, vmap::single),
            Naming::PartOf("astype"),
        )?,
        Row::view::<(&Tensor,)>(
            "aten::detach(Tensor(a) self) -> Tensor(a)",
            |_, (x,)| Ok(x.detach()),
            Layers {
                derivative: Rule::Given(Gradient::Detach),
                tangent: Rule::Refused("detaches its result"),
                ..layers(gradients::same, vmap::single)
            },
            Naming::Unnamed("`Tensor.detach` calls it"),
        )?,
        Row::view::<(&Tensor,)>(
            "aten::alias(Tensor(a) self) -> Tensor(a)",
            |_, (x,)| Ok(x.detach()),
            layers(gradients::same, vmap::single),
            Naming::Unnamed("Autograd calls it"),
        )?,
        Row::view::<(&Tensor, i64, i64)>(
            "aten::transpose(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
            |op, (x, a, b)| op.at(x.transpose(a, b)),
            layers(gradients::transpose, batching::transpose),
            Naming::PartOf("matrix_transpose"),
        )?,
        Row::view::<(&Tensor, IntList)>(
            "aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)",
            |op, (x, dims)| op.at(x.permute(&dims)),
            layers(gradients::permute, batching::permute),
            named(
                "permute_dims",
                "Tensor x, int[] axes",
                "Return the array with its dimensions in another order: a view.",
            ),
        )?,
        Row::view::<(&Tensor, i64)>(
            "aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)",
            |op, (x, dim)| op.at(x.unsqueeze(dim)),
            layers(gradients::reshape, batching::unsqueeze),
            named(
                "expand_dims",
                "Tensor x, int axis=0",
                "Return the array with a dimension of size 1 more, at `axis`: a view.",
            ),
        )?,
        Row::view::<(&Tensor,)>(
            "aten::squeeze(Tensor(a) self) -> Tensor(a)",
            |op, (x,)| squeeze(op, x),
            layers(gradients::reshape, batching::squeeze),
            Naming::PartOf("squeeze"),
        )?,
        Row::view::<(&Tensor, i64)>(
            "aten::squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)",
            |op, (x, dim)| op.at(x.squeeze(dim)),
            layers(gradients::reshape, batching::one_dim),
            Naming::PartOf("squeeze"),
        )?,
        Row::view::<(&Tensor, IntList)>(
            "aten::expand(Tensor(a) self, int[] size) -> Tensor(a)",
            |op, (x, size)| expand(op, x, &size),
            layers(gradients::same, batching::expand),
            Naming::PartOf("broadcast_to"),
        )?,
        Row::view::<(&Tensor, IntList)>(
            "aten::flip(Tensor(a) self, int[] dims) -> Tensor(a)",
            |op, (x, dims)| op.at(x.flip(&dims)),
            layers(gradients::flip, batching::flip),
            Naming::PartOf("flip"),
        )?,
        Row::view::<(&Tensor, i64, i64)>(
            "aten::select.int(Tensor(a) self, int dim, int index) -> Tensor(a)",
            |op, (x, dim, at)| op.at(x.select(dim, at)),
            layers(gradients::select, batching::one_dim),
            Naming::Unnamed("`x[...]` calls it"),
        )?,
        Row::view::<(&Tensor, i64, Option<i64>, Option<i64>, i64)>(
            "aten::slice.Tensor(Tensor(a) self, int dim=0, int? start=None, int? end=None, \
             int step=1) -> Tensor(a)",
            |op, (x, dim, start, end, step)| op.at(x.slice(dim, start, end, step)),
            layers(gradients::slice, batching::one_dim),
            Naming::Unnamed("`x[...]` calls it"),
        )?,
    ];
    rows.extend(concat::rows()?);
    rows.extend(split::rows()?);
    Ok(rows)
}
