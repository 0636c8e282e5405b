//! Pointwise expressions.

use std::sync::Arc;

use keyfold_core::{Result, Scalar};
use keyfold_expr::Lowered;
use keyfold_tensor::Tensor;

use crate::primitives::{Primitives, step_by_step};
use crate::{GpuBackend, Offer};

/// An expression compiled for certain dtypes.
pub trait PointwiseKernel: Send + Sync {
    /// Evaluates the expression for each element of `out`, which has its result dtype. The inputs
    /// have the number and dtypes of the compiled expression, and broadcast to the shape of `out`
    /// or are read at computed indices. An input that is read element by element may be `out`
    /// itself.
    ///
    /// # Errors
    /// The device's errors; [`keyfold_core::ErrorKind::Value`] for a number that its dtype can't
    /// hold.
    ///
    /// # Safety
    /// Until the kernel has run, nothing else accesses the memory of `out`, except for later
    /// operations on the same stream. No input overlaps it, unless it has the same elements in the
    /// same order.
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) -> Result<()>;
}

/// A backend that compiles expressions.
pub trait Expressions: Send + Sync {
    /// Returns the kernel of an expression. The operator caches it, so that calls don't compile.
    fn prepare(&self, lowered: &Lowered) -> Offer<Arc<dyn PointwiseKernel>>;
}

/// A backend's implementation of expressions.
#[derive(Clone, Copy)]
pub enum Pointwise<'a> {
    /// It compiles them.
    Expressions(&'a dyn Expressions),
    /// It has primitives: expressions run step by step, with temporaries.
    Primitives(&'a dyn Primitives),
}

/// Returns the kernel of an expression on a backend: the compiled one, or a sequence of its
/// primitives. The reason for a refusal names a missing primitive.
pub fn prepare(
    backend: &Arc<dyn GpuBackend>,
    lowered: &Lowered,
) -> Offer<Arc<dyn PointwiseKernel>> {
    match backend.pointwise() {
        Some(Pointwise::Expressions(expressions)) => expressions.prepare(lowered),
        Some(Pointwise::Primitives(primitives)) => step_by_step(backend, primitives, lowered),
        None => Offer::No("it computes no expressions".into()),
    }
}
