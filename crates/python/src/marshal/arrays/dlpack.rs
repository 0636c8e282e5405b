//! DLPack (Python array API standard, `__dlpack__`): exchange without a copy, both ways.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use keyfold_core::ErrorKind;
use keyfold_tensor::{Tensor, dlpack};
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::marshal::errors::{IntoPyResult, error};

const VERSIONED: &CStr = c"dltensor_versioned";
const LEGACY: &CStr = c"dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";
const USED_LEGACY: &CStr = c"used_dltensor";

/// The newest DLPack version that we read and write.
const MAX_VERSION: (u32, u32) = (1, 0);

/// A tensor over the memory of any object with `__dlpack__`, or of a capsule.
pub(crate) fn import(object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let capsule = if is_capsule(object) {
        object.clone()
    } else {
        let export = match object.getattr("__dlpack__") {
            Ok(export) => export,
            Err(raised) if raised.is_instance_of::<PyAttributeError>(object.py()) => {
                let message = format!(
                    "from_dlpack() takes an object with __dlpack__, or a capsule, not {}",
                    crate::marshal::describe::describe_object(object)
                );
                return Err(error(object.py(), ErrorKind::Binding, message));
            }
            Err(error) => return Err(error),
        };
        let options = PyDict::new(object.py());
        options.set_item("max_version", MAX_VERSION)?;
        match export.call((), Some(&options)) {
            Ok(capsule) => capsule,
            // Exporters of before DLPack 1.0 don't know the keyword.
            Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => export.call0()?,
            Err(error) => return Err(error),
        }
    };
    consume(&capsule)
}

fn is_capsule(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a type check of a live object.
    unsafe { ffi::PyCapsule_CheckExact(object.as_ptr()) != 0 }
}

/// Takes what a capsule holds, and marks it used, as the protocol says.
fn consume(capsule: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let py = capsule.py();
    let refuse = |message: String| error(py, ErrorKind::Exchange, message);
    if !is_capsule(capsule) {
        let given = crate::marshal::describe::describe_object(capsule);
        return Err(refuse(format!("__dlpack__ must return a capsule, not {given}")));
    }
    for (name, used, versioned) in [(VERSIONED, USED_VERSIONED, true), (LEGACY, USED_LEGACY, false)]
    {
        // SAFETY: a live capsule and a C string; the pointer is what the exporter put there.
        let pointer = unsafe {
            if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
                continue;
            }
            ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr())
        };
        let Some(pointer) = NonNull::new(pointer) else { return Err(PyErr::fetch(py)) };
        // SAFETY: the name says that it points to that struct, which the capsule owns until it is
        // marked used; on an error it stays the capsule's, whose destructor frees it.
        let tensor = unsafe {
            if versioned {
                dlpack::from_dlpack_versioned(pointer.as_ptr().cast())
            } else {
                dlpack::from_dlpack(pointer.as_ptr().cast())
            }
        }
        .py(py)?;
        // SAFETY: a live capsule; the new name is a static string.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
            return Err(PyErr::fetch(py));
        }
        return Ok(tensor);
    }
    // SAFETY: a live capsule; the name is null or a C string that it keeps.
    let name = unsafe {
        let name = ffi::PyCapsule_GetName(capsule.as_ptr());
        if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into() }
    };
    if name.starts_with("used_") {
        return Err(refuse(
            "this DLPack capsule was used already: each can be taken once; export again".to_owned(),
        ));
    }
    Err(refuse(format!("a capsule named {name:?} is no DLPack tensor (\"dltensor\")")))
}

/// A tensor in a capsule, versioned or as before DLPack 1.0.
pub(crate) fn export<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    versioned: bool,
    copied: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (pointer, name): (*mut c_void, &CStr) = if versioned {
        (dlpack::to_dlpack_versioned(tensor, copied).py(py)?.as_ptr().cast(), VERSIONED)
    } else {
        (dlpack::to_dlpack(tensor).py(py)?.as_ptr().cast(), LEGACY)
    };
    // SAFETY: a struct of that name's kind, owned by the capsule until somebody takes it.
    unsafe {
        let capsule = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(free_capsule));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Frees a capsule's tensor if nobody took it.
///
/// # Safety
/// CPython's contract for a capsule's destructor.
unsafe extern "C" fn free_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: called once, for a capsule made in `export`; a used one has another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            let pointer = ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr());
            let managed: *mut dlpack::DLManagedTensorVersioned = pointer.cast();
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
        } else if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) != 0 {
            let pointer = ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr());
            let managed: *mut dlpack::DLManagedTensor = pointer.cast();
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
        }
    }
}
