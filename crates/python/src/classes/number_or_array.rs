//! Whether an argument is a number or an array, for functions that take both.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt};

use crate::marshal::arrays;
use crate::marshal::tensor::is_tensor;

/// The kind of an argument where numbers stand for arrays.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    Array,
    Number,
}

/// The kind of an object. Anything else counts as an array: the operator refuses it.
///
/// # Safety
/// `object` is a live object, and the GIL is held.
#[inline(always)]
pub(crate) unsafe fn operand(py: Python<'_>, object: *mut ffi::PyObject) -> Operand {
    // SAFETY: as for the caller.
    unsafe {
        if is_tensor(object) || arrays::numpy_array::is_ndarray(object) {
            return Operand::Array;
        }
        if ffi::PyFloat_CheckExact(object) != 0 || ffi::PyLong_CheckExact(object) != 0 {
            return Operand::Number;
        }
        other_operand(&Borrowed::from_ptr(py, object))
    }
}

#[cold]
#[inline(never)]
fn other_operand(object: &Bound<'_, PyAny>) -> Operand {
    if object.is_exact_instance_of::<PyBool>() || object.is_exact_instance_of::<PyComplex>() {
        return Operand::Number;
    }
    let is_number = || {
        object.is_instance_of::<PyInt>()
            || object.is_instance_of::<PyFloat>()
            || object.is_instance_of::<PyComplex>()
    };
    match arrays::look(object) {
        Ok(None) if is_number() => Operand::Number,
        _ => Operand::Array,
    }
}
