//! Which memory a handle is of, who shares it, and how often it was written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{BufferHandle, Owner};
use crate::buffer::{PendingBuffer, Watch};

impl BufferHandle {
    /// Returns a number that identifies this memory while it lives: handles that share it return
    /// the same one, also if it has no address.
    pub fn identity(&self) -> usize {
        match &self.owner {
            Owner::External { owner, .. } => owner.object().addr().get(),
            Owner::Shared(buffer) => match buffer.external_owner() {
                Some(owner) => owner.object().addr().get(),
                None => Arc::as_ptr(buffer).cast::<()>().addr(),
            },
        }
    }

    /// Returns the number of in-place writes since the memory was allocated, as far as keyfold
    /// knows; handles that share the buffer return the same. Writes by other libraries aren't
    /// counted, nor are writes through a handle that borrows an external object for a call.
    #[inline]
    pub fn version(&self) -> u32 {
        match &self.owner {
            Owner::Shared(buffer) => buffer.version().map_or(0, |v| v.load(Ordering::Relaxed)),
            Owner::External { .. } => 0,
        }
    }

    /// Returns the number of handles that share the buffer; 1 for a borrowed external object. Of a pending buffer
    /// that was filled, those of what fills it count, too.
    pub fn shares(&self) -> usize {
        match &self.owner {
            Owner::Shared(buffer) => {
                let filled = self.pending().and_then(PendingBuffer::filled);
                // One of the references is the pending buffer's own.
                Arc::strong_count(buffer) + filled.map_or(0, |filled| Arc::strong_count(filled) - 1)
            }
            Owner::External { .. } => 1,
        }
    }

    /// Returns whether both handles are of one memory: as [`shares_with`](Self::shares_with), and a pending buffer
    /// that was filled is what fills it.
    pub fn is_same_memory(&self, other: &BufferHandle) -> bool {
        let are_shared = self.shared().is_some() && other.shared().is_some();
        are_shared && self.memory_identity() == other.memory_identity()
    }

    /// As [`identity`](Self::identity); of a pending buffer that was filled, what fills it.
    pub fn memory_identity(&self) -> usize {
        match self.pending().and_then(PendingBuffer::filled) {
            Some(filled) => Arc::as_ptr(filled).cast::<()>().addr(),
            None => self.identity(),
        }
    }

    /// Returns whether both handles refer to one buffer, counted by [`shares`](Self::shares).
    #[inline]
    pub fn shares_with(&self, other: &BufferHandle) -> bool {
        match (&self.owner, &other.owner) {
            (Owner::Shared(own), Owner::Shared(others)) => Arc::ptr_eq(own, others),
            _ => false,
        }
    }

    /// Observes writes to the memory, without keeping it alive.
    pub fn watch(&self) -> Option<Watch> {
        match &self.owner {
            Owner::Shared(buffer) => {
                Some(Watch { buffer: Arc::downgrade(buffer), version: self.version() })
            }
            Owner::External { .. } => None,
        }
    }

    /// Counts an in-place write.
    #[inline]
    pub(crate) fn bump_version(&self) {
        if let Owner::Shared(buffer) = &self.owner {
            buffer.note_write();
        }
    }
}
