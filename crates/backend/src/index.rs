//! Indexing operations.

use keyfold_core::{DType, Result};
use keyfold_tensor::Tensor;

use crate::{Launch, Offer, Operation};

/// The parameters of an indexing kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// The index of the group's first dimension in the output of `take`, or in the
    /// values of `put`.
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
///
/// | name | inputs | what it does |
/// | --- | --- | --- |
/// | `take` | `x, p...` | reads the elements of `x` at the positions `p`, one tensor for each dimension in [`IndexParams::dims`], all of one shape, the group's; the output's dimensions are those of `x` without positions, with the group's inserted at [`IndexParams::at`] |
/// | `put` | `values, p...` | the inverse of `take`: the output contains `x`, and values are written to it; of several values for one element any is kept |
/// | `put_add` | `values, p...` | as `put`, but adds the values, in order |
/// | `gather` | `x, p` | one dimension in [`IndexParams::dims`]: for each index of `p`, reads the element of `x` at that index, with `p`'s position along the dimension |
/// | `scatter_add` | `values, p` | the inverse of `gather`: the output contains `x`, and the values are added to it, in order |
///
/// Positions are int64, and negative ones count from the end. A position out of range is
/// [`keyfold_core::ErrorKind::Index`], reported by the call or, on an asynchronous device, by the next
/// synchronization; parts of the output may be written then.
pub trait Index: Send + Sync {
    /// Returns the kernel for elements of a dtype. Inputs and output have any strides; the output's
    /// elements don't overlap.
    fn index(&self, op: &'static Operation, elements: DType) -> Offer<&dyn Launch<IndexParams>>;

    /// Returns the function that finds the true elements of a mask. It waits for the device, since
    /// their number determines a shape.
    fn positions(&self) -> Offer<&dyn Positions>;
}
