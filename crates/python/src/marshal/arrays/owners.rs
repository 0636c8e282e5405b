//! How tensors hold on to memory that belongs to Python's objects.

use std::any::Any;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use keyfold_tensor::dlpack::DLManagedTensorVersioned;
use keyfold_tensor::{Adopt, ExternalOps, ExternalOwner, Tensor};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::marshal::attach::{is_attached, try_attach};

/// Memory that is held by [`Held`].
static HELD: ExternalOps = ExternalOps { retain: retain_held, release: release_held, adopt: None };

/// Runs `f` attached; not at all when the interpreter is shutting down, where what it would give
/// back is beyond anybody's reach. `f` uses the C API alone.
#[inline]
pub(crate) fn attached(f: impl FnOnce()) {
    if is_attached() {
        return f();
    }
    let _ = try_attach(|_py| f());
}

unsafe fn retain(object: *mut c_void) {
    // SAFETY: attached, and the object is alive: the caller holds a reference.
    attached(|| unsafe { ffi::Py_INCREF(object.cast()) });
}

unsafe fn release(object: *mut c_void) {
    // SAFETY: attached, and the owner gives its reference up.
    attached(|| unsafe { ffi::Py_DECREF(object.cast()) });
}

/// The function that ends a loan of an object's memory.
pub(crate) enum Loan {
    /// DLPack's struct, whose deleter is called.
    Managed(NonNull<DLManagedTensorVersioned>),
    /// Another object.
    Object(ManuallyDrop<Py<PyAny>>),
    /// A buffer of Python's buffer protocol.
    Buffer(Box<ffi::Py_buffer>),
    /// Anything that keeps the memory while it lives.
    Kept(Box<dyn Any + Send + Sync>),
}

/// An object and the loan of its memory.
struct Held {
    source: ManuallyDrop<Py<PyAny>>,
    loan: Loan,
}

impl Drop for Held {
    fn drop(&mut self) {
        attached(|| {
            // SAFETY: both are given back here and nowhere else, attached.
            unsafe {
                match &mut self.loan {
                    Loan::Managed(managed) => {
                        if let Some(delete) = managed.as_ref().deleter {
                            delete(managed.as_ptr());
                        }
                    }
                    Loan::Object(object) => {
                        ffi::Py_DECREF(ManuallyDrop::take(object).into_ptr());
                    }
                    Loan::Buffer(buffer) => ffi::PyBuffer_Release(&raw mut **buffer),
                    Loan::Kept(kept) => *kept = Box::new(()),
                }
                ffi::Py_DECREF(ManuallyDrop::take(&mut self.source).into_ptr());
            }
        });
    }
}

unsafe fn retain_held(held: *mut c_void) {
    // SAFETY: what `HELD` owners point to comes out of an Arc.
    unsafe { Arc::increment_strong_count(held.cast::<Held>().cast_const()) };
}

unsafe fn release_held(held: *mut c_void) {
    // SAFETY: as above, and the owner gives its share up.
    unsafe { Arc::decrement_strong_count(held.cast::<Held>().cast_const()) };
}

/// An owner of memory that `source` lent.
#[expect(clippy::arc_with_non_send_sync, reason = "its drop attaches, and nothing else uses it")]
pub(crate) fn held(source: Py<PyAny>, loan: Loan) -> ExternalOwner {
    let held = Arc::new(Held { source: ManuallyDrop::new(source), loan });
    let object = NonNull::from(&*held).cast();
    let _ = Arc::into_raw(held);
    // SAFETY: one share is given up to the owner.
    unsafe { ExternalOwner::owned(object, &HELD) }
}

/// How tensors hold objects of Python's whose memory they borrowed for a call; `adopt` is for memory that
/// can be taken away from its object, or moved.
pub(crate) const fn object_ops(adopt: Option<Adopt>) -> ExternalOps {
    ExternalOps { retain, release, adopt }
}

/// An owner that borrows an object for the time of a call.
///
/// # Safety
/// The object outlives the owner (not its clones), and `ops` are for it.
pub(crate) unsafe fn borrowed(
    object: *mut ffi::PyObject,
    ops: &'static ExternalOps,
) -> ExternalOwner {
    // SAFETY: Python never passes a null object; the caller vouches for its life.
    unsafe { ExternalOwner::borrowed(NonNull::new_unchecked(object.cast()), ops) }
}

/// The address of the object that a tensor's memory is of. Only good for comparing: where it equals that of
/// an object of Python's, it is that object.
pub(crate) fn address(tensor: &Tensor) -> Option<*mut ffi::PyObject> {
    let owner = tensor.buffer().external_owner()?;
    if std::ptr::eq(owner.ops(), &raw const HELD) {
        // SAFETY: owners with these functions point to a `Held`, which the tensor keeps.
        return Some(unsafe { owner.object().cast::<Held>().as_ref() }.source.as_ptr());
    }
    Some(owner.object().as_ptr().cast())
}
