//! Tensors put together, and parts of a tensor replaced.
//!
//! These take every dtype, since they compute nothing.

use keyfold_core::{DType, ErrorKind, Result, Shape, layout};
use keyfold_dispatch::Kernel;
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Product;
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, TensorList};

use super::{join_batching as batching, join_gradients as gradients};
use crate::gradient::{NOTHING, given};
use crate::op::Op;
use crate::promote::check_assignable;
use crate::row::{Batching, Layers, Row, Rule};
use crate::write::place;

/// The tensors of a list, which mustn't be empty, and the dtype that they promote to.
fn read<'a>(op: &Op, list: TensorList<'a>) -> Result<(Vec<&'a Tensor>, DType)> {
    let tensors = op.at(list.iter().collect::<Result<Vec<_>>>())?;
    let dtype = tensors.iter().map(|t| t.dtype()).reduce(DType::promote);
    let Some(dtype) = dtype else {
        let message = "argument 'tensors' is an empty list; give one tensor or more";
        return Err(op.error(ErrorKind::Shape, message));
    };
    Ok((tensors, dtype))
}

/// The tensors one behind the other along a dimension that they have.
fn cat(op: &Op, list: TensorList<'_>, dim: i64) -> Result<Tensor> {
    let (tensors, dtype) = read(op, list)?;
    let first = tensors[0];
    if first.ndim() == 0 {
        let message = "tensors[0] has no dimension to be put together along; use aten::stack";
        return Err(op.error(ErrorKind::Shape, message));
    }
    let axis = op.at(layout::normalize_axis(dim, first.ndim()))?;
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
            return Err(op.error(ErrorKind::Shape, message));
        }
        shape[axis] = shape[axis].saturating_add(given[axis]);
    }
    let out = op.output(op.device_of(first), &shape, dtype)?;
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.shape()[axis] as i64;
        place(op, &op.at(out.slice(axis as i64, Some(start), Some(end), 1))?, tensor)?;
        start = end;
    }
    Ok(out)
}

/// The tensors side by side along a new dimension.
fn stack(op: &Op, list: TensorList<'_>, dim: i64) -> Result<Tensor> {
    let (tensors, dtype) = read(op, list)?;
    let first = tensors[0];
    let axis = op.at(layout::normalize_axis(dim, first.ndim() + 1))?;
    if let Some(i) = tensors.iter().position(|t| t.shape() != first.shape()) {
        let (given, wanted) = (tensors[i].shape(), first.shape());
        let message = format!(
            "tensors[{i}] has shape {given:?}, which must be that of tensors[0], {wanted:?}"
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    let mut shape: Shape = first.shape().clone();
    op.at(shape.insert(axis, tensors.len()))?;
    let out = op.output(op.device_of(first), &shape, dtype)?;
    for (i, tensor) in tensors.into_iter().enumerate() {
        place(op, &op.at(out.select(axis as i64, i as i64))?, tensor)?;
    }
    Ok(out)
}

/// A copy of `x` with `source` in the part that `part` picks.
fn scatter(
    op: &Op,
    x: &Tensor,
    source: &Tensor,
    part: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    check_assignable(op, source.dtype(), x.dtype())?;
    let out = op.at(x.copy())?;
    let target = op.at(part(&out))?;
    if target.shape() != source.shape() {
        let message = format!(
            "argument 'src' has shape {:?}, but the part of 'self' that it goes to has {:?}",
            source.shape(),
            target.shape()
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    place(op, &target, source)?;
    Ok(out)
}

/// The rows of joins, and of copies in which a part is replaced.
pub(super) fn rows() -> Result<Vec<Row>> {
    fn layers(product: Product, batching: vmap::Rule) -> Layers {
        let (derivative, batching) = (given(NOTHING, product), Batching::Rule(batching));
        Layers { derivative, batching: Rule::Given(batching), autocast: Category::Widest }
    }
    Ok(vec![
        Row::computes(
            "aten::cat(Tensor[] tensors, int dim=0) -> Tensor",
            |op| Kernel::typed(move |tensors: TensorList<'_>, dim: i64| cat(&op, tensors, dim)),
            layers(gradients::cat, batching::cat),
        )?,
        Row::computes(
            "aten::stack(Tensor[] tensors, int dim=0) -> Tensor",
            |op| Kernel::typed(move |tensors: TensorList<'_>, dim: i64| stack(&op, tensors, dim)),
            layers(gradients::stack, batching::stack),
        )?,
        Row::computes(
            "aten::select_scatter(Tensor self, Tensor src, int dim, int index) -> Tensor",
            |op| {
                Kernel::typed(move |x: &Tensor, source: &Tensor, dim: i64, index: i64| {
                    scatter(&op, x, source, |out| out.select(dim, index))
                })
            },
            layers(gradients::select_scatter, batching::scatter),
        )?,
        Row::computes(
            "aten::slice_scatter(Tensor self, Tensor src, int dim=0, int? start=None, \
             int? end=None, int step=1) -> Tensor",
            |op| {
                Kernel::typed(
                    move |x: &Tensor,
                          source: &Tensor,
                          dim: i64,
                          start: Option<i64>,
                          end: Option<i64>,
                          step: i64| {
                        scatter(&op, x, source, |out| out.slice(dim, start, end, step))
                    },
                )
            },
            layers(gradients::slice_scatter, batching::scatter),
        )?,
    ])
}
