//! The vectorcall protocol for the operator classes (PEP 590).
//!
//! PyO3 gives a class with `__call__` a `tp_call`, which packs a tuple and a dict
//! for every call. CPython also takes a function pointer inside the object, at
//! an offset that the type names. PyO3's classes are ordinary heap types, so the
//! offset is set on them once, before the first object is called.

use std::mem::offset_of;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::call::operator::{self, PyOperator};
use crate::call::vectorcall::Vectorcall;
use crate::classes::expression::object::PyExpression;
use crate::classes::function::{self, PyFunction};
use crate::classes::packet::PyPacket;
use crate::marshal::errors::IntoPyResult;

/// Names the offset of the function pointer to a class of which `object` is an instance.
///
/// # Safety
/// `field` is the offset of a field of `T` that holds `vectorcall::<T>`; no other thread uses the
/// type yet.
unsafe fn enable<T: Vectorcall>(object: &Bound<'_, T>, field: usize) {
    let content = std::ptr::from_ref(object.get()) as usize;
    let offset = content + field - object.as_ptr() as usize;
    let class = object.as_any().get_type_ptr();
    // SAFETY: a heap type of ours. These are the fields that `PyType_Ready` would have filled
    // from a `__vectorcalloffset__` member; `PyVectorcall_Call` serves calls through `tp_call`.
    unsafe {
        (*class).tp_vectorcall_offset = offset as ffi::Py_ssize_t;
        (*class).tp_call = Some(ffi::PyVectorcall_Call);
        (*class).tp_flags |= ffi::Py_TPFLAGS_HAVE_VECTORCALL;
        ffi::PyType_Modified(class);
    }
}

/// Turns the protocol on for the classes, given one object of each.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    let operator = operator::object_of(py, &*keyfold::dispatcher().operator("aten::add").py(py)?)?;
    let packet = Bound::new(py, PyPacket::new(py, keyfold::dispatcher(), "aten::add")?)?;
    let expression = Bound::new(py, PyExpression::parse(py, "x")?)?;
    let function = function::any(py)?;
    // SAFETY: the offsets are the fields'; the module isn't importable yet, so no other thread has
    // the types.
    unsafe {
        enable(&operator, offset_of!(PyOperator, vectorcall));
        enable(&packet, offset_of!(PyPacket, vectorcall));
        enable(&expression, offset_of!(PyExpression, vectorcall));
        enable(&function, offset_of!(PyFunction, vectorcall));
    }
    Ok(())
}
