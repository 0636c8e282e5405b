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
    // PyO3 may count the thread as attached from a frame further out, though foreign code in between
    // let go of the GIL (a function of TVM FFI does): so CPython is asked, too.
    let _attached = (!is_attached()).then(Attached::new);
    // SAFETY: the interpreter that made this thread's state is there, or ends the thread.
    Some(unsafe { Python::attach_unchecked(f) })
}

/// Runs a call that foreign code makes. Where that code let go of the GIL inside of a frame that PyO3
/// counts as attached, PyO3 is told first: what is dropped in there waits for the GIL then.
pub(crate) fn run_called_back(call: &mut dyn FnMut()) {
    /// The call for `detach`, which runs it on this very thread.
    struct Here<'a>(&'a mut dyn FnMut());
    // SAFETY: it never leaves its thread.
    unsafe impl Send for Here<'_> {}
    impl Here<'_> {
        fn run(self) {
            (self.0)();
        }
    }
    // SAFETY: asking is allowed on any thread at any time.
    if is_attached() || unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
        return call();
    }
    let _attached = Attached::new();
    let here = Here(call);
    // SAFETY: attached by the line before the last.
    unsafe { Python::assume_attached() }.detach(move || here.run());
}

/// Whether this thread is known to be attached to the interpreter, asked in the cheapest way.
#[inline(always)]
pub(crate) fn is_attached() -> bool {
    // The stable ABI lacks the question; attaching again is right, too, and slower.
    #[cfg(feature = "abi3")]
    return false;
    // SAFETY: asking is allowed on any thread at any time.
    #[cfg(not(feature = "abi3"))]
    return unsafe { ffi::PyGILState_Check() } == 1;
}

/// The GIL, taken by CPython's own count of who holds it, until this is dropped.
struct Attached(ffi::PyGILState_STATE);

impl Attached {
    fn new() -> Self {
        // SAFETY: the thread has a state of the interpreter, which is there or ends the thread.
        Attached(unsafe { ffi::PyGILState_Ensure() })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: gives back what `new` took on this thread.
        unsafe { ffi::PyGILState_Release(self.0) };
    }
}

/// Runs `f` where the GIL is held, by a call from Python that PyO3 doesn't know of.
#[inline]
pub(crate) fn reattach<R>(f: impl FnOnce(Python<'_>) -> R) -> R {
    try_attach(f).unwrap_or_else(|| unreachable!("the GIL is held without an interpreter"))
}
