//! Recordings of functions in Python: `keyfold.fuse`.

mod recorder;
mod recording;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_dispatch::{DispatchKey, DispatchKeySet, LocalKeys};
use keyfold_tensor::Tensor;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::call::context;
use crate::marshal::arrays::{self, numpy_array};
use crate::marshal::errors::IntoPyResult;
use crate::marshal::tensor::{OF_AN_OBJECT, PyTensor};
pub(crate) use recorder::{_for_numpy, PyRecorder};
pub(crate) use recording::PyRecording;

type Any<'py> = Bound<'py, PyAny>;

/// How a fused function is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Nothing but backends is in the calls' key sets: a recording can be replayed.
    Replay,
    /// A pipeline is open, which records the calls.
    Here,
    /// A layer is in the key sets: the calls are made, in a pipeline of their own.
    Pipeline,
    /// An array of another library: the calls are made.
    Eager,
}

/// Returns an argument as a tensor; `None` for what isn't keyfold's or NumPy's. Arrays of classes derived
/// from NumPy's have operators of their own.
fn array<'py>(object: &Any<'py>) -> PyResult<Option<Tensor>> {
    let is_one = object.is_instance_of::<PyTensor>() || numpy_array::is_exact(object);
    if !is_one {
        return Ok(None);
    }
    let mut view = arrays::view(object).py(object.py())?;
    // A pipeline's result is a tensor as any other once it is computed.
    if view.pending_buffer().is_some_and(|pending| pending.filled().is_some())
        && let Some(done) = view.completed().py(object.py())?
    {
        view = done;
    }
    Ok(Some(view.with_token(OF_AN_OBJECT)))
}

/// Returns the keys that the context adds to calls, and those that it removes.
fn local_keys(py: Python<'_>) -> PyResult<(DispatchKeySet, DispatchKeySet)> {
    let local = context::in_context(py, LocalKeys::current)?;
    Ok((local.included(), local.excluded()))
}

/// Returns whether a context adds no keys, and removes none but that of gradients.
fn has_no_layers((included, excluded): (DispatchKeySet, DispatchKeySet)) -> bool {
    included.is_empty() && (excluded - DispatchKeySet::from([DispatchKey::Autograd])).is_empty()
}

fn mode_of(py: Python<'_>, leaves: &[Any<'_>]) -> PyResult<Mode> {
    let keys = local_keys(py)?;
    if keys.0.contains(DispatchKey::Pipeline) {
        return Ok(Mode::Here);
    }
    let mut mode = if has_no_layers(keys) { Mode::Replay } else { Mode::Pipeline };
    for leaf in leaves {
        match array(leaf) {
            Ok(Some(tensor)) if !is_plain(&tensor) => mode = Mode::Pipeline,
            Ok(Some(_)) => {}
            // Of a dtype that keyfold lacks.
            Err(_) => return Ok(Mode::Eager),
            // Of a class derived from NumPy's, or of another library.
            Ok(None) if numpy_array::is_array(leaf) => return Ok(Mode::Eager),
            Ok(None) if arrays::look(leaf).is_ok_and(|found| found.is_some()) => {
                return Ok(Mode::Eager);
            }
            Ok(None) => {}
        }
    }
    Ok(mode)
}

/// Returns whether calls with a tensor go to its backend alone.
fn is_plain(tensor: &Tensor) -> bool {
    let backend = DispatchKey::from_device_type(tensor.device().kind());
    tensor.keys() == DispatchKeySet::from([backend])
}

/// Say how a fused function is called with these arguments. Not for calling.
#[pyfunction]
pub(crate) fn _fuse_mode(py: Python<'_>, leaves: Vec<Any<'_>>) -> PyResult<&'static str> {
    Ok(match mode_of(py, &leaves)? {
        Mode::Replay => "replay",
        Mode::Here => "here",
        Mode::Pipeline => "pipeline",
        Mode::Eager => "eager",
    })
}

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
