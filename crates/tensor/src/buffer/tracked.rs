//! External objects' memory with a version counter.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use keyfold_core::{Device, Result};

use super::{DeviceBuffer, ExternalOwner, Lent};

/// Another runtime's memory as a buffer that handles share, for tensors over NumPy arrays (for
/// example) that outlive the call.
#[derive(Debug)]
pub struct TrackedBuffer {
    owner: ExternalOwner,
    memory: Lent,
    version: AtomicU32,
}

// SAFETY: the pointer is to memory that the owner keeps alive and accessible from every thread.
unsafe impl Send for TrackedBuffer {}
// SAFETY: as above; a shared reference gives no mutable access.
unsafe impl Sync for TrackedBuffer {}

impl TrackedBuffer {
    /// Takes ownership of an external handle's owner; a borrowed one takes a reference.
    ///
    /// # Safety
    /// While the owner's object lives, the memory stays at its address, valid for reads of
    /// initialised bytes, and for writes unless it is read-only.
    pub unsafe fn new(owner: ExternalOwner, memory: Lent) -> Self {
        TrackedBuffer { owner: owner.into_owned(), memory, version: AtomicU32::new(0) }
    }
}

// SAFETY: nothing changes while the value lives, and the memory is valid by the contract of the
// external handle that it was made from.
unsafe impl DeviceBuffer for TrackedBuffer {
    fn device(&self) -> Device {
        self.memory.device
    }

    fn byte_len(&self) -> usize {
        self.memory.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        (self.memory.device == Device::CPU).then_some(self.memory.ptr)
    }

    fn locate(&self) -> Result<*mut u8> {
        Ok(self.memory.ptr.as_ptr())
    }

    fn is_read_only(&self) -> bool {
        self.memory.read_only
    }

    fn version(&self) -> Option<&AtomicU32> {
        Some(&self.version)
    }

    fn external_owner(&self) -> Option<&ExternalOwner> {
        Some(&self.owner)
    }
}
