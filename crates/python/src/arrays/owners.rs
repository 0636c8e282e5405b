//! How tensors hold on to memory that belongs to Python's objects.

use std::any::Any;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use keyfold_tensor::dlpack::DLManagedTensorVersioned;
use keyfold_tensor::{Adopt, ExternalOps, ExternalOwner, Tensor};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::arrays::numpy_array;
use crate::attach::{is_attached, try_attach};

/// References to NumPy's arrays held by tensors and given back on any thread.
static ARRAY: ExternalOps =
    ExternalOps { retain: retain_array, release: release_array, adopt: None };

/// The same for torch's tensors, whose memory can be taken away from them (`set_`, `resize_`) and
/// moved (`share_memory_`): what outlives the call asks their storage.
static TORCH_OBJECT: ExternalOps =
    ExternalOps { retain, release, adopt: Some(crate::arrays::torch::adopt as Adopt) };

/// The same for TVM FFI's tensors, which can be moved out of their Python object.
static TVM_OBJECT: ExternalOps =
    ExternalOps { retain, release, adopt: Some(crate::arrays::tvm::adopt as Adopt) };

/// Memory that is held by [`Held`].
static HELD: ExternalOps = ExternalOps { retain: retain_held, release: release_held, adopt: None };

/// Runs `f` attached; not at all when the interpreter is shutting down, where what it would give
/// back is beyond anybody's reach. `f` uses the C API alone.
#[inline]
fn attached(f: impl FnOnce()) {
    if is_attached() {
        return f();
    }
    let _ = try_attach(|_py| f());
}

/// Holds an array and makes a weak reference to the array that owns the memory: NumPy's `resize`
/// refuses to move the memory of such an array, even with `refcheck=False`.
unsafe fn retain_array(array: *mut c_void) {
    // SAFETY: attached, and the array is alive: the caller holds a reference.
    attached(|| unsafe {
        ffi::Py_INCREF(array.cast());
        if ffi::PyWeakref_NewRef(numpy_array::memory_owner(array.cast()), null_mut()).is_null() {
            // Without memory for it the array is held as any object is.
            ffi::PyErr_Clear();
        }
    });
}

unsafe fn release_array(array: *mut c_void) {
    // SAFETY: attached, and the owner gives both references up. The weak one without a callback is
    // one object, which asking again finds.
    attached(|| unsafe {
        let weak = ffi::PyWeakref_NewRef(numpy_array::memory_owner(array.cast()), null_mut());
        match weak.is_null() {
            true => ffi::PyErr_Clear(),
            false => {
                // Two: the one just asked for, and the one of `retain_array` if there was memory.
                if ffi::Py_REFCNT(weak) > 1 {
                    ffi::Py_DECREF(weak);
                }
                ffi::Py_DECREF(weak);
            }
        }
        ffi::Py_DECREF(array.cast());
    });
}

unsafe fn retain(object: *mut c_void) {
    // SAFETY: attached, and the object is alive: the caller holds a reference.
    attached(|| unsafe { ffi::Py_INCREF(object.cast()) });
}

unsafe fn release(object: *mut c_void) {
    // SAFETY: attached, and the owner gives its reference up.
    attached(|| unsafe { ffi::Py_DECREF(object.cast()) });
}

/// What gives memory back that an object lent.
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

/// An owner that borrows a NumPy array for the time of a call.
///
/// # Safety
/// The array outlives the owner (not its clones).
pub(crate) unsafe fn borrowed_array(object: *mut ffi::PyObject) -> ExternalOwner {
    // SAFETY: Python never passes a null object; the caller vouches for its life.
    unsafe { ExternalOwner::borrowed(NonNull::new_unchecked(object.cast()), &ARRAY) }
}

/// The same of a torch tensor.
///
/// # Safety
/// As [`borrowed_array`].
pub(crate) unsafe fn borrowed_torch(object: *mut ffi::PyObject) -> ExternalOwner {
    // SAFETY: as above.
    unsafe { ExternalOwner::borrowed(NonNull::new_unchecked(object.cast()), &TORCH_OBJECT) }
}

/// The same of a TVM FFI tensor.
///
/// # Safety
/// As [`borrowed_array`].
pub(crate) unsafe fn borrowed_tvm(object: *mut ffi::PyObject) -> ExternalOwner {
    // SAFETY: as above.
    unsafe { ExternalOwner::borrowed(NonNull::new_unchecked(object.cast()), &TVM_OBJECT) }
}

/// The object behind a tensor's memory, if it is a Python object.
pub(crate) fn object(tensor: &Tensor) -> Option<*mut ffi::PyObject> {
    let owner = tensor.buffer().external_owner()?;
    let ops = owner.ops();
    let itself = [&raw const ARRAY, &raw const TORCH_OBJECT, &raw const TVM_OBJECT];
    if itself.iter().any(|known| std::ptr::eq(ops, *known)) {
        return Some(owner.object().as_ptr().cast());
    }
    if std::ptr::eq(ops, &raw const HELD) {
        // SAFETY: owners with these functions point to a `Held`, which the tensor keeps.
        return Some(unsafe { owner.object().cast::<Held>().as_ref() }.source.as_ptr());
    }
    None
}
