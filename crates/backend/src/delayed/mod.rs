//! A device for tests: whatever is wrong about memory, streams or devices above it shows on it.
//!
//! It is a tool for authors of layers and of operators. Its memory is hidden from the host, its operations
//! run as late as its streams allow and on their threads, freed memory is poisoned and used again. So a
//! place that reads too early, frees too early or copies to the host unasked gives wrong numbers or an
//! error in each run, and not once a month. Calls can be made to fail ([`DelayedMemory::fail_at`]), and
//! [`Mistake`]s can be planted, for tests that show that a test finds them.
//!
//! Its events tell a time that is the same in every run: each operation takes [`OPERATION_NS`] on its stream,
//! whatever it does.
//!
//! [`DelayedMemory`] is the memory alone; [`Delayed`] has all groups of operations of another backend on
//! it.
//!
//! An operation that fails when it runs is told at the next download or synchronization on its device.
//! Whatever it should have written can't be read afterwards: that fails with the same error, so no poison
//! is taken for a result.

mod backend;
mod block;
mod calls;
mod memory;
mod stream;

pub use backend::{Delayed, Group};
pub use calls::{Call, Counts};
pub use memory::{DelayedMemory, Mistake, OPERATION_NS};
