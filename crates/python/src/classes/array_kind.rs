//! Arrays of any library for the layers that are written in Python: what is one, a tensor over one,
//! and a tensor in the library of another.

use keyfold_dispatch::{DispatchKey, DispatchKeySet};
use pyo3::prelude::*;

use crate::call::results;
use crate::marshal::arrays::{self, caller::Caller};
use crate::marshal::errors::IntoPyResult;
use crate::marshal::keys::{PyKeySet, keyset_object};
use crate::marshal::tensor::{PyTensor, wrap};

/// Whether an object is an array whose elements keyfold reads: of a library, or keyfold's own. A
/// class that its user registered is what its kernels make of it.
#[pyfunction]
pub(crate) fn _is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let found = arrays::look(object).py(object.py())?;
    Ok(found.is_some_and(|(_, library)| library != Caller::OTHER))
}

/// Whether an object counts as a tensor by `register_array_type` alone.
#[pyfunction]
pub(crate) fn _is_registered(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    arrays::is_registered(object).py(object.py())
}

/// A tensor over an array's memory, checked and resolved as for a native kernel.
#[pyfunction]
pub(crate) fn _view<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    if array.is_instance_of::<PyTensor>() {
        return Ok(array.clone());
    }
    arrays::look(array).py(py)?;
    Ok(wrap(py, arrays::view(array).py(py)?)?.into_any())
}

/// A tensor in the library of an array: as an operator called with that array would give it.
#[pyfunction]
pub(crate) fn _in_kind<'py>(
    tensor: &Bound<'py, PyTensor>,
    like: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    match arrays::look(like).py(py)? {
        Some((_, library)) if library != Caller::TENSOR => {
            results::wrap_for(py, tensor.get().tensor.clone(), &[like.as_ptr()], library)
        }
        _ => Ok(tensor.clone().into_any()),
    }
}

#[pymethods]
impl PyKeySet {
    /// The keys that a call with these tensors starts from.
    ///
    /// Args:
    ///     tensors: tensors or arrays, `None` among them allowed.
    ///     grad_enabled: whether Autograd is in when one of them requires grad.
    ///     pipeline_enabled: whether Pipeline is in.
    #[staticmethod]
    #[pyo3(signature = (tensors, grad_enabled=false, pipeline_enabled=false))]
    fn from_tensors<'py>(
        py: Python<'py>,
        tensors: &Bound<'py, PyAny>,
        grad_enabled: bool,
        pipeline_enabled: bool,
    ) -> PyResult<Bound<'py, PyKeySet>> {
        let mut set = DispatchKeySet::EMPTY;
        for tensor in tensors.try_iter()? {
            let tensor = tensor?;
            if !tensor.is_none() {
                set |= arrays::keys_of(&tensor)?;
            }
        }
        if !grad_enabled {
            set = set.remove(DispatchKey::Autograd);
        }
        if pipeline_enabled {
            set = set.insert(DispatchKey::Pipeline);
        }
        keyset_object(py, set)
    }
}
