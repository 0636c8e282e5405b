//! Memory that an object of another runtime owns.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use keyfold_core::{Device, Result};

use super::DeviceBuffer;

/// How to hold on to an object of another runtime.
#[derive(Debug)]
pub struct ExternalOps {
    /// Adds a reference. Called with the object from any thread.
    pub retain: unsafe fn(*mut c_void),
    /// Gives a reference back. Called with the object from any thread; it must not unwind.
    pub release: unsafe fn(*mut c_void),
    /// Makes the buffer that a borrowed handle becomes when it is cloned, for objects whose memory
    /// can be taken away or moved while they live: a reference to the object isn't enough then.
    /// `None` as the result means that a reference is enough for this object.
    pub adopt: Option<Adopt>,
}

/// See [`ExternalOps::adopt`].
pub type Adopt = unsafe fn(*mut c_void, Lent) -> Option<Arc<dyn DeviceBuffer>>;

/// The memory that a borrowed handle reaches.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    /// Its lowest byte.
    pub ptr: NonNull<u8>,
    /// Its size in bytes.
    pub bytes: usize,
    /// Where it is.
    pub device: Device,
    /// Whether it must not be written.
    pub read_only: bool,
}

/// Lent memory as a buffer, for as long as the handle that lends it is borrowed.
#[derive(Debug)]
pub(crate) struct LentBuffer(pub(super) Lent);

// SAFETY: only an address, which the external handle lets every thread use.
unsafe impl Send for LentBuffer {}
// SAFETY: as above; a shared reference gives no mutable access.
unsafe impl Sync for LentBuffer {}

// SAFETY: nothing changes while the value lives, and the contract of the external handle that it was
// made from vouches for the memory.
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

/// A reference to an object that owns memory: a NumPy array, for example.
///
/// A *borrowed* one is made without touching the object's reference count, for the time of a
/// call, and its drop does nothing. Its clone takes a reference and is an owned one.
#[derive(Debug)]
pub struct ExternalOwner {
    object: NonNull<c_void>,
    ops: &'static ExternalOps,
    owned: bool,
}

// SAFETY: the constructors' contract is that retain and release may be called on any thread.
unsafe impl Send for ExternalOwner {}
// SAFETY: sharing an owner gives nothing but the address and the right to retain.
unsafe impl Sync for ExternalOwner {}

impl ExternalOwner {
    /// An owner that doesn't own: the reference count stays as it is.
    ///
    /// # Safety
    /// The result, and whatever it is moved into, must be dropped while somebody else still holds
    /// a reference to the object. Clones may live on: they hold one of their own. `ops` must be
    /// right for the object, and callable on any thread.
    #[inline]
    pub unsafe fn borrowed(object: NonNull<c_void>, ops: &'static ExternalOps) -> Self {
        ExternalOwner { object, ops, owned: false }
    }

    /// An owner that takes over one reference, which its drop gives back.
    ///
    /// # Safety
    /// The caller gives up one reference to the object. `ops` must be right for the object, and
    /// callable on any thread.
    #[inline]
    pub unsafe fn owned(object: NonNull<c_void>, ops: &'static ExternalOps) -> Self {
        ExternalOwner { object, ops, owned: true }
    }

    /// The same owner with a reference of its own.
    #[must_use]
    #[expect(clippy::redundant_clone, reason = "the clone takes the reference that this one lacks")]
    pub(super) fn into_owned(self) -> Self {
        if self.owned { self } else { self.clone() }
    }

    /// The buffer for what outlives the call; `None` where a reference to the object is enough.
    pub(super) fn adopt(&self, lent: Lent) -> Option<Arc<dyn DeviceBuffer>> {
        let adopt = self.ops.adopt.filter(|_| !self.owned)?;
        // SAFETY: the object is alive while `self` is, by the constructors' contracts.
        unsafe { adopt(self.object.as_ptr(), lent) }
    }

    /// The object's address.
    #[inline]
    pub fn object(&self) -> NonNull<c_void> {
        self.object
    }

    /// The functions that hold on to the object; they tell one runtime's objects from another's.
    #[inline]
    pub fn ops(&self) -> &'static ExternalOps {
        self.ops
    }

    /// Whether it holds no reference of its own.
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
            // SAFETY: an owned one holds exactly one reference, given back only here.
            unsafe { (self.ops.release)(self.object.as_ptr()) };
        }
    }
}
