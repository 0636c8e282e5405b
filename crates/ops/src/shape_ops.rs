//! Other shapes of the same elements: views where that is possible, and copies.
//!
//! These take every dtype, since they compute nothing.

use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_dispatch::Kernel;
use keyfold_tensor::{IntList, SameAs, Tensor};

use crate::elementwise::check_out;
use crate::map::cast;
use crate::op::{Op, Registrar};
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

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    ops.op("aten::reshape(Tensor(a) self, int[] shape) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor, shape: IntList| op.at(x.reshape(&shape)))
    })?;
    ops.op("aten::contiguous(Tensor(a) self) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor| contiguous(&op, x))
    })?;
    ops.with_out(
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
    )?;
    ops.op("aten::to(Tensor self, ScalarType dtype) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor, dtype: DType| cast(&op, x, dtype))
    })?;
    ops.view("aten::detach(Tensor(a) self) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor| op.at(Ok(x.detach())))
    })?;
    ops.view("aten::alias(Tensor(a) self) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor| op.at(Ok(x.detach())))
    })?;
    ops.view("aten::transpose(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor, a: i64, b: i64| op.at(x.transpose(a, b)))
    })?;
    ops.view("aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor, dims: IntList| op.at(x.permute(&dims)))
    })?;
    ops.view("aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor, dim: i64| op.at(x.unsqueeze(dim)))
    })?;
    ops.view("aten::squeeze(Tensor(a) self) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor| squeeze(&op, x))
    })?;
    ops.view("aten::squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor, dim: i64| op.at(x.squeeze(dim)))
    })?;
    ops.view("aten::expand(Tensor(a) self, int[] size) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor, size: IntList| expand(&op, x, &size))
    })?;
    ops.view("aten::flip(Tensor(a) self, int[] dims) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor, dims: IntList| op.at(x.flip(&dims)))
    })?;
    ops.view("aten::select.int(Tensor(a) self, int dim, int index) -> Tensor(a)", |op| {
        Kernel::typed(move |x: &Tensor, dim: i64, index: i64| op.at(x.select(dim, index)))
    })?;
    ops.view(
        "aten::slice.Tensor(Tensor(a) self, int dim=0, int? start=None, int? end=None, \
         int step=1) -> Tensor(a)",
        |op| {
            Kernel::typed(
                move |x: &Tensor, dim: i64, start: Option<i64>, end: Option<i64>, step: i64| {
                    op.at(x.slice(dim, start, end, step))
                },
            )
        },
    )
}
