//! Recordings of functions in Python: `keyfold.fuse`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_dispatch::{DispatchKey, DispatchKeySet, LocalKeys};
use keyfold_layers::autograd;
use keyfold_layers::pipeline::{self, Ending, Recording, Session};
use keyfold_tensor::Tensor;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyRange, PySlice, PyString, PyTuple,
};
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
    if !is_one {
        return Ok(None);
    }
    let view = arrays::view(object).py(object.py())?;
    // What a pipeline has computed is a tensor as any other.
    let is_done = view.pending_buffer().is_some_and(|pending| pending.filled().is_some());
    let done = if is_done { view.completed().py(object.py())? } else { None };
    Ok(Some(done.unwrap_or(view).with_token(OF_AN_OBJECT)))
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
pub(crate) struct PyRecorder {
    session: Arc<Session>,
    placeholders: Mutex<Vec<Tensor>>,
    outputs: Mutex<Vec<Tensor>>,
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
        let (placeholders, outputs) = (Mutex::default(), Mutex::default());
        PyRecorder { session: Session::recorder(), placeholders, outputs }
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

    /// Ends the recording. What waits runs, if that isn't for a recording and nothing stops the program.
    fn close(&self, py: Python<'_>, stops: bool) -> PyResult<()> {
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

    /// Makes the recording: `leaves` are the arguments, `watched` what the function reads besides, each as (holder,
    /// name, value).
    fn finish(
        &self,
        py: Python<'_>,
        leaves: Vec<Py<PyAny>>,
        watched: Vec<(Py<PyAny>, Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<PyRecording> {
        let (inputs, outputs) =
            (std::mem::take(&mut *self.placeholders()), std::mem::take(&mut *self.outputs()));
        let recording = self.session.finish(&inputs, &outputs).py(py)?;
        let leaves = leaves.iter().enumerate().map(|(at, leaf)| {
            let is_array = array(leaf.bind(py))?.is_some();
            let earlier = leaves[..at].iter().position(|earlier| earlier.is(leaf));
            Ok(match (is_array, earlier) {
                (true, None) => Leaf::Array,
                (true, Some(earlier)) => Leaf::Again(earlier),
                (false, _) => Leaf::Same(leaf.clone_ref(py)),
            })
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

/// An argument of a recorded function.
enum Leaf {
    /// An array that no earlier argument is.
    Array,
    /// The array that an earlier argument is, too: a function may ask for that by `is`.
    Again(usize),
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
    /// A dictionary, an object with attributes, as a cell, or a container.
    holder: Py<PyAny>,
    /// The key or attribute; of a container None, for all that it holds.
    name: Py<PyAny>,
    /// The class of recordings stands for nothing; of a container a tuple of what it holds, of a dictionary keys and
    /// values in turn.
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
        if self.name.is_none(py) {
            return holds(holder, self.value.bind(py).cast::<PyTuple>()?);
        }
        let found = match holder.cast::<PyDict>() {
            Ok(names) => names.get_item(&self.name)?,
            Err(_) => holder.getattr(self.name.bind(py).cast::<PyString>()?).ok(),
        };
        let Some(found) = found else {
            return Ok(self.value.is(PyRecording::type_object(py)));
        };
        Ok(found.is(&self.value) && Watched::requires_grad(&found) == self.requires_grad)
    }
}

/// Returns whether a list, dictionary, set or deque holds just these objects.
fn holds(container: &Any<'_>, held: &Bound<'_, PyTuple>) -> PyResult<bool> {
    let mut held = held.iter_borrowed();
    let mut is_next = |found: &Any<'_>| held.next().is_some_and(|held| held.is(found));
    let same = if let Ok(names) = container.cast::<PyDict>() {
        names.iter().all(|(key, value)| is_next(&key) && is_next(&value))
    } else if let Ok(list) = container.cast::<PyList>() {
        list.iter().all(|item| is_next(&item))
    } else {
        let mut same = true;
        for item in container.try_iter()? {
            same = same && is_next(&item?);
        }
        same
    };
    Ok(same && held.next().is_none())
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
    /// Returns whether an array is an argument before this one, too.
    fn is_earlier(&self, leaves: &Bound<'_, PyTuple>, at: usize, given: &Any<'_>) -> bool {
        let mut earlier = self.leaves.iter().zip(leaves.iter_borrowed()).take(at);
        earlier.any(|(leaf, earlier)| matches!(leaf, Leaf::Array) && earlier.is(given))
    }

    fn outputs<'py>(&self, leaves: &Bound<'py, PyTuple>) -> PyResult<Option<Outputs<'py>>> {
        let py = leaves.py();
        if leaves.len() != self.leaves.len() {
            return Ok(None);
        }
        let (mut inputs, mut numpy) = (SmallVec::<[Tensor; 8]>::new(), 0);
        for (at, (leaf, given)) in self.leaves.iter().zip(leaves).enumerate() {
            match leaf {
                Leaf::Again(earlier) if given.is(leaves.get_borrowed_item(*earlier)?) => {}
                Leaf::Again(_) => return Ok(None),
                Leaf::Array if self.is_earlier(leaves, at, &given) => return Ok(None),
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
        let all_numpy = numpy > 0 && numpy == inputs.len();
        let library = if all_numpy { Caller::NUMPY } else { Caller::TENSOR };
        let give = |output| results::tensor_to_py(py, output, &[], library);
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

/// Whether an argument is the recorded one: the same object, or an equal number or text.
fn is_same(known: &Any<'_>, given: &Any<'_>) -> PyResult<bool> {
    if known.is(given) {
        return Ok(true);
    }
    if !given.get_type().is(known.get_type()) {
        return Ok(false);
    }
    // -0.0 equals 0.0, but computes other numbers, and so do NaNs of another sign.
    if let (Ok(known), Ok(given)) = (known.cast_exact::<PyFloat>(), given.cast_exact::<PyFloat>()) {
        return Ok(known.value().to_bits() == given.value().to_bits());
    }
    if let (Ok(known), Ok(given)) =
        (known.cast_exact::<PyComplex>(), given.cast_exact::<PyComplex>())
    {
        let bits = |one: &Bound<'_, PyComplex>| (one.real().to_bits(), one.imag().to_bits());
        return Ok(bits(known) == bits(given));
    }
    if given.is_exact_instance_of::<PySlice>() || given.is_exact_instance_of::<PyRange>() {
        // By their text, since slice(True) equals slice(1).
        return Ok(known.repr()?.to_str()? == given.repr()?.to_str()?);
    }
    let is_simple = given.is_exact_instance_of::<PyInt>()
        || given.is_exact_instance_of::<PyBool>()
        || given.is_exact_instance_of::<PyString>()
        || given.is_exact_instance_of::<PyBytes>()
        || given.is_exact_instance_of::<PyDevice>();
    Ok(is_simple && known.eq(given)?)
}
