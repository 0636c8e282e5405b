//! Counter-based random numbers.

use keyfold_core::DType;

use crate::{Launch, Offer};

/// The distribution.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RandomOp {
    /// Uniform in [0, 1).
    Uniform = 1,
    /// Normal, of mean 0 and standard deviation 1.
    Normal = 2,
}

impl RandomOp {
    /// All distributions.
    pub const ALL: [RandomOp; 2] = [RandomOp::Uniform, RandomOp::Normal];
}

/// The part of a Philox4x32-10 stream that the numbers are made of; every device makes the same
/// numbers of the same part. Block `offset + i` of the seed's stream makes elements `4 i` to `4 i +
/// 3`, for float64 elements `2 i` and `2 i + 1`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomParams {
    /// The kernel's operation.
    pub op: RandomOp,
    /// Always 0.
    pub reserved: u32,
    /// The seed, which selects the stream.
    pub seed: u64,
    /// The first block.
    pub offset: u64,
}

/// Random numbers.
pub trait Random: Send + Sync {
    /// Returns the kernel that fills a contiguous output of a floating dtype; it has no inputs.
    fn random(&self, op: RandomOp, output: DType) -> Offer<&dyn Launch<RandomParams>>;
}
