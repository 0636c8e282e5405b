//! Attaching to the interpreter: the one way from code that may run without the GIL into Python.
//!
//! A thread that computes without the GIL (backward, a replay, a large kernel) may want Python when
//! the interpreter has ended. A thread of Python's own then stops (see `forced_unwind`); a host's,
//! which outlives the interpreter, gets an error. PyO3 panics for both, and in destructors that the
//! ending interpreter runs itself.

use keyfold_core::{Error, ErrorKind, Result};
use pyo3::ffi;
use pyo3::prelude::*;

/// Runs `f` attached, on any thread.
///
/// # Errors
/// [`ErrorKind::KernelFailed`] if the interpreter has ended; what `f` gives.
#[inline]
pub(crate) fn attach<R>(f: impl FnOnce(Python<'_>) -> Result<R>) -> Result<R> {
    try_attach(f).unwrap_or_else(|| Err(ended()))
}

#[cold]
fn ended() -> Error {
    let message = "the Python interpreter has ended, and this call needs what is written in Python";
    Error::new(ErrorKind::KernelFailed, message)
}

/// Runs `f` attached, on any thread; not at all if the interpreter has ended.
#[inline]
#[expect(clippy::disallowed_methods, reason = "callers are told that the interpreter has ended")]
pub(crate) fn try_attach<R>(f: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    // SAFETY: asking is allowed on any thread at any time.
    if unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
        return Python::try_attach(f);
    }
    // SAFETY: the interpreter that made this thread's state is there, or ends the thread.
    Some(unsafe { Python::attach_unchecked(f) })
}

/// Runs `f` where the GIL is held, by a call from Python that PyO3 doesn't know of.
#[inline]
pub(crate) fn reattach<R>(f: impl FnOnce(Python<'_>) -> R) -> R {
    try_attach(f).unwrap_or_else(|| unreachable!("the GIL is held without an interpreter"))
}
