//! `with` blocks whose beginning and end are written in Python.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::guards::guard_error;

/// A context manager in Rust around two methods in Python: `_begin()`, and `_leave(failed)`, which
/// undoes it.
///
/// A signal handler may raise (Ctrl-C) between any two instructions of either, and between theirs and
/// those of the `with` statement. So a `_begin` that raised is undone at once, and a `_leave` that
/// raised is called again, with `failed`: it does only what isn't done yet.
#[pyclass(name = "_Block", module = "keyfold._core", frozen, subclass)]
pub(crate) struct PyBlock {
    open: AtomicBool,
}

#[pymethods]
impl PyBlock {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        PyBlock { open: AtomicBool::new(false) }
    }

    /// Whether a `with` block of this object is running.
    #[getter]
    fn _is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// What a block does at its beginning: nothing, unless a class says more.
    fn _begin(&self) {}

    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        if slf.get().open.swap(true, Ordering::Relaxed) {
            let text = format!("{} is in a with block already", slf.repr()?.to_string_lossy());
            return Err(guard_error(slf.py(), text));
        }
        if let Err(error) = slf.call_method0("_begin") {
            // The first error is the one that tells.
            let _ = leave(&slf, true);
            return Err(error);
        }
        Ok(slf)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(slf: Bound<'_, Self>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        if !slf.get().open.load(Ordering::Relaxed) {
            let text = format!("{} is in no with block to leave", slf.repr()?.to_string_lossy());
            return Err(guard_error(slf.py(), text));
        }
        let failed = exception.get_item(0).is_ok_and(|class| !class.is_none());
        leave(&slf, failed)
    }
}

fn leave(block: &Bound<'_, PyBlock>, failed: bool) -> PyResult<()> {
    block.get().open.store(false, Ordering::Relaxed);
    let left = block.call_method1("_leave", (failed,));
    if left.is_err() {
        let _ = block.call_method1("_leave", (true,));
    }
    left.map(drop)
}
