//! Recordings of functions in Python: `keyfold.fuse`.

mod mode;
mod recorder;
mod recording;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

pub(crate) use mode::_fuse_mode;
use mode::Any;
pub(crate) use recorder::{_for_numpy, PyRecorder};
pub(crate) use recording::PyRecording;

/// A recording of calls with arrays alone, and what arranges its outputs; `None` where they are the one
/// result.
type Plain = (Py<PyRecording>, Option<Py<PyAny>>);

/// The calls of a fused function, as far as recordings compute them. Not for calling: see `keyfold.fuse`.
#[pyclass(name = "_Fused", module = "keyfold._core", frozen, subclass)]
pub(crate) struct PyFused {
    /// Replaced, not changed, since calls go through it.
    plain: Mutex<Arc<[Plain]>>,
    replayed: AtomicU64,
}

impl PyFused {
    fn plain(&self) -> MutexGuard<'_, Arc<[Plain]>> {
        self.plain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyFused {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        PyFused { plain: Mutex::new(Arc::new([])), replayed: AtomicU64::new(0) }
    }

    /// Call the function, or compute what it computed before for such arguments.
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Any<'py>> {
        let py = slf.py();
        if kwargs.is_none_or(|kwargs| kwargs.is_empty()) {
            let plain = Arc::clone(&slf.get().plain());
            for (recording, arrange) in &*plain {
                let Some(mut outputs) = recording.get().outputs(args)? else { continue };
                slf.get().replayed.fetch_add(1, Ordering::Relaxed);
                return match (arrange, outputs.pop()) {
                    (None, Some(one)) => Ok(one),
                    (None, None) => Ok(py.None().into_bound(py)),
                    (Some(arrange), last) => {
                        outputs.extend(last);
                        arrange.bind(py).call1((PyList::new(py, outputs)?, args))
                    }
                };
            }
        }
        let kwargs = kwargs.map_or_else(|| PyDict::new(py), Bound::clone);
        slf.call_method1("_call", (args, kwargs))
    }

    /// Sets the recordings of calls with arrays alone, each with what arranges its outputs.
    fn _set_plain(&self, recordings: Vec<Plain>) {
        let old = std::mem::replace(&mut *self.plain(), recordings.into());
        // Without the lock: they may be the last references to any objects.
        drop(old);
    }

    /// How often a recording computed a call.
    #[getter]
    fn _replayed(&self) -> u64 {
        self.replayed.load(Ordering::Relaxed)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Holding the lock, nothing runs Python's code.
        for (recording, arrange) in self.plain().iter() {
            visit.call(recording)?;
            visit.call(arrange)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self._set_plain(Vec::new());
    }
}
