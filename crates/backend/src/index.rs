//! Indexing operations.

use keyfold_core::{DType, Result};
use keyfold_tensor::Tensor;

use crate::{Launch, Offer};

/// The operation. Positions are int64, and negative ones count from the end. A position out of
/// range is [`keyfold_core::ErrorKind::Index`], reported by the call or, on an asynchronous device,
/// by the next synchronization.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexOp {
    /// Inputs `x, p...`: reads the elements of `x` at the positions `p`, one tensor for each
    /// dimension in [`IndexParams::dims`], all of one shape, the group's. The output's dimensions
    /// are those of `x` without positions, with the group's inserted at [`IndexParams::at`].
    Take = 1,
    /// Inputs `values, p...`; the output contains `x`: the inverse of [`IndexOp::Take`], writes
    /// values. Of several values for one element any is kept.
    Put = 2,
    /// As [`IndexOp::Put`], but adds the values, in order.
    PutAdd = 3,
    /// Inputs `x, p`, one dimension in [`IndexParams::dims`]: for each index of `p`, reads the element
    /// of `x` at that index, with `p`'s position along the dimension.
    Gather = 4,
    /// Inputs `values, p`; the output contains `x`: the inverse of [`IndexOp::Gather`], adds the
    /// values, in order.
    ScatterAdd = 5,
}

impl IndexOp {
    /// All indexing operations.
    pub const ALL: [IndexOp; 5] =
        [IndexOp::Take, IndexOp::Put, IndexOp::PutAdd, IndexOp::Gather, IndexOp::ScatterAdd];
}

/// The parameters of an indexing kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexParams {
    /// The kernel's operation.
    pub op: IndexOp,
    /// The index of the group's first dimension in the output of [`IndexOp::Take`], or in the
    /// values of [`IndexOp::Put`].
    pub at: u32,
    /// Bit `d` is set if dimension `d` has positions.
    pub dims: u64,
}

/// Finds the true elements of a mask.
pub trait Positions: Send + Sync {
    /// Returns one tensor of int64 positions per dimension of the mask, on the mask's device:
    /// together the indices of true elements in row-major order.
    ///
    /// # Errors
    /// The device's errors.
    fn positions(&self, mask: &Tensor) -> Result<Vec<Tensor>>;
}

/// Indexing operations.
pub trait Index: Send + Sync {
    /// Returns the kernel for elements of a dtype. Inputs and output have any strides; the output's
    /// elements don't overlap.
    fn index(&self, op: IndexOp, elements: DType) -> Offer<&dyn Launch<IndexParams>>;

    /// Returns the function that finds the true elements of a mask. It waits for the device, since
    /// their number determines a shape.
    fn positions(&self) -> Offer<&dyn Positions>;
}
