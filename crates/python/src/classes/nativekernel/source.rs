//! Which objects are native functions, or hold one.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyModule};

/// The kind of native function that an object is or holds.
#[derive(Clone, Copy)]
pub(super) enum Source {
    TvmFfi,
    Capsule,
    Numba,
    Address,
}

impl Source {
    /// The kind that `NativeKernel(object)` takes an object for.
    pub(super) fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
        if let Some(registered) = Source::registered(object)? {
            return Ok(Some(registered));
        }
        let number = object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>();
        Ok((number || is_ctypes_function(object)?).then_some(Source::Address))
    }

    /// The kind that `impl` registers natively: objects that say of themselves that they are such a function.
    pub(super) fn registered(object: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
        // SAFETY: a live object.
        if unsafe { ffi::PyCapsule_CheckExact(object.as_ptr()) != 0 } {
            return Ok(Some(Source::Capsule));
        }
        if is_instance(object, "tvm_ffi", "Function")? {
            return Ok(Some(Source::TvmFfi));
        }
        Ok(is_instance(object, "numba.core.ccallback", "CFunc")?.then_some(Source::Numba))
    }
}

/// Whether an object is of a class of a module that is loaded; nothing is imported.
pub(super) fn is_instance(object: &Bound<'_, PyAny>, module: &str, class: &str) -> PyResult<bool> {
    let modules = object.py().import("sys")?.getattr("modules")?;
    match modules.call_method1("get", (module,))?.cast_into::<PyModule>() {
        Ok(module) => match module.getattr_opt(class)? {
            Some(class) => object.is_instance(&class),
            None => Ok(false),
        },
        Err(_) => Ok(false),
    }
}

pub(super) fn is_ctypes_function(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    is_instance(object, "_ctypes", "CFuncPtr")
}
