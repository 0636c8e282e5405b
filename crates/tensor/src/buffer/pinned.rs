//! Memory that another library may move, at its present address.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use keyfold_core::Device;

use super::{DeviceBuffer, ExternalOwner};

/// A movable buffer on the CPU at the address from [`DeviceBuffer::locate`], which is called once
/// per access rather than once per block. Dropped after the access, since the address may become
/// invalid.
#[derive(Debug)]
pub(super) struct PinnedBuffer {
    pub(super) memory: Arc<dyn DeviceBuffer>,
    pub(super) ptr: NonNull<u8>,
}

// SAFETY: the pointer is to the memory of a buffer that any thread may use.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above; a shared reference gives no mutable access.
unsafe impl Sync for PinnedBuffer {}

// SAFETY: the inner buffer keeps the address valid until the memory is moved, and its user drops
// this value before.
unsafe impl DeviceBuffer for PinnedBuffer {
    fn device(&self) -> Device {
        self.memory.device()
    }

    fn byte_len(&self) -> usize {
        self.memory.byte_len()
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        Some(self.ptr)
    }

    fn is_read_only(&self) -> bool {
        self.memory.is_read_only()
    }

    fn version(&self) -> Option<&AtomicU32> {
        self.memory.version()
    }

    fn note_write(&self) {
        self.memory.note_write();
    }

    fn external_owner(&self) -> Option<&ExternalOwner> {
        self.memory.external_owner()
    }
}
