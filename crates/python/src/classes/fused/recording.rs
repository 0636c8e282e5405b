//! Recordings, and what has to be as it was for a replay.

use keyfold_core::ErrorKind;
use keyfold_dispatch::DispatchKeySet;
use keyfold_layers::pipeline::Recording;
use keyfold_tensor::Tensor;
use pyo3::exceptions::{PyAttributeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyRange, PySlice, PyString, PyTuple,
};
use smallvec::SmallVec;

use super::mode::{Any, array, has_no_layers, is_plain, local_keys};
use crate::call::results;
use crate::marshal::arrays::caller::Caller;
use crate::marshal::dtype::PyDevice;
use crate::marshal::errors::{IntoPyResult, error};
use crate::marshal::tensor::PyTensor;

/// The elements from which on a replay releases the GIL.
const RELEASE_FROM: usize = 1 << 15;

/// An argument of a recorded function.
pub(super) enum Leaf {
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
    /// The addresses of the arrays among them, in order. Another recording is for an argument that is one of them: a
    /// function may ask for that by `is`.
    reached: Vec<usize>,
    /// The keys that the context removed: whether there were gradients.
    excluded: DispatchKeySet,
}

/// A value that a function found.
pub(super) struct Watched {
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
    pub(super) fn new(
        py: Python<'_>,
        (holder, name, value): (Py<PyAny>, Py<PyAny>, Py<PyAny>),
    ) -> Watched {
        let requires_grad = Watched::requires_grad(value.bind(py));
        Watched { holder, name, value, requires_grad }
    }

    fn requires_grad(value: &Any<'_>) -> bool {
        value.cast::<PyTensor>().is_ok_and(|value| value.get().tensor.requires_grad())
    }

    pub(super) fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
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
    pub(super) fn new(
        recording: Recording,
        leaves: Vec<Leaf>,
        watched: Vec<Watched>,
        reached: Vec<usize>,
        excluded: DispatchKeySet,
    ) -> PyRecording {
        PyRecording { recording, leaves, watched, reached, excluded }
    }

    pub(super) fn outputs<'py>(
        &self,
        leaves: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Outputs<'py>>> {
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
        if arrays.iter().any(|array| self.reached.binary_search(array).is_ok()) {
            return Ok(None);
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

pub(super) type Outputs<'py> = SmallVec<[Any<'py>; 2]>;

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
