//! Counter-based random numbers.

use keyfold_core::DType;

use crate::{Launch, Offer, Operation};

/// The part of a Philox4x32-10 stream that the numbers are made of; every device makes the same
/// numbers of the same part. Block `offset + i` of the seed's stream makes elements `4 i` to `4 i +
/// 3`, for float64 elements `2 i` and `2 i + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// The seed, which selects the stream.
    pub seed: u64,
    /// The first block.
    pub offset: u64,
}

/// Random numbers: `uniform` in [0, 1), and `normal`, of mean 0 and standard deviation 1.
pub trait Random: Send + Sync {
    /// Returns the kernel that fills a contiguous output of a floating dtype; it has no inputs.
    fn random(&self, op: &'static Operation, output: DType) -> Offer<&dyn Launch<RandomParams>>;
}
