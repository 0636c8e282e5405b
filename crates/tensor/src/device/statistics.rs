//! A device's memory in numbers.

/// The memory of one device in numbers. A memory that rounds sizes up, or that doesn't count small
/// allocations, says so in its documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes that buffers use.
    pub in_use: u64,
    /// Bytes that are free and kept for later allocations.
    pub cached: u64,
    /// The most that `in_use` and `cached` were together.
    pub peak: u64,
    /// How many allocations there were, of kept and of fresh memory.
    pub allocations: u64,
    /// The most that `cached` may be; see [`Memory::set_limit`](super::Memory::set_limit).
    pub limit: u64,
}
