//! `with` blocks whose beginning and end are written in Python.

use std::sync::atomic::{AtomicU8, Ordering};

use keyfold_core::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::marshal::errors::error;

/// A context manager in Rust around two methods in Python: `_begin()`, and `_leave(failed)`, which
/// undoes it.
///
/// A signal handler may raise (Ctrl-C) between any two instructions of either, and between theirs and
/// those of the `with` statement. So a `_begin` that raised is undone at once, and a `_leave` that
/// raised is called again, with `failed`: it does only what isn't done yet. Until that has returned, the
/// block isn't open any more, and no thread can enter it anew.
#[pyclass(name = "_Block", module = "keyfold._core", frozen, subclass)]
pub(crate) struct PyBlock {
    state: AtomicU8,
}

const CLOSED: u8 = 0;
const OPEN: u8 = 1;
/// `_leave` runs.
const LEAVING: u8 = 2;

#[pymethods]
impl PyBlock {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        PyBlock { state: AtomicU8::new(CLOSED) }
    }

    /// Whether a `with` block of this object is running, and hasn't begun to end.
    #[getter]
    fn _is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OPEN
    }

    /// The beginning of the block: does nothing, unless a class says more.
    fn _begin(&self) {}

    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        if !slf.get().turn(CLOSED, OPEN) {
            let text = format!("{} is in a with block already", slf.repr()?.to_string_lossy());
            return Err(error(slf.py(), ErrorKind::Guard, text));
        }
        if let Err(error) = slf.call_method0("_begin") {
            // The first error is the one that tells.
            if slf.get().turn(OPEN, LEAVING) {
                let _ = leave(&slf, true);
            }
            return Err(error);
        }
        Ok(slf)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(slf: Bound<'_, Self>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        if !slf.get().turn(OPEN, LEAVING) {
            let text = format!("{} is in no with block to leave", slf.repr()?.to_string_lossy());
            return Err(error(slf.py(), ErrorKind::Guard, text));
        }
        let failed = exception.get_item(0).is_ok_and(|class| !class.is_none());
        leave(&slf, failed)
    }
}

impl PyBlock {
    /// Goes from one state to another; false where it is in none such.
    fn turn(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Runs `_leave` for the thread that turned to `LEAVING`.
fn leave(block: &Bound<'_, PyBlock>, failed: bool) -> PyResult<()> {
    let left = block.call_method1("_leave", (failed,));
    if left.is_err() {
        let _ = block.call_method1("_leave", (true,));
    }
    block.get().state.store(CLOSED, Ordering::Relaxed);
    left.map(drop)
}
