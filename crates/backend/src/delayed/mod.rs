//! A device for tests, which exposes errors around memory, streams and devices.
//!
//! It is a tool for authors of layers and operators. Its memory is hidden from the host, its
//! operations run as late as their streams allow, on their own threads, and freed memory is
//! poisoned and reused. Code that reads too early, frees too early or copies to the host without a
//! request gives wrong numbers or an error in every run. Calls can be made to fail
//! ([`DelayedMemory::fail_at`]), and [`Mistake`]s can be planted to prove that a test finds them.
//!
//! Its events have deterministic times: each operation takes [`OPERATION_NS`] on its stream.
//!
//! [`DelayedMemory`] is the memory alone; [`Delayed`] adds all groups of operations of another
//! backend.
//!
//! The failure of an operation is reported by the next download or synchronization on its device.
//! The memory that it should have written can't be read afterwards: reads return the same error, so
//! that poison is never taken for a result.

mod backend;
mod block;
mod calls;
mod memory;
mod stream;

pub use backend::Delayed;
pub use calls::{Call, Counts};
pub use memory::{DelayedMemory, Mistake, OPERATION_NS};
