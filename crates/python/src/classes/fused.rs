//! Recordings of functions in Python: `keyfold.fuse`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_core::ErrorKind;
use keyfold_dispatch::{DispatchKey, DispatchKeySet, LocalKeys};
use keyfold_layers::autograd;
use keyfold_layers::pipeline::{self, Ending, Recording, Session};
use keyfold_tensor::Tensor;
use pyo3::exceptions::{PyAttributeError, PyValueError};
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
use crate::marshal::errors::{IntoPyResult, error};
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
    let mut view = arrays::view(object).py(object.py())?;
    // What a pipeline has computed is a tensor as any other.
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

    /// Takes what the function reads besides, each as (holder, name, value). Whether it finds the same now.
    fn watch(
        &self,
        py: Python<'_>,
        watched: Vec<(Py<PyAny>, Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<bool> {
        let watched = watched.into_iter().map(|(holder, name, value)| {
            let requires_grad = Watched::requires_grad(value.bind(py));
            Watched { holder, name, value, requires_grad }
        });
        let watched: Vec<Watched> = watched.collect();
        let mut is_same = true;
        for one in &watched {
            is_same = is_same && one.is_current(py)?;
        }
        *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = watched;
        Ok(is_same)
    }

    /// Makes the recording, for arguments of these forms.
    fn finish(&self, py: Python<'_>, leaves: Vec<Py<PyAny>>) -> PyResult<PyRecording> {
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
            Err(_) => match holder.getattr(self.name.bind(py).cast::<PyString>()?) {
                Ok(found) => Some(found),
                // An empty cell's is a ValueError.
                Err(error)
                    if error.is_instance_of::<PyAttributeError>(py)
                        || error.is_instance_of::<PyValueError>(py) =>
                {
                    None
                }
                Err(error) => return Err(error),
            },
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

    /// Computes the outputs for the arguments that it was recorded for.
    fn compute<'py>(&self, leaves: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyList>> {
        let py = leaves.py();
        let mut inputs = Inputs::new();
        let Some(library) = self.take(leaves, &mut inputs)? else {
            let message = "these aren't the arguments that the recording was made for";
            return Err(error(py, ErrorKind::Pipeline, message));
        };
        PyList::new(py, self.computed(py, &inputs, library)?)
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
    fn outputs<'py>(&self, leaves: &Bound<'py, PyTuple>) -> PyResult<Option<Outputs<'py>>> {
        let py = leaves.py();
        let mut inputs = Inputs::new();
        let Some(library) = self.take(leaves, &mut inputs)? else { return Ok(None) };
        let keys = local_keys(py)?;
        let is_it = has_no_layers(keys)
            && keys.1 == self.excluded
            && self.recording.fits(&inputs)
            && self.is_current(py)?
            && !self.recording.mixes(&inputs);
        if !is_it {
            return Ok(None);
        }
        self.computed(py, &inputs, library).map(Some)
    }

    /// Takes the tensors among arguments, in place since they are large, and returns the library of the results; `None`
    /// for arguments that differ from the recorded ones in more than the tensors' forms.
    fn take(&self, leaves: &Bound<'_, PyTuple>, inputs: &mut Inputs) -> PyResult<Option<Caller>> {
        if leaves.len() != self.leaves.len() {
            return Ok(None);
        }
        let mut numpy = 0;
        let mut arrays = SmallVec::<[usize; 8]>::new();
        for (leaf, given) in self.leaves.iter().zip(leaves) {
            match leaf {
                Leaf::Again(earlier) if given.is(leaves.get_borrowed_item(*earlier)?) => {}
                Leaf::Again(_) => return Ok(None),
                Leaf::Same(known) if is_same(known.bind(leaves.py()), &given)? => {}
                Leaf::Same(_) => return Ok(None),
                Leaf::Array => match array(&given) {
                    Ok(Some(tensor)) if is_plain(&tensor) => {
                        numpy += usize::from(!given.is_instance_of::<PyTensor>());
                        arrays.push(given.as_ptr().addr());
                        inputs.push(tensor);
                    }
                    _ => return Ok(None),
                },
            }
        }
        if arrays.len() > 1 {
            // One array in two places is another form.
            arrays.sort_unstable();
            if arrays.windows(2).any(|two| two[0] == two[1]) {
                return Ok(None);
            }
        }
        let all_numpy = numpy > 0 && numpy == inputs.len();
        Ok(Some(if all_numpy { Caller::NUMPY } else { Caller::TENSOR }))
    }

    fn computed<'py>(
        &self,
        py: Python<'py>,
        inputs: &Inputs,
        library: Caller,
    ) -> PyResult<Outputs<'py>> {
        let large = inputs.iter().any(|input| input.numel() >= RELEASE_FROM);
        let run = || self.recording.replay(inputs);
        let outputs = if large { py.detach(run) } else { run() };
        let give = |output| results::tensor_to_py(py, output, &[], library);
        outputs.py(py)?.into_iter().map(give).collect()
    }
}

type Inputs = SmallVec<[Tensor; 8]>;

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
