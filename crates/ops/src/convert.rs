//! Conversions between dtypes, and the shape of what broadcasts.

use keyfold_core::{DType, ErrorKind, Result, Shape, layout};
use keyfold_expr::{Expr, Graph, Input, Node};
use keyfold_tensor::{Overlap, Tensor, overlap};

use crate::cow::TensorCow;
use crate::infer::{AnyStrides, CallPlan, Run};
use crate::op::Op;
use crate::pointwise::{check_apart, prepare};

/// The element as it is: what a conversion of dtypes computes.
pub(crate) fn identity_expr() -> Expr {
    let mut graph = Graph::default();
    let root = graph.add(Node::Input(0));
    let input = Input { name: "self".to_owned(), rank: None };
    Expr::new(&graph, root, vec![input], Vec::new())
}

/// A fresh, contiguous tensor with the elements converted to another dtype.
///
/// # Errors
/// As [`conversion`].
pub(crate) fn cast(op: &Op, x: &Tensor, dtype: DType) -> Result<Tensor> {
    conversion(op, x, dtype)?.fresh(op)
}

/// The elements converted to another dtype.
///
/// Floats to whole numbers truncate towards zero and saturate; anything but zero is true.
///
/// # Errors
/// [`ErrorKind::DType`] from complex to real numbers, which would drop the imaginary parts.
pub(crate) fn conversion<'x>(
    op: &Op,
    x: &'x Tensor,
    dtype: DType,
) -> Result<CallPlan<impl Run + use<'x>>> {
    if x.dtype().is_complex() && !dtype.is_complex() && dtype != DType::Bool {
        let message = format!("{} to {dtype} would drop the imaginary parts", x.dtype());
        return Err(op.error(ErrorKind::DType, message));
    }
    let run = AnyStrides(move |op: &Op, out: &Tensor| {
        // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
        unsafe { convert_apart(op, x, out) }
    });
    Ok(CallPlan::new(op.device_of(x), x.shape().clone(), dtype, run))
}

/// Writes the elements of `x`, broadcast and converted, into `out`, unless on Meta.
///
/// # Errors
/// As [`cast`], [`ErrorKind::Shape`] where `x` doesn't broadcast to the shape of `out`,
/// [`ErrorKind::ReadOnly`], and [`ErrorKind::Value`] where elements of `out` share memory.
///
/// # Safety
/// Nobody else uses the memory of `out` meanwhile, and no slice of it is alive.
pub(crate) unsafe fn write_converted(op: &Op, x: &Tensor, out: &Tensor) -> Result<()> {
    if x.shape() != out.shape() {
        op.at(layout::broadcast_strides(x.shape(), x.strides(), out.shape()))?;
    }
    let Some(runner) = op.runner() else { return Ok(()) };
    // The host's kernels look at this themselves; others, which may run late, needn't.
    if !runner.kind.is_host() {
        op.at(out.check_writable())?;
        check_apart(op.name, "self", out)?;
    }
    let copy;
    let source = match op.at(overlap(out, x))? {
        // What is written over while it is read is read from a copy.
        Overlap::Partial => {
            copy = op.at(x.copy())?;
            &copy
        }
        _ => x,
    };
    // SAFETY: the caller's promise.
    unsafe { convert_apart(op, source, out) }
}

/// Writes the elements of `x`, broadcast and converted, into `out`, which overlaps `x` nowhere or is the
/// same view; unless on Meta.
///
/// # Errors
/// Those of the backend.
///
/// # Safety
/// As [`write`]; `out` is writable and its elements share no memory.
#[inline]
unsafe fn convert_apart(op: &Op, x: &Tensor, out: &Tensor) -> Result<()> {
    let Some(runner) = op.runner() else { return Ok(()) };
    let make = |lowered| prepare(op, &lowered);
    let prepared = op.at(runner.conversions.get(&[x.dtype()], &[], Some(out.dtype()), make))?;
    let Some(kernel) = &prepared.kernel else { return Ok(()) };
    // SAFETY: the caller's promise.
    op.at(unsafe { kernel.run(&[x], &[], out) })
}

/// The tensor with its elements converted, itself where there is nothing to convert.
///
/// # Errors
/// As [`cast`].
pub(crate) fn to_dtype<'a>(op: &Op, x: &'a Tensor, dtype: DType) -> Result<TensorCow<'a>> {
    if x.dtype() == dtype {
        return Ok(TensorCow::Borrowed(x));
    }
    cast(op, x, dtype).map(TensorCow::from)
}

/// The shape of the result of operands that broadcast together.
pub(crate) fn broadcast_shape(op: &Op, shapes: &[&[usize]]) -> Result<Shape> {
    let mut all = Shape::empty();
    for shape in shapes {
        all = op.at(layout::broadcast_shapes(&all, shape))?;
    }
    Ok(all)
}
