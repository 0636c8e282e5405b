//! Groups of operations with any number of inputs and outputs.
//!
//! Each group has parameters of its own, a struct that implements [`Params`], and kernels that are
//! offered by [`Kernels`] and run by [`Execute`]. So a wrapper of a backend implements all groups by
//! one generic function each, and [`Groups::offered_by`] puts it in their place.

use std::fmt::Debug;

use keyfold_core::{DType, Result};
use keyfold_tensor::Tensor;

use crate::{
    AttentionParams, ConvolutionParams, DecompositionParams, DropoutParams, Field, LinearParams,
    NormParams, Offer, Operation, OptimParams, PoolParams, RecurrentParams,
};

/// A group of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// [`GpuBackend::pointwise`](crate::GpuBackend::pointwise)
    Pointwise,
    /// [`GpuBackend::reduce`](crate::GpuBackend::reduce)
    Reduce,
    /// [`GpuBackend::rows`](crate::GpuBackend::rows)
    Rows,
    /// [`GpuBackend::scan`](crate::GpuBackend::scan)
    Scan,
    /// [`GpuBackend::linalg`](crate::GpuBackend::linalg)
    Linalg,
    /// [`GpuBackend::index`](crate::GpuBackend::index)
    Index,
    /// [`GpuBackend::random`](crate::GpuBackend::random)
    Random,
    /// [`Groups::norm`]
    Norm,
    /// [`Groups::linear`]
    Linear,
    /// [`Groups::convolution`]
    Convolution,
    /// [`Groups::pool`]
    Pool,
    /// [`Groups::attention`]
    Attention,
    /// [`Groups::recurrent`]
    Recurrent,
    /// [`Groups::optim`]
    Optim,
    /// [`Groups::decomposition`]
    Decomposition,
    /// [`Groups::dropout`]
    Dropout,
}

impl Group {
    /// All groups.
    pub const ALL: [Group; 16] = [
        Group::Pointwise,
        Group::Reduce,
        Group::Rows,
        Group::Scan,
        Group::Linalg,
        Group::Index,
        Group::Random,
        Group::Norm,
        Group::Linear,
        Group::Convolution,
        Group::Pool,
        Group::Attention,
        Group::Recurrent,
        Group::Optim,
        Group::Decomposition,
        Group::Dropout,
    ];

    /// Returns its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Group::Pointwise => "pointwise",
            Group::Reduce => "reduce",
            Group::Rows => "rows",
            Group::Scan => "scan",
            Group::Linalg => "linalg",
            Group::Index => "index",
            Group::Random => "random",
            Group::Norm => "norm",
            Group::Linear => "linear",
            Group::Convolution => "convolution",
            Group::Pool => "pool",
            Group::Attention => "attention",
            Group::Recurrent => "recurrent",
            Group::Optim => "optim",
            Group::Decomposition => "decomposition",
            Group::Dropout => "dropout",
        }
    }
}

/// The parameters of a group's operations, which say which of its optional tensors are there.
pub trait Params: Copy + Debug + Send + Sync + 'static {
    /// The group.
    const GROUP: Group;

    /// Returns the group's kernels.
    fn group<'a>(groups: &Groups<'a>) -> Option<&'a dyn Kernels<Self>>;

    /// Returns the operation.
    fn operation(&self) -> &'static Operation;

    /// Returns all parameters but the operation, each under its name in the struct, as backends in
    /// other languages get them. Names and their meaning stay; later versions may have more.
    fn fields(&self) -> Vec<(&'static str, Field)>;
}

/// The kernels of the operations with parameters `P`.
pub trait Kernels<P>: Send + Sync {
    /// Returns the kernel for inputs and outputs of these dtypes, in the order that the operation's
    /// documentation gives them; optional tensors that are absent are left out of both.
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<P>>;
}

/// A kernel with any number of inputs and outputs, selected for an operation and dtypes.
pub trait Execute<P>: Send + Sync {
    /// Runs the kernel, or queues it on the current stream of the outputs' device.
    ///
    /// The caller has checked shapes, dtypes and devices against the operation's contract. Outputs
    /// are written, and read too where the contract says so.
    ///
    /// # Errors
    /// The device's errors, and those that the contract names.
    ///
    /// # Safety
    /// Until the kernel has run, nothing else accesses the memory of the outputs, except for later
    /// operations on the same stream; no input and no other output overlaps one.
    unsafe fn execute(&self, params: &P, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()>;
}

/// The groups that a backend has; `None` for those that it lacks.
#[derive(Clone, Copy)]
pub struct Groups<'a> {
    /// Normalizations, and the backward of softmax.
    pub norm: Option<&'a dyn Kernels<NormParams>>,
    /// Matrix products with an epilogue, and products in mixed precision.
    pub linear: Option<&'a dyn Kernels<LinearParams>>,
    /// Convolutions and their gradients.
    pub convolution: Option<&'a dyn Kernels<ConvolutionParams>>,
    /// Pooling over windows, and its gradients.
    pub pool: Option<&'a dyn Kernels<PoolParams>>,
    /// Scaled-dot-product attention and its gradients.
    pub attention: Option<&'a dyn Kernels<AttentionParams>>,
    /// Cells of recurrent networks and their gradients.
    pub recurrent: Option<&'a dyn Kernels<RecurrentParams>>,
    /// Steps of optimizers, in place.
    pub optim: Option<&'a dyn Kernels<OptimParams>>,
    /// Decompositions of matrices, and linear systems.
    pub decomposition: Option<&'a dyn Kernels<DecompositionParams>>,
    /// Dropout by counter-based random numbers.
    pub dropout: Option<&'a dyn Kernels<DropoutParams>>,
}

