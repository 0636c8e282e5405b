//! Operations on the lanes along one dimension, whose results have the shape of the input.

use keyfold_core::DType;

use crate::{Launch, Offer};

/// Which operation.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowOp {
    /// `exp(x - max) / sum(exp(x - max))`.
    Softmax = 1,
    /// `x - max - log(sum(exp(x - max)))`.
    LogSoftmax = 2,
}

impl RowOp {
    /// All of them.
    pub const ALL: [RowOp; 2] = [RowOp::Softmax, RowOp::LogSoftmax];
}

/// What an operation on lanes is launched with.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowParams {
    /// The operation that the kernel was chosen for.
    pub op: RowOp,
    /// The dimension that the lanes are along.
    pub axis: u32,
}

/// Operations on lanes.
pub trait Rows: Send + Sync {
    /// The kernel that takes one input of dtype `input` to an output of the same shape and of dtype
    /// `output`, which is floating, both of any strides.
    fn rows(&self, op: RowOp, input: DType, output: DType) -> Offer<&dyn Launch<RowParams>>;
}
