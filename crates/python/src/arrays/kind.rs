//! Arrays of any library for the layers that are written in Python: what is one, a tensor over one,
//! and a tensor in the library of another.

use pyo3::prelude::*;

use super::{Caller, look, view};
use crate::errors::IntoPyResult;
use crate::results;
use crate::tensor::{PyTensor, wrap};

/// Whether an object is an array whose elements keyfold reads: of a library, or keyfold's own. A
/// class that its user registered is what its kernels make of it.
#[pyfunction]
pub(crate) fn _is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let found = look(object).py(object.py())?;
    Ok(found.is_some_and(|(_, library)| library != Caller::OTHER))
}

/// Whether an object counts as a tensor by `register_array_type` alone.
pub(crate) fn is_registered(object: &Bound<'_, PyAny>) -> keyfold_core::Result<bool> {
    Ok(look(object)?.is_some_and(|(_, library)| library == Caller::OTHER))
}

/// The same for Python.
#[pyfunction]
pub(crate) fn _is_registered(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    is_registered(object).py(object.py())
}

/// A tensor over an array's memory, checked and resolved as for a native kernel.
#[pyfunction]
pub(crate) fn _view<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    if array.is_instance_of::<PyTensor>() {
        return Ok(array.clone());
    }
    look(array).py(py)?;
    Ok(wrap(py, view(array).py(py)?)?.into_any())
}

/// A tensor in the library of an array: as an operator called with that array would give it.
#[pyfunction]
pub(crate) fn _in_kind<'py>(
    tensor: &Bound<'py, PyTensor>,
    like: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    match look(like).py(py)? {
        Some((_, library)) if library != Caller::TENSOR => {
            results::wrap_for(py, tensor.get().tensor.clone(), &[like.as_ptr()], library)
        }
        _ => Ok(tensor.clone().into_any()),
    }
}
