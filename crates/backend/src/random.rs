//! Random numbers, by counter.

use keyfold_core::DType;

use crate::{Launch, Offer};

/// Which numbers.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RandomOp {
    /// Uniform in [0, 1).
    Uniform = 1,
    /// Normal, of mean 0 and standard deviation 1.
    Normal = 2,
}

impl RandomOp {
    /// All of them.
    pub const ALL: [RandomOp; 2] = [RandomOp::Uniform, RandomOp::Normal];
}

/// Which part of which stream of Philox4x32-10 the numbers are made of: every device makes the same
/// numbers of the same part. Block `offset + i` of the seed's stream gives elements `4 i` to `4 i + 3`, of
/// float64 elements `2 i` and `2 i + 1`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomParams {
    /// The operation that the kernel was chosen for.
    pub op: RandomOp,
    /// Zero.
    pub reserved: u32,
    /// The stream.
    pub seed: u64,
    /// The first block.
    pub offset: u64,
}

/// Random numbers.
pub trait Random: Send + Sync {
    /// The kernel that fills a contiguous output of a floating dtype; it has no inputs.
    fn random(&self, op: RandomOp, output: DType) -> Offer<&dyn Launch<RandomParams>>;
}
