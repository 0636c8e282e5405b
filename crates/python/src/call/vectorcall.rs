//! The function that CPython calls objects by (PEP 590), for each class whose objects carry it.

use pyo3::PyClass;
use pyo3::ffi;
use pyo3::prelude::*;

/// A class with a field that holds [`vectorcall`] of this class, at the type's `tp_vectorcall_offset`.
pub(crate) trait Vectorcall:
    PyClass<Frozen = pyo3::pyclass::boolean_struct::True> + Sync
{
    /// Calls the object with a C array of arguments: positional ones, then those that `keywords`
    /// names. Returns a new reference, or null with an exception set.
    ///
    /// # Safety
    /// `args` has as many live objects as `nargs` plus the names; `keywords` is null or a tuple of
    /// strings; the GIL is held.
    unsafe fn call_c_array(
        &self,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// # Safety
/// CPython's contract for a vectorcall function; `callable` is a `T`.
pub(crate) unsafe extern "C" fn vectorcall<T: Vectorcall>(
    callable: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    nargsf: usize,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this with the GIL held, for objects that carry this function, which only
    // the constructors of `T` make; the class is frozen, and the caller holds the object.
    unsafe {
        let object = Borrowed::from_ptr(Python::assume_attached(), callable);
        let nargs = ffi::PyVectorcall_NARGS(nargsf) as usize;
        object.cast_unchecked::<T>().get().call_c_array(args, nargs, keywords)
    }
}
