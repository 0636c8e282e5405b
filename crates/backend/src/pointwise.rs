//! Expressions, element by element.

use std::sync::Arc;

use keyfold_core::{Result, Scalar};
use keyfold_expr::Lowered;
use keyfold_tensor::Tensor;

use crate::primitives::{Primitives, step_by_step};
use crate::{GpuBackend, Offer};

/// An expression for certain dtypes, ready to be launched.
pub trait PointwiseKernel: Send + Sync {
    /// Writes the value of the expression for each element of `out`, which has the expression's result
    /// dtype. Inputs broadcast to its shape, or are read at computed indices, and are as many and of the
    /// dtypes that the kernel was prepared for. An input may be `out` itself where it is read element by
    /// element.
    ///
    /// # Errors
    /// What the device reports; [`keyfold_core::ErrorKind::Value`] for a number that its dtype can't hold.
    ///
    /// # Safety
    /// Nobody else uses the memory of `out` until the kernel ran, except for operations behind it on the
    /// same stream. An input shares no memory with it, unless it is the same elements in the same order.
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) -> Result<()>;
}

/// A backend that takes whole expressions.
pub trait Expressions: Send + Sync {
    /// The kernel of an expression. It is kept by the operator: a call asks for none.
    fn prepare(&self, lowered: &Lowered) -> Offer<Arc<dyn PointwiseKernel>>;
}

/// How a backend computes expressions.
#[derive(Clone, Copy)]
pub enum Pointwise<'a> {
    /// It takes them whole.
    Expressions(&'a dyn Expressions),
    /// It has primitives: expressions run step by step, with temporaries.
    Primitives(&'a dyn Primitives),
}

/// The kernel of an expression on a backend: the backend's own, or the steps of its primitives, of which the
/// reason names one that lacks.
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