/// All groups' kernels.
pub trait AllKernels:
    Kernels<NormParams>
    + Kernels<LinearParams>
    + Kernels<ConvolutionParams>
    + Kernels<PoolParams>
    + Kernels<AttentionParams>
    + Kernels<RecurrentParams>
    + Kernels<OptimParams>
    + Kernels<DecompositionParams>
    + Kernels<DropoutParams>
{
}

impl<T> AllKernels for T where
    T: Kernels<NormParams>
        + Kernels<LinearParams>
        + Kernels<ConvolutionParams>
        + Kernels<PoolParams>
        + Kernels<AttentionParams>
        + Kernels<RecurrentParams>
        + Kernels<OptimParams>
        + Kernels<DecompositionParams>
        + Kernels<DropoutParams>
{
}

impl<'a> Groups<'a> {
    /// No group.
    pub const NONE: Groups<'static> = Groups {
        norm: None,
        linear: None,
        convolution: None,
        pool: None,
        attention: None,
        recurrent: None,
        optim: None,
        decomposition: None,
        dropout: None,
    };

    /// Returns the groups that `has` names, all with the kernels of one object.
    pub fn of<T: AllKernels>(kernels: &'a T, has: impl Fn(Group) -> bool) -> Groups<'a> {
        Groups {
            norm: has(Group::Norm).then_some(kernels as _),
            linear: has(Group::Linear).then_some(kernels as _),
            convolution: has(Group::Convolution).then_some(kernels as _),
            pool: has(Group::Pool).then_some(kernels as _),
            attention: has(Group::Attention).then_some(kernels as _),
            recurrent: has(Group::Recurrent).then_some(kernels as _),
            optim: has(Group::Optim).then_some(kernels as _),
            decomposition: has(Group::Decomposition).then_some(kernels as _),
            dropout: has(Group::Dropout).then_some(kernels as _),
        }
    }

    /// Returns whether a group is there; no group of another trait is.
    pub fn has(&self, group: Group) -> bool {
        match group {
            Group::Norm => self.norm.is_some(),
            Group::Linear => self.linear.is_some(),
            Group::Convolution => self.convolution.is_some(),
            Group::Pool => self.pool.is_some(),
            Group::Attention => self.attention.is_some(),
            Group::Recurrent => self.recurrent.is_some(),
            Group::Optim => self.optim.is_some(),
            Group::Decomposition => self.decomposition.is_some(),
            Group::Dropout => self.dropout.is_some(),
            Group::Pointwise
            | Group::Reduce
            | Group::Rows
            | Group::Scan
            | Group::Linalg
            | Group::Index
            | Group::Random => false,
        }
    }

    /// Returns the groups of these that `keeps` accepts, with the kernels of another object.
    pub fn offered_by<'b, T: AllKernels>(
        &self,
        other: &'b T,
        keeps: impl Fn(Group) -> bool,
    ) -> Groups<'b> {
        Groups::of(other, |group| self.has(group) && keeps(group))
    }

    /// Returns the groups of these that `keeps` accepts.
    pub fn filtered(&self, keeps: impl Fn(Group) -> bool) -> Groups<'a> {
        Groups {
            norm: self.norm.filter(|_| keeps(Group::Norm)),
            linear: self.linear.filter(|_| keeps(Group::Linear)),
            convolution: self.convolution.filter(|_| keeps(Group::Convolution)),
            pool: self.pool.filter(|_| keeps(Group::Pool)),
            attention: self.attention.filter(|_| keeps(Group::Attention)),
            recurrent: self.recurrent.filter(|_| keeps(Group::Recurrent)),
            optim: self.optim.filter(|_| keeps(Group::Optim)),
            decomposition: self.decomposition.filter(|_| keeps(Group::Decomposition)),
            dropout: self.dropout.filter(|_| keeps(Group::Dropout)),
        }
    }
}
