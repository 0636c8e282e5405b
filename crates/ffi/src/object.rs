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

// SAFETY: the library counts references atomically, and what is read here of an object never
// changes.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// Takes over one reference; `None` for null.
    ///
    /// # Safety
    /// `handle` is null or an object of that library, of which the caller gives up one reference.
    pub unsafe fn owned(handle: *mut c_void, runtime: &'static Runtime) -> Option<Object> {
        Some(Object { object: NonNull::new(handle.cast())?, runtime })
    }

    /// Takes one reference more; `None` for null.
    ///
    /// # Safety
    /// `handle` is null or a live object of that library.
    pub unsafe fn shared(handle: *mut c_void, runtime: &'static Runtime) -> Option<Object> {
        let object = NonNull::new(handle.cast())?;
        // SAFETY: the caller's promise.
        unsafe { (runtime.retain)(handle) };
        Some(Object { object, runtime })
    }

    /// The object's address, which the reference keeps good.
    pub fn handle(&self) -> *mut c_void {
        self.object.as_ptr().cast()
    }

    /// The library it belongs to.
    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    /// What the object is.
    pub fn type_index(&self) -> i32 {
        // SAFETY: alive; the field never changes.
        unsafe { (*self.object.as_ptr()).type_index }
    }

    /// How many strong references there are.
    pub fn use_count(&self) -> u32 {
        // SAFETY: alive; others may count at the same time, with atomic operations.
        let count = unsafe { &*self.object.as_ptr().cast::<std::sync::atomic::AtomicU64>() };
        count.load(std::sync::atomic::Ordering::Relaxed) as u32
    }

    /// The object as a value, borrowed.
    pub fn any(&self) -> Any {
        Any::pointer(self.type_index(), self.object.as_ptr())
    }

    /// The object as a value that owns the reference.
    pub fn into_any(self) -> Any {
        let any = self.any();
        // The reference goes with the value.
        let _moved = std::mem::ManuallyDrop::new(self);
        any
    }

    /// The address of its cell.
    pub(crate) fn cell<C>(&self) -> *const C {
        abi::cell(self.object.as_ptr())
    }

    /// A new tensor object that shares the tensor's memory and keeps it; of memory that another
    /// library may move ([`Tensor::moves`]) a copy, since whoever holds the object knows its address.
    ///
    /// # Errors
    /// For a tensor that DLPack can't share (on the meta device, say); for memory that moves on a
    /// device that the host can't copy.
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
        // Functions find no address of memory that the standard doesn't know.
        dlpack::device_to_dl(tensor.device())?;
        let managed = dlpack::to_dlpack_versioned(tensor, false)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a new struct, which the library takes over when it succeeds.
        let code = unsafe { (runtime.tensor_from_dlpack)(managed.as_ptr(), 0, 0, &raw mut handle) };
        if let Err(error) = runtime.done(code) {
            // SAFETY: still ours; deleted once.
            unsafe {
                if let Some(delete) = managed.as_ref().deleter {
                    delete(managed.as_ptr());
                }
            }
            return Err(error);
        }
        // SAFETY: a new reference, which is ours.
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
        // SAFETY: one reference, given back once.
        unsafe { (self.runtime.release)(self.handle()) };
    }
}

/// How tensors hold on to objects of the library.
static OPS: ExternalOps =
    ExternalOps { retain: retain_object, release: release_object, adopt: None };

unsafe fn retain_object(object: *mut c_void) {
    if let Some(runtime) = runtime::loaded() {
        // SAFETY: an owner of ours has a live object of the library.
        unsafe { (runtime.retain)(object) };
    }
}

unsafe fn release_object(object: *mut c_void) {
    if let Some(runtime) = runtime::loaded() {
        // SAFETY: as above; the owner gives its reference back.
        unsafe { (runtime.release)(object) };
    }
}

/// An owner that holds the object's memory for tensors. A borrowed one takes no reference.
///
/// # Safety
/// `object` is a live object of the process's library. Borrowed: it stays alive while the owner
/// does. Else: the caller gives up one reference.
pub(crate) unsafe fn owner(object: NonNull<c_void>, borrowed: bool) -> ExternalOwner {
    // SAFETY: the caller's promise; the library counts references on any thread.
    unsafe {
        if borrowed {
            ExternalOwner::borrowed(object, &OPS)
        } else {
            ExternalOwner::owned(object, &OPS)
        }
    }
}
