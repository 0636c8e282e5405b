//! A backend's object in place of memory with an address.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

use keyfold_core::Device;

use super::DeviceBuffer;

/// An object that represents so many bytes on a device.
pub(super) struct OpaqueBuffer {
    pub(super) object: Box<dyn Any + Send + Sync>,
    pub(super) device: Device,
    pub(super) bytes: usize,
}

impl fmt::Debug for OpaqueBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpaqueBuffer(device={}, {} bytes)", self.device, self.bytes)
    }
}

// SAFETY: there is no pointer, and the fields never change.
unsafe impl DeviceBuffer for OpaqueBuffer {
    fn device(&self) -> Device {
        self.device
    }

    fn byte_len(&self) -> usize {
        self.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }
}
