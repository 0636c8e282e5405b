//! Operations on the lanes along one dimension that keep the input's shape.

use keyfold_core::DType;

use crate::{Launch, Offer, Operation};

/// The parameters of a kernel on lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// The dimension of the lanes.
    pub axis: u32,
}

/// Operations on lanes: `softmax` is `exp(x - max) / sum(exp(x - max))`, `log_softmax` is
/// `x - max - log(sum(exp(x - max)))`.
pub trait Rows: Send + Sync {
    /// Returns the kernel for one input of dtype `input` and an output of the same shape and of the
    /// floating dtype `output`, both of any strides.
    fn rows(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<RowParams>>;
}
