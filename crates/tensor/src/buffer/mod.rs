//! Memory of tensors behind one opaque handle.
//!
//! A [`BufferHandle`] says which elements a piece of memory holds, how many and on which device,
//! and owns it in one of two ways: as a share of a [`DeviceBuffer`], or through a reference to an
//! object of somebody else's ([`ExternalOwner`]: a NumPy array, say), whose reference count isn't
//! even touched while the handle is only borrowed for a call.

pub mod cache;
mod external;
mod handle;
mod host;
mod opaque;
mod pinned;
mod tracked;

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

use keyfold_core::{Device, Result};

pub(crate) use external::LentBuffer;
pub use external::{Adopt, ExternalOps, ExternalOwner, Lent};
pub use handle::BufferHandle;
pub use host::{HostBuffer, NullBuffer, memory};
use opaque::OpaqueBuffer;
pub use tracked::TrackedBuffer;

use crate::device::Memory;

/// A piece of memory on a device, owned by the value that implements this.
///
/// # Safety
/// While a share of the value exists, [`DeviceBuffer::byte_len`] and [`DeviceBuffer::device`] keep
/// returning the same. [`DeviceBuffer::host_ptr`] may go once from `None` to `Some` (a pending buffer
/// that was filled), and never back or to another address. It is `None` unless the device is the CPU. A
/// host pointer, and for memory on the CPU what [`DeviceBuffer::locate`] returns, is valid for reads of
/// that many initialised bytes, and for writes unless [`DeviceBuffer::is_read_only`]. If
/// [`DeviceBuffer::is_exclusive`], nothing but the value itself reaches that memory.
pub unsafe trait DeviceBuffer: Any + Send + Sync + fmt::Debug {
    /// Where the memory is.
    fn device(&self) -> Device;

    /// Its size in bytes.
    fn byte_len(&self) -> usize;

    /// Where the host finds the memory for as long as the value lives. `None` for memory that only a
    /// device reaches, that another library may move, that isn't filled yet, and for none at all.
    fn host_ptr(&self) -> Option<NonNull<u8>>;

    /// Where the memory is now, in its device's own address space; null where it has no address.
    /// Every access asks here that found no [`DeviceBuffer::host_ptr`] before.
    ///
    /// # Errors
    /// When the memory is gone, or smaller than [`DeviceBuffer::byte_len`].
    fn locate(&self) -> Result<*mut u8> {
        Ok(self.host_ptr().map_or(std::ptr::null_mut(), NonNull::as_ptr))
    }

    /// Whether another library may move the memory: an address is good until it does so.
    fn moves(&self) -> bool {
        false
    }

    /// The memory that allocated it, also after that was removed from the registry. `None` for what
    /// another library owns: the memory that is registered for the device copies it, if it can.
    fn memory(&self) -> Option<&dyn Memory> {
        None
    }

    /// Whether the memory must not be written.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether the memory belongs to this value alone, so that the sole owner of the value may
    /// write to it through safe references.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// How often the memory was written in place, where the value counts that.
    fn version(&self) -> Option<&AtomicU32> {
        None
    }

    /// Counts a write in place.
    fn note_write(&self) {
        if let Some(version) = self.version() {
            // Not one atomic step: two writers at a time break the contract of writing anyway, and
            // the count differs from what it was before in any case.
            version.store(version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// The object of another runtime that owns the memory, if one does.
    fn external_owner(&self) -> Option<&ExternalOwner> {
        None
    }
}

impl dyn DeviceBuffer {
    /// The value itself, or the object of an opaque one ([`BufferHandle::opaque`]), if it is a `B`.
    pub fn downcast_ref<B: Any>(&self) -> Option<&B> {
        let any: &dyn Any = self;
        any.downcast_ref().or_else(|| any.downcast_ref::<OpaqueBuffer>()?.object.downcast_ref())
    }
}

/// The buffer of a handle: a shared one where it is, or a description of an external object's memory.
pub(crate) enum BufferRef<'a> {
    Shared(&'a dyn DeviceBuffer),
    Lent(LentBuffer),
}

impl Deref for BufferRef<'_> {
    type Target = dyn DeviceBuffer;

    fn deref(&self) -> &dyn DeviceBuffer {
        match self {
            BufferRef::Shared(buffer) => *buffer,
            BufferRef::Lent(buffer) => buffer,
        }
    }
}

/// Tells whether memory was written since, for as long as somebody else keeps it.
#[derive(Clone, Debug)]
pub struct Watch {
    buffer: Weak<dyn DeviceBuffer>,
    version: u32,
}

impl Watch {
    /// Whether the memory is still there and was written.
    pub fn is_changed(&self) -> bool {
        let buffer = self.buffer.upgrade();
        let version = buffer.as_ref().and_then(|buffer| buffer.version());
        version.is_some_and(|version| version.load(Ordering::Relaxed) != self.version)
    }
}
