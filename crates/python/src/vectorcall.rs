//! The vectorcall protocol for the operator classes (PEP 590).
//!
//! PyO3 gives a class with `__call__` a `tp_call`, which packs a tuple and a dict
//! for every call. CPython also takes a function pointer inside the object, at
//! an offset that the type names. PyO3's classes are ordinary heap types, so the
//! offset is set on them once, before the first object is called.

use std::mem::offset_of;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::call::{self, Computed};
use crate::expression::PyExpression;
use crate::fastcalls::guarded;
use crate::operator::PyOperator;
use crate::packet::PyPacket;

/// # Safety
/// CPython's contract for a vectorcall function; `callable` is a [`PyOperator`].
pub(crate) unsafe extern "C" fn operator_call(
    callable: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    nargsf: usize,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this with the GIL held, for objects that carry this function, which
    // only `PyOperator::new` makes; the class is frozen, and the caller holds the object.
    unsafe {
        let py = Python::assume_attached();
        let object = Borrowed::from_ptr(py, callable);
        let operator = object.cast_unchecked::<PyOperator>().get();
        let nargs = ffi::PyVectorcall_NARGS(nargsf) as usize;
        call::call(operator, args, nargs, keywords, &Computed)
    }
}

/// # Safety
/// CPython's contract for a vectorcall function; `callable` is a [`PyPacket`].
pub(crate) unsafe extern "C" fn packet_call(
    callable: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    nargsf: usize,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as for `operator_call`, with `PyPacket::new`.
    unsafe {
        let py = Python::assume_attached();
        let object = Borrowed::from_ptr(py, callable);
        let packet = object.cast_unchecked::<PyPacket>().get();
        let nargs = ffi::PyVectorcall_NARGS(nargsf) as usize;
        guarded("OperatorPacket", |py| Ok(packet.call_c(py, args, nargs, keywords)))
    }
}

/// # Safety
/// CPython's contract for a vectorcall function; `callable` is a [`PyExpression`].
pub(crate) unsafe extern "C" fn expression_call(
    callable: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    nargsf: usize,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as for `operator_call`, with `PyExpression::new`.
    unsafe {
        let py = Python::assume_attached();
        let object = Borrowed::from_ptr(py, callable);
        let expression = object.cast_unchecked::<PyExpression>().get();
        let nargs = ffi::PyVectorcall_NARGS(nargsf) as usize;
        guarded("Expression", |py| expression.call_c(py, args, nargs, keywords))
    }
}

/// Names the offset of the function pointer to a class of which `object` is an instance.
///
/// # Safety
/// `field` is the offset inside `content`, which is what `object` holds; no other thread uses
/// the type yet.
unsafe fn enable(object: &Bound<'_, PyAny>, content: usize, field: usize) {
    let offset = content + field - object.as_ptr() as usize;
    let class = object.get_type_ptr();
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
pub(crate) fn init(
    operator: &Bound<'_, PyOperator>,
    packet: &Bound<'_, PyPacket>,
    expression: &Bound<'_, PyExpression>,
) {
    let content = std::ptr::from_ref(operator.get()) as usize;
    // SAFETY: the content is the object's, the offset is its field's; the module isn't
    // importable yet, so no other thread has the types.
    unsafe { enable(operator.as_any(), content, offset_of!(PyOperator, vectorcall)) };
    let content = std::ptr::from_ref(packet.get()) as usize;
    // SAFETY: as above.
    unsafe { enable(packet.as_any(), content, offset_of!(PyPacket, vectorcall)) };
    let content = std::ptr::from_ref(expression.get()) as usize;
    // SAFETY: as above.
    unsafe { enable(expression.as_any(), content, offset_of!(PyExpression, vectorcall)) };
}
