//! Panics as errors: nothing unwinds into CPython.

use std::any::Any;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use keyfold_core::{Error, ErrorKind};
use keyfold_dispatch::{CallContext, Kernel};
use keyfold_tensor::Value;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Notes which kernel panicked, for the error that the call path makes of a panic.
pub(crate) struct PanicWatch<'c, 'k> {
    pub(crate) context: &'c CallContext<'k, Value>,
    pub(crate) kernel: &'c Kernel<Value>,
}

impl Drop for PanicWatch<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            note_panic(self.context, self.kernel);
        }
    }
}

thread_local! {
    /// Without a destructor, so that calls work while a thread ends: `panic_error` takes it out.
    static PANICKED: RefCell<ManuallyDrop<Option<String>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

#[cold]
fn note_panic(context: &CallContext<'_, Value>, kernel: &Kernel<Value>) {
    let place = format!(
        "{}: the kernel {} at {}",
        context.operator().name(),
        kernel.provenance(),
        context.key()
    );
    PANICKED.with_borrow_mut(|noted| {
        // The innermost kernel notes first.
        noted.get_or_insert(place);
    });
}

/// The error for a panic that the call path caught.
#[cold]
pub(crate) fn panic_error(operator: &str, panic: &(dyn Any + Send)) -> Error {
    let noted = PANICKED.with_borrow_mut(|noted| noted.take());
    let place = noted.unwrap_or_else(|| operator.to_owned());
    Error::new(ErrorKind::KernelPanic, format!("{place} panicked: {}", panic_text(panic)))
}

/// Returns the message of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return text;
    }
    panic.downcast_ref::<String>().map_or("no message", String::as_str)
}

/// Runs the body of a C function: errors and panics become exceptions.
#[inline(always)]
pub(crate) fn guarded(
    name: &str,
    body: impl FnOnce(Python<'_>) -> PyResult<*mut ffi::PyObject>,
) -> *mut ffi::PyObject {
    // SAFETY: CPython calls these functions with the GIL held.
    let py = unsafe { Python::assume_attached() };
    match catch_unwind(AssertUnwindSafe(|| body(py))) {
        Ok(Ok(object)) => object,
        Ok(Err(error)) => {
            error.restore(py);
            std::ptr::null_mut()
        }
        Err(panic) => {
            let message = format!("{name}() panicked: {}", panic_text(&*panic));
            PyRuntimeError::new_err(message).restore(py);
            std::ptr::null_mut()
        }
    }
}
