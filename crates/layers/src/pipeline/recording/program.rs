//! The state of a recording: the program so far.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyfold_dispatch::Dispatcher;
use keyfold_tensor::{DeviceBuffer, PendingBuffer, Tensor, Value};

/// The state of a program that a session records for a [`Recording`](super::Recording), besides its calls.
#[derive(Default)]
pub(in crate::pipeline) struct Program {
    /// The placeholders that stand for inputs.
    pub(in crate::pipeline) placeholders: Vec<Placeholder>,
    /// The copies of other libraries' arrays that calls read, each with the array, which a recording reads.
    pub(in crate::pipeline) copies: Vec<(Tensor, Tensor)>,
    /// Whether a call that writes was recorded, or ran at once.
    pub(in crate::pipeline) has_written: bool,
    /// The dispatchers of the operators that were called, with the state of their registrations.
    pub(in crate::pipeline) called: Vec<(Dispatcher<Value>, u64)>,
    /// Why it can't be recorded.
    pub(in crate::pipeline) refused: Option<Refused>,
}

/// Why a program can't be recorded, and runs instead.
pub(in crate::pipeline) struct Refused {
    pub(in crate::pipeline) reason: String,
    /// Whether what was recorded before has yet to run: one by one, since placeholders were recorded as different
    /// memories that may be one.
    pub(in crate::pipeline) is_due: bool,
}

/// A tensor that stands for an input while a session records.
pub(in crate::pipeline) struct Placeholder {
    pub(super) pending: Arc<PendingBuffer>,
    pub(super) input: Tensor,
    pub(super) memory: Arc<dyn DeviceBuffer>,
    /// The input's count of writes, from which the pending buffer counts.
    pub(super) version: u32,
}

impl Placeholder {
    /// Returns the number of recorded writes.
    pub(super) fn writes(&self) -> u32 {
        let counted = DeviceBuffer::version(&*self.pending);
        counted.map_or(0, |counted| counted.load(Ordering::Relaxed).wrapping_sub(self.version))
    }
}
