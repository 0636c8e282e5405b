//! Reductions along dimensions.

use keyfold_core::DType;

use crate::{Launch, Offer};

/// Which reduction.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum of the elements, 0 of none. Whole numbers wrap around.
    Sum = 1,
    /// The sum divided by the number of elements, NaN of none.
    Mean = 2,
    /// The greatest element; NaN where there is one.
    Max = 3,
    /// The smallest element; NaN where there is one.
    Min = 4,
    /// The place of the first greatest element, or of the first NaN, as int64: in row-major order among
    /// the reduced dimensions.
    ArgMax = 5,
    /// As [`ReduceOp::ArgMax`], of the smallest.
    ArgMin = 6,
    /// Whether each element isn't zero; true of none. NaN isn't zero.
    All = 7,
    /// Whether an element isn't zero; false of none.
    Any = 8,
}

impl ReduceOp {
    /// All of them.
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

/// What a reduction is launched with.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReduceParams {
    /// The operation that the kernel was chosen for.
    pub op: ReduceOp,
    /// 1 where the reduced dimensions stay in the output with size 1, 0 where they are left out.
    pub keepdim: u32,
    /// Bit `d` is set where dimension `d` of the input is reduced.
    pub dims: u64,
}

/// Reductions.
pub trait Reduce: Send + Sync {
    /// The kernel that reduces one input of dtype `input` to an output of dtype `output`, both of any
    /// strides. [`ReduceOp::Max`] and its like aren't asked for lanes without elements.
    fn reduce(&self, op: ReduceOp, input: DType, output: DType)
    -> Offer<&dyn Launch<ReduceParams>>;
}
