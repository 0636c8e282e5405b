//! Conversions between dtypes, and broadcast shapes.

use std::sync::{Arc, LazyLock};

use keyfold_core::{DType, ErrorKind, Result, Shape, layout};
use keyfold_expr::{Expr, Graph, Input, Node};
use keyfold_layers::pipeline::Evaluated;
use keyfold_tensor::{Overlap, Tensor, ValueRef, overlap};
use smallvec::SmallVec;

use crate::cow::TensorCow;
use crate::infer::{CallPlan, Run, positions};
use crate::op::Op;
use crate::pointwise::{check_apart, prepare};

/// The identity as an expression. A conversion evaluates it with another result dtype.
static IDENTITY: LazyLock<Arc<Expr>> = LazyLock::new(|| {
    let mut graph = Graph::default();
    let root = graph.add(Node::Input(0));
    let input = Input { name: "self".to_owned(), rank: None };
    Arc::new(Expr::new(&graph, root, vec![input], Vec::new()))
});

/// Returns the identity as an expression.
pub(crate) fn identity_expr() -> Arc<Expr> {
    IDENTITY.clone()
}

/// The conversion of a tensor's elements to another dtype.
struct Convert<'x> {
    x: &'x Tensor,
    dtype: DType,
}

impl Run for Convert<'_> {
    const ANY_STRIDES: bool = true;

    #[inline(always)]
    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { convert_apart(op, self.x, out) }
    }

    fn evaluates(&self, args: &[ValueRef<'_>]) -> Option<Box<Evaluated>> {
        let (inputs, params) = (positions(&[self.x], args)?, SmallVec::new());
        Some(Box::new(Evaluated { expr: identity_expr(), inputs, params, out: Some(self.dtype) }))
    }
}

/// Converts the elements to another dtype, into a new contiguous tensor.
///
/// # Errors
/// As [`conversion`].
pub(crate) fn cast(op: &Op, x: &Tensor, dtype: DType) -> Result<Tensor> {
    conversion(op, x, dtype)?.fresh(op)
}

/// Plans the conversion of the elements to another dtype.
///
/// Floats to integers truncate towards zero and saturate; every element but zero becomes true.
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
    Ok(CallPlan::new(op.device_of(x), x.shape().clone(), dtype, Convert { x, dtype }))
}

/// Writes the elements of `x`, broadcast and converted, into `out`, unless on Meta.
///
/// # Errors
/// As [`cast`], [`ErrorKind::Shape`] where `x` doesn't broadcast to the shape of `out`,
/// [`ErrorKind::ReadOnly`], and [`ErrorKind::Value`] where elements of `out` share memory.
///
/// # Safety
/// During the call nothing else uses the memory of `out`, and no slice of it is alive.
pub(crate) unsafe fn write_converted(op: &Op, x: &Tensor, out: &Tensor) -> Result<()> {
    if x.shape() != out.shape() {
        op.at(layout::broadcast_strides(x.shape(), x.strides(), out.shape()))?;
    }
    let Some(runner) = op.runner() else { return Ok(()) };
    // Kernels of the host check this themselves; those of other devices, which may run later, don't have to.
    if !runner.kind.is_host() {
        op.at(out.check_writable())?;
        check_apart(op.name, "self", out)?;
    }
    let copy;
    let source = match op.at(overlap(out, x))? {
        // A source that partly overlaps the target is read from a copy.
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
/// As [`write_converted`]; `out` is writable and its elements share no memory.
#[inline]
unsafe fn convert_apart(op: &Op, x: &Tensor, out: &Tensor) -> Result<()> {
    let Some(runner) = op.runner() else { return Ok(()) };
    let make = |lowered| prepare(op, &lowered);
    let prepared = op.at(runner.conversions.get(&[x.dtype()], &[], Some(out.dtype()), make))?;
    let Some(kernel) = &prepared.kernel else { return Ok(()) };
    // SAFETY: the caller's promise.
    op.at(unsafe { kernel.run(&[x], &[], out) })
}

/// Converts the elements to a dtype; returns the tensor itself if it has that dtype.
///
/// # Errors
/// As [`cast`].
pub(crate) fn to_dtype<'a>(op: &Op, x: &'a Tensor, dtype: DType) -> Result<TensorCow<'a>> {
    if x.dtype() == dtype {
        return Ok(TensorCow::Borrowed(x));
    }
    cast(op, x, dtype).map(TensorCow::from)
}

/// Returns the shape that these shapes broadcast to.
pub(crate) fn broadcast_shape(op: &Op, shapes: &[&[usize]]) -> Result<Shape> {
    let mut all = Shape::empty();
    for shape in shapes {
        all = op.at(layout::broadcast_shapes(&all, shape))?;
    }
    Ok(all)
}
