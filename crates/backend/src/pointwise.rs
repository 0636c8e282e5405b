//! Pointwise expressions.

use std::sync::Arc;

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar, Shape};
use keyfold_expr::Lowered;
use keyfold_expr::fuse::{Fused, Limits};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use crate::primitives::{Primitives, step_by_step};
use crate::{GpuBackend, Offer, Tiles};

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

/// A group of expressions compiled for certain dtypes.
pub trait GroupKernel: Send + Sync {
    /// Computes all results of the group, one in each of `outs`, which have one shape and the results'
    /// dtypes. The inputs are as for [`PointwiseKernel::run`]: one that is read element by element may
    /// be one of the outputs.
    ///
    /// # Errors
    /// As [`PointwiseKernel::run`]; [`keyfold_core::ErrorKind::Value`] for outputs that share memory.
    ///
    /// # Safety
    /// As [`PointwiseKernel::run`], for each output.
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], outs: &[&Tensor]) -> Result<()>;
}

/// A backend that compiles expressions.
pub trait Expressions: Send + Sync {
    /// Returns the kernel of an expression. The operator caches it, so that calls don't compile.
    fn prepare(&self, lowered: &Lowered) -> Offer<Arc<dyn PointwiseKernel>>;

    /// Returns the kernel of a group with several results, which makes one pass over its inputs.
    fn prepare_group(&self, fused: &Fused) -> Offer<Arc<dyn GroupKernel>>;

    /// Returns the size of the groups that its kernels are fast for.
    /// [`Limits::results`] is 1 if [`Expressions::prepare_group`] offers nothing.
    fn limits(&self) -> Limits;

    /// Returns its computation tile by tile; `None` if it gains nothing from tiles.
    fn tiles(&self) -> Option<&dyn Tiles>;
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

/// Returns the kernel of a group on a backend. A group with one result is that result's expression,
/// which [`prepare`] takes, too; several results need a backend that computes them in one pass.
pub fn prepare_group(backend: &Arc<dyn GpuBackend>, fused: &Fused) -> Offer<Arc<dyn GroupKernel>> {
    match backend.pointwise() {
        // Whether functions of complex64 are computed in float64 depends on all primitives of an
        // expression, so one member could change another one's digits.
        Some(Pointwise::Primitives(_)) if fused.steps().iter().any(|s| s.dtype == DType::C64) => {
            Offer::No("its primitives compute complex64 for each expression alone".into())
        }
        Some(_) if fused.results().len() == 1 => {
            prepare(backend, &fused.program(0)).map(|kernel| Arc::new(OneResult(kernel)) as _)
        }
        Some(Pointwise::Expressions(expressions)) => expressions.prepare_group(fused),
        Some(Pointwise::Primitives(_)) => {
            Offer::No("it runs primitives, of one result each".into())
        }
        None => Offer::No("it computes no expressions".into()),
    }
}

/// Computes a group's results into new tensors of this shape, one of each dtype.
///
/// # Errors
/// Those of the allocation, and as [`GroupKernel::run`].
pub fn compute_group(
    kernel: &dyn GroupKernel,
    inputs: &[&Tensor],
    params: &[Scalar],
    (device, shape, dtypes): (Device, &Shape, &[DType]),
) -> Result<Vec<Tensor>> {
    let empty = |dtype: &DType| Tensor::empty_of(shape.clone(), *dtype, device);
    let outs = dtypes.iter().map(empty).collect::<Result<Vec<_>>>()?;
    // SAFETY: the outputs were allocated here, and nothing else refers to them.
    unsafe { kernel.run(inputs, params, &outs.iter().collect::<SmallVec<[_; 4]>>()) }?;
    Ok(outs)
}

/// Returns the size of the groups that a backend's kernels are made for.
pub fn fusion_limits(backend: &dyn GpuBackend) -> Limits {
    match backend.pointwise() {
        Some(Pointwise::Expressions(expressions)) => expressions.limits(),
        _ => Limits { results: 1, ..Limits::default() },
    }
}

/// A group with one result.
struct OneResult(Arc<dyn PointwiseKernel>);

impl GroupKernel for OneResult {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], outs: &[&Tensor]) -> Result<()> {
        let [out] = outs else {
            let message = format!("the group has 1 result, but {} outputs were given", outs.len());
            return Err(Error::new(ErrorKind::Binding, message));
        };
        // SAFETY: the caller's promise.
        unsafe { self.0.run(inputs, params, out) }
    }
}
