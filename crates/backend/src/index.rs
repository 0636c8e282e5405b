//! Elements read and written at positions.

use keyfold_core::{DType, Result};
use keyfold_tensor::Tensor;

use crate::{Launch, Offer};

/// Which operation. Positions are int64; negative ones count from the end, and one that is out of range
/// is [`keyfold_core::ErrorKind::Index`], reported at the call or, by a device that works late, at the
/// next synchronization.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexOp {
    /// Inputs `x, p...`: the elements of `x` at the positions `p`, one tensor of them for each dimension in
    /// [`IndexParams::dims`], of one shape: the shape of the group. The output's dimensions are those of `x`
    /// that have no positions, with the group's at [`IndexParams::at`].
    Take = 1,
    /// Inputs `values, p...`, the output holds `x`: as [`IndexOp::Take`] the other way round. Of a place
    /// that is named twice one of the values stays.
    Put = 2,
    /// As [`IndexOp::Put`], where values are added to what is there, in order.
    PutAdd = 3,
    /// Inputs `x, p`, one dimension in [`IndexParams::dims`]: for each place of `p`, the element of `x` at
    /// that place, but at the position along the dimension.
    Gather = 4,
    /// Inputs `values, p`, the output holds `x`: as [`IndexOp::Gather`] the other way round, values are
    /// added to what is there, in order.
    ScatterAdd = 5,
}

impl IndexOp {
    /// All of them.
    pub const ALL: [IndexOp; 5] =
        [IndexOp::Take, IndexOp::Put, IndexOp::PutAdd, IndexOp::Gather, IndexOp::ScatterAdd];
}

/// What an operation at positions is launched with.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexParams {
    /// The operation that the kernel was chosen for.
    pub op: IndexOp,
    /// Where the group's dimensions begin in the output of [`IndexOp::Take`], or in the values of
    /// [`IndexOp::Put`].
    pub at: u32,
    /// Bit `d` is set where dimension `d` has positions.
    pub dims: u64,
}

/// Where the elements of a mask are true.
pub trait Positions: Send + Sync {
    /// For each dimension of the mask a tensor of int64 positions along it, on the mask's device: together
    /// the places of true elements in row-major order.
    ///
    /// # Errors
    /// What the device reports.
    fn positions(&self, mask: &Tensor) -> Result<Vec<Tensor>>;
}

/// Operations at positions.
pub trait Index: Send + Sync {
    /// The kernel for elements of a dtype. Inputs have any strides, so has the output, whose elements
    /// are apart.
    fn index(&self, op: IndexOp, elements: DType) -> Offer<&dyn Launch<IndexParams>>;

    /// What finds the true elements of a mask. It waits for the device, since the number is a shape.
    fn positions(&self) -> Offer<&dyn Positions>;
}
