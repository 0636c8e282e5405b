//! Tensors' memory behind an opaque handle.
//!
//! A [`BufferHandle`] has memory's element type, length and device, and keeps it alive in one of
//! two ways: by a reference to a [`DeviceBuffer`], or by one to an object of another runtime
//! ([`ExternalOwner`]: a NumPy array, for example), whose reference count stays unchanged while the
//! handle is borrowed for a call.

pub mod cache;
mod external;
mod handle;
mod host;
mod opaque;
mod pending;
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
pub use pending::{PendingBuffer, PendingSource};
pub use tracked::TrackedBuffer;

use crate::device::Memory;

/// Memory on a device, owned by the implementing value.
///
/// # Safety
/// While a reference to the value exists, [`DeviceBuffer::byte_len`] and [`DeviceBuffer::device`]
/// don't change. [`DeviceBuffer::host_ptr`] may change once from `None` to `Some` (a pending buffer
/// that was filled), never back or to another address. It is `None` unless the device is the CPU. A
/// host pointer, and for memory on the CPU the result of [`DeviceBuffer::locate`], is valid for
/// reads of that many initialised bytes, and for writes unless [`DeviceBuffer::is_read_only`]. If
/// [`DeviceBuffer::is_exclusive`], only the value itself accesses that memory.
pub unsafe trait DeviceBuffer: Any + Send + Sync + fmt::Debug {
    /// Returns the device of the memory.
    fn device(&self) -> Device;

    /// Returns its size in bytes.
    fn byte_len(&self) -> usize;

    /// Returns the host address, valid as long as the value lives. `None` for memory that only a
    /// device can access, that another library may move, or that isn't filled yet, and for buffers
    /// without memory.
    fn host_ptr(&self) -> Option<NonNull<u8>>;

    /// Returns the present address in the device's address space; null if there is none. Every
    /// access without a [`DeviceBuffer::host_ptr`] calls this first.
    ///
    /// # Errors
    /// If the memory was freed, or is smaller than [`DeviceBuffer::byte_len`].
    fn locate(&self) -> Result<*mut u8> {
        Ok(self.host_ptr().map_or(std::ptr::null_mut(), NonNull::as_ptr))
    }

    /// Returns an address that identifies memory without addresses to the device's own functions,
    /// such as a `cl_mem`. It isn't null and nobody else dereferences it. Foreign functions get it,
    /// with the byte offset of the first element beside it.
    fn opaque_handle(&self) -> Option<NonNull<u8>> {
        None
    }

    /// Returns whether another library may move the memory, which invalidates its address.
    fn moves(&self) -> bool {
        false
    }

    /// Returns the [`Memory`] that allocated it, also after its removal from the registry. `None`
    /// for another library's memory, which the memory registered for the device copies, if it can.
    fn memory(&self) -> Option<&dyn Memory> {
        None
    }

    /// Returns whether the memory must not be written.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Returns whether this value alone refers to the memory, so that its sole owner may write
    /// through safe references.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Returns the counter of in-place writes, if there is one.
    fn version(&self) -> Option<&AtomicU32> {
        None
    }

    /// Counts an in-place write.
    fn note_write(&self) {
        if let Some(version) = self.version() {
            // Not an atomic increment: concurrent writers break the contract of writing anyway, and
            // the count changes in any case.
            version.store(version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Notes that another library was given the address for longer than a call, so that it may
    /// write without a count.
    fn lend(&self) {}

    /// Returns whether [`DeviceBuffer::lend`] was called.
    fn is_lent(&self) -> bool {
        false
    }

    /// Returns the object of another runtime that owns the memory, if any.
    fn external_owner(&self) -> Option<&ExternalOwner> {
        None
    }
}

impl dyn DeviceBuffer {
    /// Returns the value itself, the object of an opaque one ([`BufferHandle::opaque`]), or what
    /// fills a [`PendingBuffer`], if it is a `B`.
    pub fn downcast_ref<B: Any>(&self) -> Option<&B> {
        let any: &dyn Any = self;
        any.downcast_ref().or_else(|| match any.downcast_ref::<PendingBuffer>() {
            Some(pending) => pending.filled()?.downcast_ref(),
            None => any.downcast_ref::<OpaqueBuffer>()?.object.downcast_ref(),
        })
    }

    /// Returns whether the content isn't computed yet; see [`PendingBuffer`].
    pub fn is_pending(&self) -> bool {
        (self as &dyn Any).downcast_ref().is_some_and(PendingBuffer::is_pending)
    }
}

/// A handle's buffer: a shared one by reference, or a description of an external object's memory.
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

/// Detects writes to memory, as long as the memory is kept alive elsewhere.
#[derive(Clone, Debug)]
pub struct Watch {
    buffer: Weak<dyn DeviceBuffer>,
    version: u32,
}

impl Watch {
    /// Returns whether the memory is alive and was written.
    pub fn is_changed(&self) -> bool {
        let buffer = self.buffer.upgrade();
        let version = buffer.as_ref().and_then(|buffer| buffer.version());
        version.is_some_and(|version| version.load(Ordering::Relaxed) != self.version)
    }
}
