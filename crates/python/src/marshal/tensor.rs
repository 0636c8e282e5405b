//! `keyfold.Tensor` as an object: the class's content, and tensors in and out of it. Its methods are in
//! `classes::tensor`.

use std::sync::atomic::{AtomicPtr, Ordering};

use keyfold_core::Scalar;
use keyfold_dispatch::DispatchKey;
use keyfold_layers::autograd::edge_of;
use keyfold_tensor::Tensor;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat};

use crate::marshal::errors::IntoPyResult;

/// The token of a tensor that is the view of a caller's object.
pub(crate) const OF_AN_OBJECT: usize = 1;

/// keyfold's own tensor: typed, strided memory with a device and dispatch keys.
///
/// Made by `keyfold.asarray`, `from_numpy`, `from_dlpack`, `zeros` and their like. It compares
/// element by element and hashes by identity. Everything that computes goes through the operators
/// in `keyfold.ops.aten`, so layers and keys of your own see it.
#[pyclass(name = "Tensor", module = "keyfold", frozen, weakref, subclass)]
pub(crate) struct PyTensor {
    pub(crate) tensor: Tensor,
}

/// A tensor as a Python object.
#[inline]
pub(crate) fn wrap(py: Python<'_>, mut tensor: Tensor) -> PyResult<Bound<'_, PyTensor>> {
    // From here on it may be written in place and saved for a gradient.
    tensor.track();
    tensor.set_token(OF_AN_OBJECT);
    if tensor.requires_grad() && !tensor.keys().contains(DispatchKey::Vmap) {
        // A leaf has its place in the graph from the start, which clones then share.
        edge_of(&tensor).py(py)?;
    }
    Bound::new(py, PyTensor { tensor })
}

/// A number as Python's.
pub(crate) fn scalar_to_py(py: Python<'_>, scalar: Scalar) -> PyResult<Bound<'_, PyAny>> {
    Ok(match scalar {
        Scalar::Bool(flag) => PyBool::new(py, flag).to_owned().into_any(),
        Scalar::Int(number) => number.into_pyobject(py)?.into_any(),
        Scalar::UInt(number) => number.into_pyobject(py)?.into_any(),
        Scalar::Float(number) => PyFloat::new(py, number).into_any(),
        Scalar::Complex(c) => PyComplex::from_doubles(py, c.re, c.im).into_any(),
    })
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());

/// Notes the type object that the call path compares with. Called once, at import.
pub(crate) fn init(py: Python<'_>) {
    TYPE.store(py.get_type::<PyTensor>().as_ptr().cast(), Ordering::Release);
}

/// Whether a class is exactly `keyfold.Tensor`.
#[inline(always)]
pub(crate) fn is_class(class: *mut ffi::PyTypeObject) -> bool {
    class == TYPE.load(Ordering::Relaxed)
}

/// Whether the object is exactly a `keyfold.Tensor`.
///
/// # Safety
/// `object` is a live object.
#[inline(always)]
pub(crate) unsafe fn is_tensor(object: *mut ffi::PyObject) -> bool {
    // SAFETY: as for the caller.
    is_class(unsafe { ffi::Py_TYPE(object) })
}

/// The tensor inside a `keyfold.Tensor`.
///
/// # Safety
/// `object` is exactly a `keyfold.Tensor`, alive for `'a`.
#[inline(always)]
pub(crate) unsafe fn tensor_of<'a>(object: *mut ffi::PyObject) -> &'a Tensor {
    // SAFETY: the type was checked by the caller; the class is frozen, so a shared reference to
    // its content needs no borrow flag, and it lives as long as the object.
    unsafe {
        let py = Python::assume_attached();
        let object = Borrowed::from_ptr(py, object);
        let tensor: &Tensor = &object.cast_unchecked::<PyTensor>().get().tensor;
        &*std::ptr::from_ref(tensor)
    }
}
