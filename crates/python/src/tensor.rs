//! `keyfold.Tensor`.

use keyfold_tensor::Tensor;
use pyo3::prelude::*;

use crate::foreign::OF_AN_OBJECT;
use crate::numpy_array;

/// keyfold's own tensor: typed, strided memory with a device and dispatch keys.
#[pyclass(name = "Tensor", module = "keyfold", frozen, weakref)]
pub(crate) struct PyTensor {
    pub(crate) tensor: Tensor,
}

/// A tensor as a Python object.
#[inline]
pub(crate) fn wrap(py: Python<'_>, mut tensor: Tensor) -> PyResult<Bound<'_, PyTensor>> {
    tensor.set_token(OF_AN_OBJECT);
    Bound::new(py, PyTensor { tensor })
}

/// A tensor as a NumPy array over the same memory, which the array keeps alive.
pub(crate) fn into_numpy(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    let owner = wrap(py, tensor)?;
    numpy_array::from_tensor(py, &owner.get().tensor, owner.clone().into_any())
}
