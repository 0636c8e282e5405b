//! `cat`, `stack`, `select_scatter` and `slice_scatter`. They support every dtype.

use keyfold_core::{DType, ErrorKind, Result, Shape, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Vjp;
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, TensorList};

use super::{concat_batching as batching, concat_gradients as gradients};
use crate::in_place::write_part;
use crate::infer::{AnyStrides, Call, CallPlan, Run};
use crate::jvp::LINEAR;
use crate::naming::{Naming, named};
use crate::op::Op;
use crate::promote::check_assignable;
use crate::row::{Batching, Layers, Row, Rule};
use crate::vjp::{READS_NOTHING, formula};

/// Returns the tensors of a list, which mustn't be empty, and the dtype that they promote to.
fn read<'a>(op: &Op, list: TensorList<'a>) -> Result<(Vec<&'a Tensor>, DType)> {
    let tensors = op.at(list.iter().collect::<Result<Vec<_>>>())?;
    let dtype = tensors.iter().map(|t| t.dtype()).reduce(DType::promote);
    let Some(dtype) = dtype else {
        let message = "argument 'tensors' is an empty list; give one tensor or more";
        return Err(op.error(ErrorKind::Shape, message));
    };
    Ok((tensors, dtype))
}

/// Concatenates the tensors along an existing dimension.
#[inline(always)]
fn cat(call: Call<'_, ()>, (list, dim): (TensorList<'_>, i64)) -> Result<CallPlan<impl Run>> {
    let (tensors, dtype) = read(&call, list)?;
    let first = tensors[0];
    if first.ndim() == 0 {
        let message = "tensors[0] has no dimension to be put together along; use aten::stack";
        return Err(call.error(ErrorKind::Shape, message));
    }
    let axis = call.at(layout::normalize_axis(dim, first.ndim()))?;
    let mut shape = first.shape().clone();
    for (i, tensor) in tensors.iter().enumerate().skip(1) {
        let (given, wanted) = (tensor.shape(), first.shape());
        let fits = given.len() == wanted.len()
            && (0..wanted.len()).all(|d| d == axis || given[d] == wanted[d]);
        if !fits {
            let message = format!(
                "tensors[{i}] has shape {given:?}, which must be that of tensors[0], {wanted:?}, but \
                 along dimension {axis}"
            );
            return Err(call.error(ErrorKind::Shape, message));
        }
        shape[axis] = shape[axis].saturating_add(given[axis]);
    }
    let device = call.device_of(first);
    let run = move |op: &Op, out: &Tensor| {
        let mut start = 0;
        for tensor in tensors {
            let end = start + tensor.shape()[axis] as i64;
            write_part(op, &op.at(out.slice(axis as i64, Some(start), Some(end), 1))?, tensor)?;
            start = end;
        }
        Ok(())
    };
    Ok(CallPlan::new(device, shape, dtype, AnyStrides(run)))
}

/// Stacks the tensors along a new dimension.
#[inline(always)]
fn stack(call: Call<'_, ()>, (list, dim): (TensorList<'_>, i64)) -> Result<CallPlan<impl Run>> {
    let (tensors, dtype) = read(&call, list)?;
    let first = tensors[0];
    let axis = call.at(layout::normalize_axis(dim, first.ndim() + 1))?;
    if let Some(i) = tensors.iter().position(|t| t.shape() != first.shape()) {
        let (given, wanted) = (tensors[i].shape(), first.shape());
        let message = format!(
            "tensors[{i}] has shape {given:?}, which must be that of tensors[0], {wanted:?}"
        );
        return Err(call.error(ErrorKind::Shape, message));
    }
    let mut shape: Shape = first.shape().clone();
    call.at(shape.insert(axis, tensors.len()))?;
    let device = call.device_of(first);
    let run = move |op: &Op, out: &Tensor| {
        for (i, tensor) in tensors.into_iter().enumerate() {
            write_part(op, &op.at(out.select(axis as i64, i as i64))?, tensor)?;
        }
        Ok(())
    };
    Ok(CallPlan::new(device, shape, dtype, AnyStrides(run)))
}

/// Copies `x` and replaces the part that `part` selects by `source`.
fn scatter<'t, P: Fn(&Tensor) -> Result<Tensor>>(
    op: &Op,
    x: &'t Tensor,
    source: &'t Tensor,
    part: P,
) -> Result<CallPlan<impl Run + use<'t, P>>> {
    check_assignable(op, source.dtype(), x.dtype())?;
    let target = op.at(part(x))?;
    if target.shape() != source.shape() {
        let message = format!(
            "argument 'src' has shape {:?}, but the part of 'self' that it goes to has {:?}",
            source.shape(),
            target.shape()
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    let run = move |op: &Op, out: &Tensor| {
        // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
        op.at(unsafe { out.copy_from(x) })?;
        write_part(op, &op.at(part(out))?, source)
    };
    Ok(CallPlan::new(op.device_of(x), x.shape().clone(), x.dtype(), AnyStrides(run)))
}

fn select_scatter<'t>(
    call: Call<'_, ()>,
    (x, source, dim, index): (&'t Tensor, &'t Tensor, i64, i64),
) -> Result<CallPlan<impl Run>> {
    scatter(&call, x, source, move |out| out.select(dim, index))
}

type Slice<'a> = (&'a Tensor, &'a Tensor, i64, Option<i64>, Option<i64>, i64);

fn slice_scatter(
    call: Call<'_, ()>,
    (x, source, dim, start, end, step): Slice<'_>,
) -> Result<CallPlan<impl Run>> {
    scatter(&call, x, source, move |out| out.slice(dim, start, end, step))
}

/// Returns the rows of `cat`, `stack` and the scatters of views.
pub(super) fn rows() -> Result<Vec<Row>> {
    fn layers(vjp: Vjp, batching: vmap::Rule) -> Layers {
        let (derivative, batching) = (formula(READS_NOTHING, vjp), Batching::Rule(batching));
        let (tangent, batching) = (LINEAR, Rule::Given(batching));
        Layers { derivative, tangent, batching, autocast: Category::Widest }
    }
    Ok(vec![
        Row::computes::<(TensorList<'_>, i64), _, _>(
            ("aten::cat", ""),
            "Tensor[] tensors, int dim=0",
            |_| (),
            cat,
            layers(gradients::cat, batching::cat),
            Naming::PartOf("concat"),
        )?,
        Row::computes::<(TensorList<'_>, i64), _, _>(
            ("aten::stack", ""),
            "Tensor[] tensors, int dim=0",
            |_| (),
            stack,
            layers(gradients::stack, batching::stack),
            named(
                "stack",
                "Tensor[] arrays, int axis=0",
                "Return the arrays side by side along a new axis.\n\nRaises:\n    ShapeError: \
                 there are none, or their shapes differ.",
            ),
        )?,
        Row::computes::<(&Tensor, &Tensor, i64, i64), _, _>(
            ("aten::select_scatter", ""),
            "Tensor self, Tensor src, int dim, int index",
            |_| (),
            select_scatter,
            layers(gradients::select_scatter, batching::scatter),
            Naming::Unnamed("`x[...] = y` calls it"),
        )?,
        Row::computes::<Slice<'_>, _, _>(
            ("aten::slice_scatter", ""),
            "Tensor self, Tensor src, int dim=0, int? start=None, int? end=None, int step=1",
            |_| (),
            slice_scatter,
            layers(gradients::slice_scatter, batching::scatter),
            Naming::Unnamed("`x[...] = y` calls it"),
        )?,
    ])
}
