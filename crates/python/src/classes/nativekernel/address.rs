//! Addresses of functions: numbers, numba's cfuncs, function pointers of ctypes.

use std::ffi::c_void;

use keyfold_core::{Error, ErrorKind};
use keyfold_ffi::SafeCall;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use super::source::is_ctypes_function;
use crate::marshal::argument::wrong_type;
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{error, to_pyerr};

/// The address that an object is or has.
pub(super) fn address_of(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = object.py();
    let number = if is_ctypes_function(object)? {
        let ctypes = py.import("ctypes")?;
        let pointer = ctypes.call_method1("cast", (object, ctypes.getattr("c_void_p")?))?;
        let value = pointer.getattr("value")?;
        if value.is_none() { 0_usize.into_pyobject(py)?.into_any() } else { value }
    } else if object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>() {
        object.clone()
    } else if let Some(address) = object.getattr_opt("address")? {
        check_numba(object)?;
        address
    } else {
        return Err(wrong_type(format!(
            "an address is a whole number, an object with one as its .address (a numba cfunc), or a \
             function pointer of ctypes, not {}",
            describe_object(object)
        )));
    };
    number.extract::<usize>().map_err(|_| {
        let message = format!("{} is no address", describe_object(&number));
        error(py, ErrorKind::Value, message)
    })
}

/// Refuses a numba cfunc of another signature than the convention's.
pub(super) fn check_numba(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let Some(signature) = object.getattr_opt("_sig")? else { return Ok(()) };
    let text = |value: Bound<'_, PyAny>| value.str().map(|text| text.to_string());
    let args: Vec<Bound<'_, PyAny>> =
        signature.getattr("args")?.try_iter()?.collect::<PyResult<_>>()?;
    let args = args.into_iter().map(text).collect::<PyResult<Vec<_>>>()?;
    let returns = text(signature.getattr("return_type")?)?;
    let pointer = |at: usize| args[at].ends_with('*');
    let right = args.len() == 4
        && returns == "int32"
        && args[2] == "int32"
        && [0, 1, 3].into_iter().all(pointer);
    if right {
        return Ok(());
    }
    Err(to_pyerr(
        object.py(),
        Error::new(
            ErrorKind::Value,
            format!(
                "the cfunc's signature is {}, and must be int32(voidptr, voidptr, int32, voidptr): \
                 handle, arguments, their number, result",
                signature.str()?
            ),
        ),
    ))
}

/// The function at an address.
pub(super) fn function_at(py: Python<'_>, address: usize, what: &str) -> PyResult<SafeCall> {
    // The first page is never mapped: an offset from null is null.
    if address < 4096 {
        let message = if address == 0 {
            format!("{what} is null: there is no function")
        } else {
            format!("{what} is {address:#x}: there is no function")
        };
        return Err(error(py, ErrorKind::Value, message));
    }
    let pointer: *const c_void = std::ptr::with_exposed_provenance(address);
    // SAFETY: not null; the user says that it is a function of the documented convention.
    Ok(unsafe { std::mem::transmute::<*const c_void, SafeCall>(pointer) })
}
