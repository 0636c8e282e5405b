//! The interface that a device implements to run keyfold's operators.
//!
//! A [`GpuBackend`] has a [`Memory`], which moves bytes, and groups of operations, one trait each:
//! [`Reduce`], [`Rows`], [`Scan`], [`Linalg`], [`Index`], [`Random`], those of [`Groups`], and [`Pointwise`] for
//! expressions, as a whole or as the [`primitives`] they are lowered to. Operation and dtypes are data. A group
//! returns an [`Offer`]: the object that launches the kernel, or the reason why there is none. So
//! the operations that a backend claims are those that it runs, and a table of them is made by
//! querying it.
//!
//! [`register`] registers a backend for a device type; observers of the registry ([`observe`]) give
//! operators their kernels.
//!
//! Feature `delayed` adds a device for tests (module `delayed`), which exposes code that reads too
//! early, frees too early, or copies to the host without a request.

mod activation;
mod attention;
mod convolution;
mod decomposition;
#[cfg(feature = "delayed")]
pub mod delayed;
mod dropout;
mod fallback;
mod field;
mod group;
mod index;
mod linalg;
mod linear;
mod norm;
mod offer;
mod operation;
mod optim;
mod pointwise;
mod pool;
pub mod primitives;
mod random;
mod recurrent;
mod reduce;
mod registry;
mod rows;
mod scan;
mod tiles;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use keyfold_core::Result;
use keyfold_tensor::Tensor;
use keyfold_tensor::device::Memory;

pub use activation::Activation;
pub use attention::AttentionParams;
pub use convolution::ConvolutionParams;
pub use decomposition::DecompositionParams;
pub use dropout::DropoutParams;
pub use fallback::{
    Fallback, allow_fallback, fallback_of, fallbacks, note_fallback, observe_fallbacks,
};
pub use field::Field;
pub use group::{AllKernels, Execute, Group, Groups, Kernels, Params};
pub use index::{Index, IndexParams, Positions};
pub use linalg::Linalg;
pub use linear::{LinearFactor, LinearParams};
pub use norm::NormParams;
pub use offer::{Cost, Offer, Reason, Support, not_supported};
pub use operation::Operation;
pub use optim::OptimParams;
pub use pointwise::{
    Expressions, GroupKernel, Pointwise, PointwiseKernel, compute_group, fusion_limits, prepare,
    prepare_group,
};
pub use pool::PoolParams;
pub use random::{Random, RandomParams};
pub use recurrent::RecurrentParams;
pub use reduce::{Reduce, ReduceParams};
pub use registry::{
    Observer, Refused, Registration, backend, backends, has_backend, observe, register,
};
pub use rows::{RowParams, Rows};
pub use scan::{Scan, ScanParams};
pub use tiles::{
    Broadcast, Cut, Part, PartCut, Partial, RangeInput, ReduceParts, RowBytes, RowCut, Tiles,
    Whole, compute_parts, compute_range, join_parts, tiles_of,
};

/// A device's implementation of the operators.
///
/// A group that the device lacks is `None`; there is no default implementation, so that leaving one
/// out is explicit.
pub trait GpuBackend: Any + Send + Sync + fmt::Debug {
    /// Returns the name that errors and tables show.
    fn name(&self) -> &str;

    /// Returns the memory of its devices.
    fn memory(&self) -> Arc<dyn Memory>;

    /// Returns the concrete backend, to access its own API.
    fn as_any(&self) -> &dyn Any;

    /// Returns the implementation of pointwise expressions.
    fn pointwise(&self) -> Option<Pointwise<'_>>;

    /// Returns the reductions along dimensions.
    fn reduce(&self) -> Option<&dyn Reduce>;

    /// Returns the operations on the lanes along one dimension that keep the shape: softmax.
    fn rows(&self) -> Option<&dyn Rows>;

    /// Returns the cumulative operations along one dimension.
    fn scan(&self) -> Option<&dyn Scan>;

    /// Returns the matrix products.
    fn linalg(&self) -> Option<&dyn Linalg>;

    /// Returns the indexing operations.
    fn index(&self) -> Option<&dyn Index>;

    /// Returns the generators of random numbers.
    fn random(&self) -> Option<&dyn Random>;

    /// Returns the groups whose operations have any number of inputs and outputs: networks, optimizers,
    /// decompositions. [`Groups::NONE`] for a backend without them.
    fn groups(&self) -> Groups<'_>;
}

/// A kernel, selected for an operation and dtypes. Its parameters repeat the operation, and tensors
/// have their dtypes, so one object can serve as the kernel of them all.
pub trait Launch<P>: Send + Sync {
    /// Runs the kernel, or queues it on the current stream of the output's device.
    ///
    /// The caller has checked shapes, dtypes and devices against the group's contract.
    ///
    /// # Errors
    /// The device's errors; [`keyfold_core::ErrorKind::Index`] for positions out of range.
    ///
    /// # Safety
    /// Until the kernel has run, nothing else accesses the memory of `out`, except for later
    /// operations on the same stream, and no input overlaps it.
    unsafe fn launch(&self, params: &P, inputs: &[&Tensor], out: &Tensor) -> Result<()>;
}
