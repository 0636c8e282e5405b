//! Operations on the lanes along one dimension that keep the input's shape.

use keyfold_core::DType;

use crate::{Launch, Offer};

/// The operation.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowOp {
    /// `exp(x - max) / sum(exp(x - max))`.
    Softmax = 1,
    /// `x - max - log(sum(exp(x - max)))`.
    LogSoftmax = 2,
}

impl RowOp {
    /// All operations on lanes.
    pub const ALL: [RowOp; 2] = [RowOp::Softmax, RowOp::LogSoftmax];
}

/// The parameters of a kernel on lanes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowParams {
    /// The kernel's operation.
    pub op: RowOp,
    /// The dimension of the lanes.
    pub axis: u32,
}

/// Operations on lanes.
pub trait Rows: Send + Sync {
    /// Returns the kernel for one input of dtype `input` and an output of the same shape and of the
    /// floating dtype `output`, both of any strides.
    fn rows(&self, op: RowOp, input: DType, output: DType) -> Offer<&dyn Launch<RowParams>>;
}
