//! cuDNN graphs without cuDNN.
//!
//! A graph is plain data, a [`GraphSpec`] of [`TensorSpec`]s and [`OpSpec`]s. It is made by hand, read from
//! JSON, or built with [`Graph`], which infers shapes. [`GraphSpec::validate`] proves it; what is proven is
//! planned for a device, and runs there, on any device that keyfold has a backend for.
#![deny(unsafe_code)]

mod build;
mod cache;
mod canonical;
mod document;
mod draw;
mod dtype;
mod execute;
mod graph;
mod groups;
mod infer;
mod number;
mod op;
mod plan;
mod tensor;
mod valid;
mod validate;

/// The cache's locks, which survive fork, for what planners share.
#[cfg(not(loom))]
pub mod locks {
    pub use crate::cache::sync::{Guard, lock, pause};
}

pub use build::{
    AttentionGradients, AttentionInputs, AttentionScales, Graph, GraphOptions, NormGradients,
    Normalized, Running, ScaledAttention,
};
pub use cache::{
    ByteHash, Counts, EntryInfo, Kind, Member, PlanCache, Prepared, ShapeClass, Stats, plan_cache,
};
pub use canonical::{Canonical, CanonicalKey, KEY_FORMAT, Signature};
pub use document::{Document, FORMAT};
pub use dtype::DataType;
pub use execute::{Precision, Reference};
pub use graph::{Defaults, GraphSpec};
pub use groups::GraphKernels;
pub use number::{Float, Number};
pub use op::{
    Alignment, Attention, Concatenate, Convolution, ConvolutionMode, Count, DiagonalBandMask,
    Fraction, Norm, NormMode, NormPhase, OpSpec, Operation, PaddingMode, Pointwise, PointwiseMode,
    Port, PortRule, Reduction, ReductionMode, Resample, ResampleMode, Slice, Transpose,
};
pub use plan::{
    Choice, EngineConfigSpec, HeurMode, HeurSpec, Plan, PlanRunner, PlanSpec, Planner, Policy,
    Progress, Rewrite, Step, VariantPack, VariantPackSpec,
};
pub use tensor::{Layout, TensorSpec, Uid};
pub use valid::ValidGraph;
