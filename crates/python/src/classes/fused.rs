//! Recordings of functions in Python: `keyfold.fuse`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_dispatch::{DispatchKey, DispatchKeySet, LocalKeys};
use keyfold_layers::pipeline::{self, Recording, Session};
use keyfold_tensor::Tensor;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::call::{context, results};
use crate::classes::guards::PyGuard;
use crate::marshal::arrays::caller::Caller;
use crate::marshal::arrays::{self, numpy_array};
use crate::marshal::dtype::PyDevice;
use crate::marshal::errors::IntoPyResult;
use crate::marshal::tensor::{self, OF_AN_OBJECT, PyTensor};

type Any<'py> = Bound<'py, PyAny>;

/// The elements from which on a replay releases the GIL.
const RELEASE_FROM: usize = 1 << 15;

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
    match is_one {
        true => Ok(Some(arrays::view(object).py(object.py())?.with_token(OF_AN_OBJECT))),
        false => Ok(None),
    }
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

/// A function's calls, while they are recorded. Not for calling: see `keyfold.fuse`.
#[pyclass(name = "_Recorder", module = "keyfold._core", frozen)]
pub(crate) struct PyRecorder(Arc<Session>);

#[pymethods]
impl PyRecorder {
    #[new]
    fn new() -> Self {
        PyRecorder(Session::recorder())
    }

    /// The tensor that stands for an array while the calls are recorded; None for another object.
    fn placeholder<'py>(&self, object: &Any<'py>) -> PyResult<Option<Bound<'py, PyTensor>>> {
        let py = object.py();
        let Some(array) = array(object)? else { return Ok(None) };
        tensor::wrap(py, self.0.placeholder(&array).py(py)?).map(Some)
    }

    /// The context manager that records the calls inside its block.
    fn guard(&self) -> PyGuard {
        PyGuard::layer(Session::keys(), pipeline::as_data(&self.0)).named("fuse()")
    }

    /// Whether an object is a tensor that was made while the calls were recorded.
    fn made(&self, object: &Any<'_>) -> bool {
        let is_own = |tensor: &Bound<'_, PyTensor>| {
            tensor.get().tensor.pending_buffer().is_some_and(|pending| pending.is_of(&*self.0))
        };
        object.cast::<PyTensor>().is_ok_and(is_own)
    }

    /// Why the calls can't be recorded, if they can't.
    fn refused(&self) -> Option<String> {
        self.0.refused()
    }

    /// Ends the recording: `leaves` are the arguments, `placeholders` those of the arrays among them,
    /// `watched` what the function reads besides, each as (holder, name, value).
    fn finish(
        &self,
        py: Python<'_>,
        leaves: Vec<Py<PyAny>>,
        placeholders: Vec<Bound<'_, PyTensor>>,
        outputs: Vec<Bound<'_, PyTensor>>,
        watched: Vec<(Py<PyAny>, Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<PyRecording> {
        let tensors = |all: &[Bound<'_, PyTensor>]| -> Vec<Tensor> {
            all.iter().map(|one| one.get().tensor.clone()).collect()
        };
        let (inputs, outputs) = (tensors(&placeholders), tensors(&outputs));
        let recording = self.0.finish(&inputs, &outputs).py(py)?;
        let leaves = leaves.into_iter().map(|leaf| {
            let is_array = array(leaf.bind(py))?.is_some();
            Ok(if is_array { Leaf::Array } else { Leaf::Same(leaf) })
        });
        let leaves = leaves.collect::<PyResult<Vec<_>>>()?;
        let watched = watched.into_iter().map(|(holder, name, value)| {
            let requires_grad = Watched::requires_grad(value.bind(py));
            Watched { holder, name, value, requires_grad }
        });
        let (watched, excluded) = (watched.collect(), local_keys(py)?.1);
        Ok(PyRecording { recording, leaves, watched, excluded })
    }
}

/// An argument of a recorded function.
enum Leaf {
    Array,
    /// An object that was used as it was.
    Same(Py<PyAny>),
}

/// A function's calls for arguments of certain forms. Not for calling: see `keyfold.fuse`.
#[pyclass(name = "_Recording", module = "keyfold._core", frozen)]
pub(crate) struct PyRecording {
    recording: Recording,
    leaves: Vec<Leaf>,
    /// The values that the function reads besides its arguments.
    watched: Vec<Watched>,
    /// The keys that the context removed: whether there were gradients.
    excluded: DispatchKeySet,
}

/// A value that a function found.
struct Watched {
    /// A dictionary, or an object with attributes, as a cell.
    holder: Py<PyAny>,
    name: Py<PyAny>,
    value: Py<PyAny>,
    /// Whether it is a tensor that requires gradients.
    requires_grad: bool,
}

impl Watched {
    fn requires_grad(value: &Any<'_>) -> bool {
        value.cast::<PyTensor>().is_ok_and(|value| value.get().tensor.requires_grad())
    }

    fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
        let holder = self.holder.bind(py);
        let found = match holder.cast::<PyDict>() {
            Ok(names) => names.get_item(&self.name)?,
            Err(_) => holder.getattr(self.name.bind(py).cast::<PyString>()?).ok(),
        };
        let same = |found: Any<'_>| {
            found.is(&self.value) && Watched::requires_grad(&found) == self.requires_grad
        };
        Ok(found.is_some_and(same))
    }
}

