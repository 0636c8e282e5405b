//! Memory owned by an object of another runtime.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use keyfold_core::{Device, Result};

use super::DeviceBuffer;

/// The functions that manage references to an object of another runtime.
#[derive(Debug)]
pub struct ExternalOps {
    /// Adds a reference. Called with the object, from any thread.
    pub retain: unsafe fn(*mut c_void),
    /// Releases a reference. Called with the object, from any thread; must not unwind.
    pub release: unsafe fn(*mut c_void),
    /// Makes a buffer for the clone of a borrowed handle, for objects whose memory can be freed or
    /// moved while they live, so that a reference to the object isn't enough. It returns `None` for
    /// objects for which a reference is enough.
    pub adopt: Option<Adopt>,
}

/// See [`ExternalOps::adopt`].
pub type Adopt = unsafe fn(*mut c_void, Lent) -> Option<Arc<dyn DeviceBuffer>>;

/// The memory of a borrowed handle.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    /// The lowest byte.
    pub ptr: NonNull<u8>,
    /// The size in bytes.
    pub bytes: usize,
    /// The device of the memory.
    pub device: Device,
    /// Whether it must not be written.
    pub read_only: bool,
}

/// The memory of a borrowed handle as a buffer, valid while the handle is borrowed.
#[derive(Debug)]
pub(crate) struct LentBuffer(pub(super) Lent);

// SAFETY: only an address, which the external handle lets every thread use.
unsafe impl Send for LentBuffer {}
// SAFETY: as above; a shared reference gives no mutable access.
unsafe impl Sync for LentBuffer {}

// SAFETY: nothing changes while the value lives, and the memory is valid by the contract of the
// external handle that it was made from.
unsafe impl DeviceBuffer for LentBuffer {
    fn device(&self) -> Device {
        self.0.device
    }

    fn byte_len(&self) -> usize {
        self.0.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        (self.0.device == Device::CPU).then_some(self.0.ptr)
    }

    fn locate(&self) -> Result<*mut u8> {
        Ok(self.0.ptr.as_ptr())
    }

    fn is_read_only(&self) -> bool {
        self.0.read_only
    }
}

/// A reference to an object that owns memory, such as a NumPy array.
///
/// A *borrowed* one is made for the time of a call without changing the object's reference count,
/// and dropping it does nothing. Its clone takes a reference.
#[derive(Debug)]
pub struct ExternalOwner {
    object: NonNull<c_void>,
    ops: &'static ExternalOps,
    owned: bool,
}

// SAFETY: the constructors' contract is that retain and release may be called on any thread.
unsafe impl Send for ExternalOwner {}
// SAFETY: a shared owner provides only the address and the right to retain.
unsafe impl Sync for ExternalOwner {}

impl ExternalOwner {
    /// Returns a borrowed owner, which leaves the reference count unchanged.
    ///
    /// # Safety
    /// The result and all values that it is moved into are dropped while another reference to the
    /// object exists. Clones may outlive it, since they hold references of their own. `ops` are the
    /// object's functions, callable on any thread.
    #[inline]
    pub unsafe fn borrowed(object: NonNull<c_void>, ops: &'static ExternalOps) -> Self {
        ExternalOwner { object, ops, owned: false }
    }

    /// Returns an owner that takes ownership of one reference and releases it when dropped.
    ///
    /// # Safety
    /// The caller gives up one reference to the object. `ops` are the object's functions, callable
    /// on any thread.
    #[inline]
    pub unsafe fn owned(object: NonNull<c_void>, ops: &'static ExternalOps) -> Self {
        ExternalOwner { object, ops, owned: true }
    }

    /// Returns the same owner with a reference of its own.
    #[must_use]
    #[expect(clippy::redundant_clone, reason = "the clone takes the reference that this one lacks")]
    pub(super) fn into_owned(self) -> Self {
        if self.owned { self } else { self.clone() }
    }

    /// Returns a buffer that outlives the call; `None` if a reference to the object is enough.
    pub(super) fn adopt(&self, lent: Lent) -> Option<Arc<dyn DeviceBuffer>> {
        let adopt = self.ops.adopt.filter(|_| !self.owned)?;
        // SAFETY: the object is alive while `self` is, by the constructors' contracts.
        unsafe { adopt(self.object.as_ptr(), lent) }
    }

    /// Returns the object's address.
    #[inline]
    pub fn object(&self) -> NonNull<c_void> {
        self.object
    }

    /// Returns the object's functions, which also identify its runtime.
    #[inline]
    pub fn ops(&self) -> &'static ExternalOps {
        self.ops
    }

    /// Returns whether it holds no reference of its own.
    #[inline]
    pub fn is_borrowed(&self) -> bool {
        !self.owned
    }
}

impl Clone for ExternalOwner {
    fn clone(&self) -> Self {
        // SAFETY: the object is alive while `self` is, by the constructors' contracts.
        unsafe { (self.ops.retain)(self.object.as_ptr()) };
        ExternalOwner { object: self.object, ops: self.ops, owned: true }
    }
}

impl Drop for ExternalOwner {
    #[inline]
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: an owned one holds exactly one reference, released only here.
            unsafe { (self.ops.release)(self.object.as_ptr()) };
        }
    }
}
