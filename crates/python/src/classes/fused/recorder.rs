//! The recording of a function's calls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_dispatch::{DispatchKey, DispatchKeySet};
use keyfold_layers::autograd;
use keyfold_layers::pipeline::{self, Ending, Session};
use keyfold_tensor::Tensor;
use pyo3::prelude::*;

use super::mode::{Any, array, local_keys};
use super::recording::{Leaf, PyRecording, Watched};
use crate::call::{context, results};
use crate::classes::guards::PyGuard;
use crate::marshal::arrays::caller::Caller;
use crate::marshal::errors::IntoPyResult;
use crate::marshal::tensor::{self, PyTensor};

/// A function's calls, while they are recorded. Not for calling: see `keyfold.fuse`.
#[pyclass(name = "_Recorder", module = "keyfold._core", frozen)]
pub(crate) struct PyRecorder {
    session: Arc<Session>,
    placeholders: Mutex<Vec<Tensor>>,
    outputs: Mutex<Vec<Tensor>>,
    watched: Mutex<Vec<Watched>>,
    is_closed: AtomicBool,
}

impl PyRecorder {
    fn placeholders(&self) -> MutexGuard<'_, Vec<Tensor>> {
        self.placeholders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outputs(&self) -> MutexGuard<'_, Vec<Tensor>> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyRecorder {
    #[new]
    fn new() -> Self {
        PyRecorder {
            session: Session::recorder(),
            placeholders: Mutex::default(),
            outputs: Mutex::default(),
            watched: Mutex::default(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// The tensor that stands for an array while the calls are recorded; None for another object.
    fn placeholder<'py>(&self, object: &Any<'py>) -> PyResult<Option<Bound<'py, PyTensor>>> {
        let py = object.py();
        let Some(array) = array(object)? else { return Ok(None) };
        let placeholder = self.session.placeholder(&array).py(py)?;
        self.placeholders().push(placeholder.clone());
        tensor::wrap(py, placeholder).map(Some)
    }

    /// The context manager that records the calls inside its block.
    fn guard(&self) -> PyGuard {
        PyGuard::layer(Session::keys(), pipeline::as_data(&self.session)).named("fuse()")
    }

    /// Whether an object is a tensor that was made while the calls were recorded.
    fn made(&self, object: &Any<'_>) -> bool {
        let is_own = |tensor: &Bound<'_, PyTensor>| {
            let pending = tensor.get().tensor.pending_buffer();
            pending.is_some_and(|pending| pending.is_of(&*self.session))
        };
        object.cast::<PyTensor>().is_ok_and(is_own)
    }

    /// Why the calls can't be recorded, if they can't: then they run.
    fn refused(&self) -> Option<String> {
        self.session.refused()
    }

    /// Whether one of the calls writes.
    fn has_written(&self) -> bool {
        self.session.has_written()
    }

    /// Runs what was recorded, since the calls can't be recorded for this reason.
    fn run_instead(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        context::in_context(py, || self.session.run_instead(reason))?.py(py)
    }

    /// Ends the recording, the first time. What waits runs, if that isn't for a recording and nothing stops the
    /// program.
    fn close(&self, py: Python<'_>, stops: bool) -> PyResult<()> {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // They may be the last references to memory that others own.
        drop(std::mem::take(&mut *self.placeholders()));
        let ending = if stops { Ending::GiveUp } else { Ending::Run };
        self.session.close(ending).py(py)
    }

