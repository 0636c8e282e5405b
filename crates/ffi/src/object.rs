//! References to objects of TVM FFI's library.

use std::ffi::c_void;
use std::ptr::NonNull;

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_tensor::{ExternalOps, ExternalOwner, Tensor, dlpack};

use crate::abi::{self, Any, Header};
use crate::runtime::{self, Runtime};

/// A counted reference to an object of the library.
#[derive(Debug)]
pub struct Object {
    object: NonNull<Header>,
    runtime: &'static Runtime,
}

// SAFETY: the library counts references atomically, and the fields read here never change.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// Takes ownership of one reference; `None` for null.
    ///
    /// # Safety
    /// `handle` is null or an object of that library, and the caller gives up one reference.
    pub unsafe fn owned(handle: *mut c_void, runtime: &'static Runtime) -> Option<Object> {
        Some(Object { object: NonNull::new(handle.cast())?, runtime })
    }

    /// Takes an additional reference; `None` for null.
    ///
    /// # Safety
    /// `handle` is null or a live object of that library.
    pub unsafe fn shared(handle: *mut c_void, runtime: &'static Runtime) -> Option<Object> {
        let object = NonNull::new(handle.cast())?;
        // SAFETY: the caller's contract.
        unsafe { (runtime.retain)(handle) };
        Some(Object { object, runtime })
    }

    /// Returns the object's address, valid as long as `self`.
    pub fn handle(&self) -> *mut c_void {
        self.object.as_ptr().cast()
    }

    /// Returns the library that the object belongs to.
    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    /// Returns the type index of the object.
    pub fn type_index(&self) -> i32 {
        // SAFETY: alive; the field never changes.
        unsafe { (*self.object.as_ptr()).type_index }
    }

    /// Returns the number of strong references.
    pub fn use_count(&self) -> u32 {
        // SAFETY: alive; others change the count only with atomic operations.
        let count = unsafe { &*self.object.as_ptr().cast::<std::sync::atomic::AtomicU64>() };
        count.load(std::sync::atomic::Ordering::Relaxed) as u32
    }

    /// Returns the object as a borrowed value.
    pub fn any(&self) -> Any {
        Any::pointer(self.type_index(), self.object.as_ptr())
    }

    /// Returns the object as a value that owns the reference.
    pub fn into_any(self) -> Any {
        let any = self.any();
        // The reference moves into the value.
        let _moved = std::mem::ManuallyDrop::new(self);
        any
    }

    /// Returns the address of its cell.
    pub(crate) fn cell<C>(&self) -> *const C {
        abi::cell(self.object.as_ptr())
    }

    /// Creates a tensor object that shares the tensor's memory and keeps it alive. Memory that
    /// another library may move ([`Tensor::moves`]) is copied, since holders of the object keep its
    /// address.
    ///
    /// # Errors
    /// For a tensor that DLPack can't share (on the meta device, for example), and for movable
    /// memory on a device that the host can't copy from.
    pub fn of_tensor(tensor: &Tensor, runtime: &'static Runtime) -> Result<Object> {
        let detached = tensor.requires_grad().then(|| tensor.detach());
        let tensor = detached.as_ref().unwrap_or(tensor);
        if tensor.device() != Device::CPU && tensor.clone().moves() {
            let message = format!(
                "a tensor object would keep an address on {}, where another library may move this \
                 tensor's memory and keyfold can't copy it: register the kernel with tensors=\"view\"",
                tensor.device()
            );
            return Err(Error::new(ErrorKind::Exchange, message));
        }
        if tensor.device() != Device::CPU {
            // An object for memory without an address would be of no use to a function.
            dlpack::foreign_address(tensor)?;
        }
        let managed = dlpack::to_dlpack_versioned(tensor, false)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a new struct, which the library owns if it succeeds.
        let code = unsafe { (runtime.tensor_from_dlpack)(managed.as_ptr(), 0, 0, &raw mut handle) };
        if let Err(error) = runtime.check(code) {
            // SAFETY: still owned here; deleted once.
            unsafe {
                if let Some(delete) = managed.as_ref().deleter {
                    delete(managed.as_ptr());
                }
            }
            return Err(error);
        }
        // SAFETY: a new reference, owned here.
        unsafe { Object::owned(handle, runtime) }.ok_or_else(|| {
            let message = "TVM FFI made no tensor object";
            Error::new(ErrorKind::Exchange, message)
        })
    }
}

impl Clone for Object {
    fn clone(&self) -> Self {
        // SAFETY: alive.
        unsafe { (self.runtime.retain)(self.handle()) };
        Object { object: self.object, runtime: self.runtime }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: one reference, released once.
        unsafe { (self.runtime.release)(self.handle()) };
    }
}

/// The functions by which tensors retain and release objects of the library.
static OPS: ExternalOps =
    ExternalOps { retain: retain_object, release: release_object, adopt: None };

unsafe fn retain_object(object: *mut c_void) {
    if let Some(runtime) = runtime::loaded() {
        // SAFETY: an owner made here holds a live object of the library.
        unsafe { (runtime.retain)(object) };
    }
}

unsafe fn release_object(object: *mut c_void) {
    if let Some(runtime) = runtime::loaded() {
        // SAFETY: as above; the owner releases its reference.
        unsafe { (runtime.release)(object) };
    }
}

/// Returns an owner of the object's memory, for tensors. A borrowed one takes no reference.
///
/// # Safety
/// `object` is a live object of the process's library. If borrowed, it outlives the owner;
/// otherwise the caller gives up one reference.
pub(crate) unsafe fn owner(object: NonNull<c_void>, borrowed: bool) -> ExternalOwner {
    // SAFETY: the caller's contract; the library counts references on any thread.
    unsafe {
        if borrowed {
            ExternalOwner::borrowed(object, &OPS)
        } else {
            ExternalOwner::owned(object, &OPS)
        }
    }
}
