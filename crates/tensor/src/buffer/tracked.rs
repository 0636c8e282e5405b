//! Memory of an external object, with a count of the writes to it.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use keyfold_core::{Device, Error, ErrorKind, Result};

use super::{DeviceBuffer, ExternalOwner, HostBuffer, Lent};

/// Another runtime's memory as a buffer that handles share: what a tensor over a NumPy array is
/// made of once it outlives the call.
#[derive(Debug)]
pub struct TrackedBuffer {
    owner: ExternalOwner,
    memory: Lent,
    version: AtomicU32,
}

// SAFETY: the pointer is to memory that the owner keeps alive and lets every thread use.
unsafe impl Send for TrackedBuffer {}
// SAFETY: as above; a shared reference gives no mutable access.
unsafe impl Sync for TrackedBuffer {}

impl TrackedBuffer {
    /// Takes over what an external handle holds; a borrowed owner becomes an owning one.
    ///
    /// # Safety
    /// While the owner's object lives, the memory stays where it is, valid for reads of initialised
    /// bytes, and for writes unless it is read-only.
    pub unsafe fn new(owner: ExternalOwner, memory: Lent) -> Self {
        TrackedBuffer { owner: owner.into_owned(), memory, version: AtomicU32::new(0) }
    }
}

// SAFETY: nothing changes while the value lives, and the contract of the external handle that it
// was made from vouches for the memory.
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

    fn device_ptr(&self) -> *mut u8 {
        self.memory.ptr.as_ptr()
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

    fn duplicate(&self) -> Result<Arc<dyn DeviceBuffer>> {
        if self.memory.device != Device::CPU {
            return Err(Error::new(
                ErrorKind::NotSupported,
                format!(
                    "memory on {} that another library owns can't be copied from here; copy it \
                     with that library",
                    self.memory.device
                ),
            ));
        }
        // SAFETY: the external handle's contract makes these bytes readable and initialised.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.memory.ptr.as_ptr(), self.memory.bytes) };
        Ok(Arc::new(HostBuffer::copy_of(bytes)?))
    }
}
