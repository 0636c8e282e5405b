//! What a device implements to run keyfold's operators.
//!
//! A [`GpuBackend`] has a [`Memory`], which moves bytes, and groups of operations, each a trait of its
//! own: [`Reduce`], [`Rows`], [`Linalg`], [`Index`], [`Random`], and for expressions [`Pointwise`]: whole
//! ones, or the [`primitives`] that they are made of. Which
//! operation, and on which dtypes, is data. A group answers with an [`Offer`]: the very object that
//! launches the kernel, or the reason why there is none. So what a backend claims and what it runs
//! can't differ, and a table of what it supports is made by asking.
//!
//! Backends are registered by type of device with [`register`]; who observes the registry
//! ([`observe`]) gives operators their kernels.
//!
//! With feature `delayed` comes a device for tests (module `delayed`), which shows each place that reads
//! too early, frees too early, or copies to the host unasked.

#[cfg(feature = "delayed")]
pub mod delayed;
mod fallback;
mod index;
mod linalg;
mod offer;
mod pointwise;
pub mod primitives;
mod random;
mod reduce;
mod registry;
mod rows;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use keyfold_core::Result;
use keyfold_tensor::Tensor;
use keyfold_tensor::device::Memory;

pub use fallback::{
    Fallback, allow_fallback, fallback_of, fallbacks, note_fallback, observe_fallbacks,
};
pub use index::{Index, IndexOp, IndexParams, Positions};
pub use linalg::Linalg;
pub use offer::{Cost, Offer, Reason, Support, not_supported};
pub use pointwise::{Expressions, Pointwise, PointwiseKernel, prepare};
pub use random::{Random, RandomOp, RandomParams};
pub use reduce::{Reduce, ReduceOp, ReduceParams};
pub use registry::{
    Observer, Refused, Registration, backend, backends, has_backend, observe, register,
};
pub use rows::{RowOp, RowParams, Rows};

/// A device's implementation of the operators.
///
/// A group that the device doesn't have is `None`; there is no default, so that leaving one out is a
/// decision.
pub trait GpuBackend: Any + Send + Sync + fmt::Debug {
    /// The name that errors and tables show.
    fn name(&self) -> &str;

    /// The memory of its devices.
    fn memory(&self) -> Arc<dyn Memory>;

    /// The concrete backend, for what only it has.
    fn as_any(&self) -> &dyn Any;

    /// Expressions, element by element.
    fn pointwise(&self) -> Option<Pointwise<'_>>;

    /// Reductions along dimensions.
    fn reduce(&self) -> Option<&dyn Reduce>;

    /// Operations on the lanes along one dimension, of the input's shape: softmax.
    fn rows(&self) -> Option<&dyn Rows>;

    /// Matrix products.
    fn linalg(&self) -> Option<&dyn Linalg>;

    /// Elements read and written at positions.
    fn index(&self) -> Option<&dyn Index>;

    /// Random numbers.
    fn random(&self) -> Option<&dyn Random>;
}

/// A kernel, chosen for an operation and dtypes. The parameters name the operation again, and tensors
/// have dtypes: so a backend can be its own kernel, for all of them.
pub trait Launch<P>: Send + Sync {
    /// Queues the kernel on the current stream of the output's device, or runs it.
    ///
    /// Shapes, dtypes and devices are as the group's method says; the caller checked them.
    ///
    /// # Errors
    /// What the device reports; [`keyfold_core::ErrorKind::Index`] for positions out of range.
    ///
    /// # Safety
    /// Nobody else uses the memory of `out` until the kernel ran, except for operations behind it on
    /// the same stream, and it shares none with an input.
    unsafe fn launch(&self, params: &P, inputs: &[&Tensor], out: &Tensor) -> Result<()>;
}
