//! Other shapes of the same elements: views where that is possible, and copies.
//!
//! These take every dtype, since they compute nothing.

mod batching;
pub(crate) mod gradients;
mod join;
mod join_batching;
mod join_gradients;

use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_dispatch::Kernel;
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Product;
use keyfold_layers::vmap;
use keyfold_tensor::{IntList, SameAs, Tensor};

use crate::elementwise::check_out;
use crate::gradient::{NOTHING, given};
use crate::map::cast;
use crate::op::Op;
use crate::row::{Batching, Gradient, Layers, Row, Rule};
use crate::write::assign;

/// Broadcasts to those sizes, of which -1 keeps the dimension as it is.
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
    // An element that stands in several places can't be written in one of them.
    Ok(if view.numel() > x.numel() { view.into_read_only() } else { view })
}

/// Without the dimensions of size 1.
fn squeeze(op: &Op, x: &Tensor) -> Result<Tensor> {
    let mut x = x.detach();
    for axis in (0..x.ndim()).rev() {
        if x.shape()[axis] == 1 {
            x = op.at(x.squeeze(axis as i64))?;
        }
    }
    Ok(x)
}

/// The elements in row-major order: a view if they lie so.
fn contiguous(op: &Op, x: &Tensor) -> Result<Tensor> {
    if x.is_contiguous() { Ok(x.detach()) } else { cast(op, x, x.dtype()) }
}

/// The rows of shapes.
pub(crate) fn rows() -> Result<Vec<Row>> {
    fn layers(product: Product, batching: vmap::Rule) -> Layers {
        let (derivative, batching) = (given(NOTHING, product), Batching::Rule(batching));
        Layers { derivative, batching: Rule::Given(batching), autocast: Category::Leave }
    }
    let mut rows = vec![
        Row::computes(
            "aten::reshape(Tensor(a) self, int[] shape) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor, shape: IntList| op.at(x.reshape(&shape))),
            layers(gradients::reshaped, batching::reshape),
        )?,
        Row::computes(
            "aten::contiguous(Tensor(a) self) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor| contiguous(&op, x)),
            layers(gradients::same, batching::contiguous),
        )?,
        Row::with_out(
            ("aten::clone", ""),
            "Tensor self",
            |op| Kernel::typed(move |x: &Tensor| cast(&op, x, x.dtype())),
            |op| {
                Kernel::typed(move |x: &Tensor, out: &Tensor| {
                    check_out(&op, out, x.shape(), x.dtype())?;
                    assign(&op, out, x)?;
                    Ok::<_, Error>(SameAs(1))
                })
            },
            layers(gradients::same, vmap::single),
        )?,
        Row::computes(
            "aten::to(Tensor self, ScalarType dtype) -> Tensor",
            |op| Kernel::typed(move |x: &Tensor, dtype: DType| cast(&op, x, dtype)),
            layers(gradients::same, vmap::single),
        )?,
        Row::light(
            "aten::detach(Tensor(a) self) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor| op.at(Ok(x.detach()))),
            Layers {
                derivative: Rule::Given(Gradient::Cut),
                ..layers(gradients::same, vmap::single)
            },
        )?,
        Row::light(
            "aten::alias(Tensor(a) self) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor| op.at(Ok(x.detach()))),
            layers(gradients::same, vmap::single),
        )?,
        Row::light(
            "aten::transpose(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor, a: i64, b: i64| op.at(x.transpose(a, b))),
            layers(gradients::transpose, batching::transpose),
        )?,
        Row::light(
            "aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor, dims: IntList| op.at(x.permute(&dims))),
            layers(gradients::permute, batching::permute),
        )?,
        Row::light(
            "aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor, dim: i64| op.at(x.unsqueeze(dim))),
            layers(gradients::reshaped, batching::unsqueeze),
        )?,
        Row::light(
            "aten::squeeze(Tensor(a) self) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor| squeeze(&op, x)),
            layers(gradients::reshaped, batching::squeeze),
        )?,
        Row::light(
            "aten::squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor, dim: i64| op.at(x.squeeze(dim))),
            layers(gradients::reshaped, batching::one_dim),
        )?,
        Row::light(
            "aten::expand(Tensor(a) self, int[] size) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor, size: IntList| expand(&op, x, &size)),
            layers(gradients::same, batching::expand),
        )?,
        Row::light(
            "aten::flip(Tensor(a) self, int[] dims) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor, dims: IntList| op.at(x.flip(&dims))),
            layers(gradients::flip, batching::flip),
        )?,
        Row::light(
            "aten::select.int(Tensor(a) self, int dim, int index) -> Tensor(a)",
            |op| Kernel::typed(move |x: &Tensor, dim: i64, at: i64| op.at(x.select(dim, at))),
            layers(gradients::select, batching::one_dim),
        )?,
        Row::light(
            "aten::slice.Tensor(Tensor(a) self, int dim=0, int? start=None, int? end=None, \
             int step=1) -> Tensor(a)",
            |op| {
                Kernel::typed(
                    move |x: &Tensor, dim: i64, start: Option<i64>, end: Option<i64>, step: i64| {
                        op.at(x.slice(dim, start, end, step))
                    },
                )
            },
            layers(gradients::slice, batching::one_dim),
        )?,
    ];
    rows.extend(join::rows()?);
    Ok(rows)
}
