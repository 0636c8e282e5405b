//! Reductions along dimensions.

use keyfold_core::DType;

use crate::{Launch, Offer};

/// The operation.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum of the elements; 0 without elements. Integers wrap.
    Sum = 1,
    /// The sum divided by the number of elements; NaN without elements.
    Mean = 2,
    /// The greatest element; NaN if there is one.
    Max = 3,
    /// The smallest element; NaN if there is one.
    Min = 4,
    /// The int64 position of the first greatest element, or of the first NaN, in row-major order of
    /// the reduced dimensions.
    ArgMax = 5,
    /// As [`ReduceOp::ArgMax`], for the smallest element.
    ArgMin = 6,
    /// Whether all elements are nonzero; true without elements. NaN is nonzero.
    All = 7,
    /// Whether an element is nonzero; false without elements.
    Any = 8,
}

impl ReduceOp {
    /// All reductions.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Mean,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::ArgMax,
        ReduceOp::ArgMin,
        ReduceOp::All,
        ReduceOp::Any,
    ];
}

/// The parameters of a reduction's kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReduceParams {
    /// The kernel's operation.
    pub op: ReduceOp,
    /// 1 if the reduced dimensions are kept in the output with size 1, 0 if they are removed.
    pub keepdim: u32,
    /// Bit `d` is set if dimension `d` of the input is reduced.
    pub dims: u64,
}

/// Reductions.
pub trait Reduce: Send + Sync {
    /// Returns the kernel that reduces one input of dtype `input` to an output of dtype `output`,
    /// both of any strides. The operations without an identity, such as [`ReduceOp::Max`], are
    /// never called for lanes without elements.
    fn reduce(&self, op: ReduceOp, input: DType, output: DType)
    -> Offer<&dyn Launch<ReduceParams>>;
}
