//! Statistics of a device's memory.

/// Statistics of one device's memory. A memory that rounds sizes up, or doesn't count small
/// allocations, documents that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes used by buffers.
    pub in_use: u64,
    /// Free bytes kept for later allocations.
    pub cached: u64,
    /// The peak of `in_use` plus `cached`.
    pub peak: u64,
    /// The number of allocations, from free blocks and from the system.
    pub allocations: u64,
    /// The limit of `cached`; see [`Memory::set_limit`](super::Memory::set_limit).
    pub limit: u64,
}