    /// Takes the results; the reason if a recording can't give such.
    fn keep(&self, outputs: Vec<Bound<'_, PyTensor>>) -> Option<&'static str> {
        let is_result = |tensor: &Tensor| {
            let backend = DispatchKey::from_device_type(tensor.device().kind());
            tensor.keys() == DispatchKeySet::from([backend, DispatchKey::Deferred])
        };
        let outputs: Vec<Tensor> = outputs.iter().map(|one| one.get().tensor.clone()).collect();
        let other = outputs.iter().find(|output| !is_result(output));
        let reason = other.map(|other| match autograd::requires_grad(other) {
            true => "a result requires gradients",
            false => "a result has tangents, or another layer's key",
        });
        *self.outputs() = outputs;
        reason
    }

    /// Whether a tensor that was made while the calls were recorded is held by somebody, besides the results.
    fn escapes(&self) -> bool {
        let (placeholders, outputs) = (self.placeholders(), self.outputs());
        let own: Vec<&Tensor> = placeholders.iter().chain(&*outputs).collect();
        self.session.escapes(&own)
    }

    /// The results, of calls that ran. `numpy`: as NumPy's arrays.
    fn results<'py>(&self, py: Python<'py>, numpy: bool) -> PyResult<Vec<Any<'py>>> {
        let library = if numpy { Caller::NUMPY } else { Caller::TENSOR };
        let give = |output: Tensor| {
            let done = output.completed().py(py)?;
            results::tensor_to_py(py, done.unwrap_or(output), &[], library)
        };
        let outputs = std::mem::take(&mut *self.outputs());
        outputs.into_iter().map(give).collect()
    }

    /// Whether memory of the arguments or of these tensors begins or ends in one of these ranges of addresses, or
    /// around it.
    fn touches(&self, ranges: Vec<(usize, usize)>, tensors: Vec<Bound<'_, PyTensor>>) -> bool {
        let meets = |tensor: &Tensor| {
            let start = tensor.buffer().host_ptr().addr();
            let end = start + tensor.buffer().len() * tensor.dtype().size();
            start > 0 && ranges.iter().any(|(low, high)| start < *high && *low < end)
        };
        self.session.inputs().iter().any(meets)
            || tensors.iter().any(|one| meets(&one.get().tensor))
    }

    /// Whether a call writes to an argument that shares its memory with another one, or with what the function reads.
    fn mixes(&self) -> bool {
        self.session.mixes()
    }

    /// Whether the function has written to an array that a call had read.
    fn has_outdated(&self, py: Python<'_>) -> PyResult<bool> {
        self.session.has_outdated().py(py)
    }

    /// Takes what the function reads besides, each as (holder, name, value). Whether it finds the same now.
    fn watch(
        &self,
        py: Python<'_>,
        watched: Vec<(Py<PyAny>, Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<bool> {
        let watched = watched.into_iter().map(|one| Watched::new(py, one));
        let watched: Vec<Watched> = watched.collect();
        let mut is_same = true;
        for one in &watched {
            is_same = is_same && one.is_current(py)?;
        }
        *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = watched;
        Ok(is_same)
    }

    /// Makes the recording, for arguments of these forms. `reached` are the addresses of the arrays that the function
    /// reads otherwise.
    fn finish(
        &self,
        py: Python<'_>,
        leaves: Vec<Py<PyAny>>,
        mut reached: Vec<usize>,
    ) -> PyResult<PyRecording> {
        let (inputs, outputs) =
            (std::mem::take(&mut *self.placeholders()), std::mem::take(&mut *self.outputs()));
        let recording = self.session.finish(&inputs, &outputs).py(py)?;
        let mut first = HashMap::new();
        let leaves = leaves.iter().enumerate().map(|(at, leaf)| {
            if array(leaf.bind(py))?.is_none() {
                return Ok(Leaf::Same(leaf.clone_ref(py)));
            }
            let earlier = *first.entry(leaf.as_ptr().addr()).or_insert(at);
            Ok(if earlier == at { Leaf::Array } else { Leaf::Again(earlier) })
        });
        let leaves = leaves.collect::<PyResult<Vec<_>>>()?;
        let watched =
            std::mem::take(&mut *self.watched.lock().unwrap_or_else(PoisonError::into_inner));
        let excluded = local_keys(py)?.1;
        reached.sort_unstable();
        Ok(PyRecording::new(recording, leaves, watched, reached, excluded))
    }
}

/// A tensor as NumPy's array, where NumPy has its dtype and it is the host's; itself otherwise. Not for calling.
#[pyfunction]
pub(crate) fn _for_numpy<'py>(tensor: &Bound<'py, PyTensor>) -> PyResult<Any<'py>> {
    let (py, given) = (tensor.py(), &tensor.get().tensor);
    if given.keys().contains(DispatchKey::Autograd) {
        return Ok(tensor.clone().into_any());
    }
    let done = given.completed().py(py)?;
    results::tensor_to_py(py, done.unwrap_or_else(|| given.clone()), &[], Caller::NUMPY)
}
