//! A Python kernel's result on its way to the caller: checked, and put in the caller's library.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Type;
use keyfold_dispatch::{CallContext, Kernel};
use keyfold_tensor::Value;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::call::homes::home;
use crate::call::{results, returned};
use crate::marshal::arrays::numpy_array::{self, is_ndarray};
use crate::marshal::arrays::{self, caller::Caller, classes};
use crate::marshal::attach::reattach;
use crate::marshal::describe::describe_object;
use crate::marshal::errors::from_pyerr;
use crate::marshal::tensor::is_tensor;

/// Checks what a Python kernel returned, and puts it in the caller's library.
///
/// # Safety
/// `result` is a new reference, which is taken over; `objects` are live; the GIL is held.
#[inline(always)]
pub(crate) unsafe fn finish(
    returns_tensor: bool,
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
    result: *mut ffi::PyObject,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> Result<*mut ffi::PyObject> {
    // SAFETY: as for the caller.
    unsafe {
        if returns_tensor {
            let is_tensor = is_tensor(result);
            if is_tensor && (caller.keeps_tensors() || caller == Caller::OTHER) {
                return Ok(result);
            }
            if caller.wants_numpy() && is_ndarray(result) && numpy_array::look(result).is_some() {
                return Ok(result);
            }
            if classes::look_fast(result).is_some_and(|(_, library)| library == caller) {
                return Ok(result);
            }
        }
        finish_slowly(context, kernel, result, objects, caller)
    }
}

#[cold]
#[inline(never)]
pub(crate) unsafe fn finish_slowly(
    context: &CallContext<'_, Value>,
    kernel: &Kernel<Value>,
    result: *mut ffi::PyObject,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> Result<*mut ffi::PyObject> {
    reattach(|py| {
        // SAFETY: a new reference, taken over.
        let result = unsafe { Bound::from_owned_ptr(py, result) };
        let returns = &context.operator().schema().returns;
        let wrong = || context.operator().wrong_return(kernel, &describe_object(&result));
        // The kernel's author must mend a wrong return, so the error names the kernel.
        let refused = |error: Error| match error.kind() {
            ErrorKind::Foreign => error,
            _ => context
                .operator()
                .wrong_return(kernel, &format!("what can't be taken ({})", error.message())),
        };
        let one = |item: &Bound<'_, PyAny>, ty: &Type| -> Result<Py<PyAny>> {
            match returned::item_fits(item, ty).map_err(refused)? {
                true => in_callers_library(item, ty, objects, caller).map(Bound::unbind),
                false => Err(wrong()),
            }
        };
        match &returns[..] {
            [] if result.is_none() => Ok(result.into_ptr()),
            [] => Err(wrong()),
            [only] => Ok(one(&result, &only.ty)?.into_ptr()),
            many => {
                let items = returned::sequence(&result, many.len()).ok_or_else(wrong)?;
                let items: Result<Vec<_>> =
                    items.iter().zip(many).map(|(item, r)| one(item, &r.ty)).collect();
                let tuple = PyTuple::new(py, items?).map_err(from_pyerr)?;
                Ok(tuple.into_ptr())
            }
        }
    })
}

/// A kernel's result in the library that the call's arrays are of: NumPy in, NumPy out.
fn in_callers_library<'py>(
    item: &Bound<'py, PyAny>,
    ty: &Type,
    objects: &[*mut ffi::PyObject],
    caller: Caller,
) -> Result<Bound<'py, PyAny>> {
    let py = item.py();
    if let Type::List(inner, _) = ty.without_optional()
        && ty.carries_tensors()
        && !item.is_none()
    {
        // A new list: the kernel may keep its own.
        let elements: Result<Vec<_>> = item
            .try_iter()
            .map_err(from_pyerr)?
            .map(|element| {
                in_callers_library(&element.map_err(from_pyerr)?, inner, objects, caller)
            })
            .collect();
        return Ok(PyList::new(py, elements?).map_err(from_pyerr)?.into_any());
    }
    if !ty.carries_tensors() || item.is_none() || caller == Caller::OTHER {
        return Ok(item.clone());
    }
    let home = if caller.keeps_tensors() { Caller::TENSOR } else { home(py, objects, caller) };
    // SAFETY: a bound object is alive.
    let (is_tensor, is_array) = unsafe { (is_tensor(item.as_ptr()), is_ndarray(item.as_ptr())) };
    if home == Caller::NUMPY && !is_tensor && arrays::is_numpy_scalar(item) {
        // A NumPy scalar where a Tensor is promised: 0-dim.
        return numpy_array::as_array(item);
    }
    let own = match (is_tensor, is_array) {
        (true, _) => Some(Caller::TENSOR),
        (_, true) => Some(Caller::NUMPY),
        _ => arrays::look(item)?.map(|(_, library)| library),
    };
    match own {
        // A class that its user registered is what its kernels say it is.
        Some(own) if own == home || own == Caller::OTHER => Ok(item.clone()),
        Some(_) => {
            let view = arrays::view(item)?;
            results::tensor_to_py(py, view, objects, home).map_err(from_pyerr)
        }
        None => Ok(item.clone()),
    }
}
