//! The methods of `keyfold.Tensor` that the operators' rows name: `x.exp()`, `x.sum(0)`.
//!
//! Each is a method descriptor of CPython, whose C function calls the function of the row with the tensor as
//! the first argument. Methods, bound methods, their docstrings and pickles are then CPython's.

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::OnceLock;

use keyfold::ops::rows;
use keyfold_core::ErrorKind;
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::call::panics::guarded;
use crate::classes::function::PyFunction;
use crate::marshal::errors::error;
use crate::marshal::tensor::PyTensor;

/// How many methods there may be: CPython hands a C function nothing that tells methods apart.
const MOST: usize = 24;

static METHODS: [OnceLock<PyFunction>; MOST] = [const { OnceLock::new() }; MOST];

/// For each method the C function that calls it.
const CALLS: [ffi::PyCFunctionFastWithKeywords; MOST] = [
    call::<0>, call::<1>, call::<2>, call::<3>, call::<4>, call::<5>, call::<6>, call::<7>,
    call::<8>, call::<9>, call::<10>, call::<11>, call::<12>, call::<13>, call::<14>, call::<15>,
    call::<16>, call::<17>, call::<18>, call::<19>, call::<20>, call::<21>, call::<22>, call::<23>,
];

/// # Safety
/// CPython's contract for `METH_FASTCALL | METH_KEYWORDS`, as a method of [`PyTensor`].
unsafe extern "C" fn call<const AT: usize>(
    this: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    nargs: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as for the caller.
    unsafe { call_method(&METHODS[AT], this, args, nargs as usize, keywords) }
}

/// Calls a method's function with the tensor as the first argument.
///
/// # Safety
/// As for [`call`].
#[inline(never)]
unsafe fn call_method(
    method: &OnceLock<PyFunction>,
    this: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    nargs: usize,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guarded("keyfold.Tensor", |py| {
        let method = method
            .get()
            .ok_or_else(|| error(py, ErrorKind::Registration, "keyfold isn't imported whole"))?;
        // SAFETY: live objects, by the contract, a value for each name behind those by position; the
        // descriptor has checked the type of `this`.
        unsafe {
            let names = if keywords.is_null() { 0 } else { ffi::PyTuple_Size(keywords) as usize };
            if nargs + names == 0 {
                return method.call_c(py, &raw const this, 1, null_mut());
            }
            let mut all = SmallVec::<[_; 8]>::from_slice(&[this]);
            all.extend_from_slice(std::slice::from_raw_parts(args, nargs + names));
            method.call_c(py, all.as_ptr(), 1 + nargs, keywords)
        }
    })
}

/// Puts the methods on the class. Called once, at import.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<PyTensor>();
    let mut free = CALLS.into_iter().zip(&METHODS);
    for row in rows() {
        let Some(function) = PyFunction::of(py, row, true)? else { continue };
        let (call, method) = free.next().ok_or_else(|| {
            error(py, ErrorKind::Registration, "rows name more methods than `CALLS` has functions")
        })?;
        let function = method.get_or_init(|| function);
        let definition = Box::leak(Box::new(ffi::PyMethodDef {
            ml_name: CString::new(function.name())?.into_raw(),
            ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: call },
            ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
            ml_doc: CString::new(function.method_doc())?.into_raw(),
        }));
        // SAFETY: CPython keeps pointers to the class and to the definition, which is never freed.
        let descriptor = unsafe {
            let descriptor = ffi::PyDescr_NewMethod(class.as_type_ptr(), definition);
            Bound::from_owned_ptr_or_err(py, descriptor)?
        };
        class.setattr(function.name(), descriptor)?;
    }
    Ok(())
}