#[pymethods]
impl PyRecording {
    /// Computes the outputs for other arguments; None where it wasn't recorded for such, or isn't current.
    fn replay<'py>(&self, leaves: &Bound<'py, PyTuple>) -> PyResult<Option<Bound<'py, PyList>>> {
        let outputs = self.outputs(leaves)?;
        outputs.map(|outputs| PyList::new(leaves.py(), outputs)).transpose()
    }

    /// Whether the function would be recorded alike today.
    fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.recording.is_current() {
            return Ok(false);
        }
        for watched in &self.watched {
            if !watched.is_current(py)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a tensor that was made while the function was recorded is still held somewhere.
    fn escapes(&self) -> bool {
        self.recording.escapes()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for leaf in &self.leaves {
            if let Leaf::Same(object) = leaf {
                visit.call(object)?;
            }
        }
        for Watched { holder, name, value, .. } in &self.watched {
            visit.call(holder)?;
            visit.call(name)?;
            visit.call(value)?;
        }
        Ok(())
    }

    /// How many operations are computed, in how many steps.
    fn counts(&self) -> (usize, usize) {
        self.recording.counts()
    }

    /// How many of the steps are computed concurrently with others.
    fn concurrent(&self) -> usize {
        self.recording.concurrent()
    }
}

impl PyRecording {
    fn outputs<'py>(&self, leaves: &Bound<'py, PyTuple>) -> PyResult<Option<Outputs<'py>>> {
        let py = leaves.py();
        if leaves.len() != self.leaves.len() {
            return Ok(None);
        }
        let (mut inputs, mut numpy) = (SmallVec::<[Tensor; 8]>::new(), 0);
        for (leaf, given) in self.leaves.iter().zip(leaves) {
            match leaf {
                Leaf::Same(known) if is_same(known.bind(py), &given)? => {}
                Leaf::Same(_) => return Ok(None),
                Leaf::Array => match array(&given) {
                    Ok(Some(tensor)) if is_plain(&tensor) => {
                        numpy += usize::from(!given.is_instance_of::<PyTensor>());
                        inputs.push(tensor);
                    }
                    _ => return Ok(None),
                },
            }
        }
        let keys = local_keys(py)?;
        if !has_no_layers(keys) || keys.1 != self.excluded || !self.recording.fits(&inputs) {
            return Ok(None);
        }
        if !self.is_current(py)? {
            return Ok(None);
        }
        if self.recording.mixes(&inputs) {
            return Ok(None);
        }
        let large = inputs.iter().any(|input| input.numel() >= RELEASE_FROM);
        let run = || self.recording.replay(&inputs);
        let outputs = if large { py.detach(run) } else { run() };
        let objects: SmallVec<[_; 8]> = leaves.iter_borrowed().map(|leaf| leaf.as_ptr()).collect();
        let all_numpy = numpy > 0 && numpy == inputs.len();
        let library = if all_numpy { Caller::NUMPY } else { Caller::TENSOR };
        let give = |output| results::tensor_to_py(py, output, &objects, library);
        outputs.py(py)?.into_iter().map(give).collect::<PyResult<_>>().map(Some)
    }
}

type Outputs<'py> = SmallVec<[Any<'py>; 2]>;

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
                        arrange.bind(py).call1((PyList::new(py, outputs)?,))
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

/// Whether an argument is the recorded one: the same object, or an equal number or text.
fn is_same(known: &Any<'_>, given: &Any<'_>) -> PyResult<bool> {
    if known.is(given) {
        return Ok(true);
    }
    if !given.get_type().is(known.get_type()) {
        return Ok(false);
    }
    let is_fraction =
        given.is_exact_instance_of::<PyFloat>() || given.is_exact_instance_of::<PyComplex>();
    if is_fraction {
        // -0.0 equals 0.0, but computes other numbers.
        return Ok(known.repr()?.to_str()? == given.repr()?.to_str()?);
    }
    let is_simple = given.is_exact_instance_of::<PyInt>()
        || given.is_exact_instance_of::<PyBool>()
        || given.is_exact_instance_of::<PyString>()
        || given.is_exact_instance_of::<PyBytes>()
        || given.is_exact_instance_of::<PyDevice>();
    Ok(is_simple && known.eq(given)?)
}
