//! Plans: how they are built, and how they are run on arrays of any library.

use std::mem::MaybeUninit;
use std::sync::Arc;

use keyfold::cudnn::{
    Choice, DataType, PlanRunner, Planner, Policy, Precision, Prepared, Progress, Reference,
    Rewrite, Uid, plan_cache,
};
use keyfold_core::{Device, Error, ErrorKind, Result, Shape, Strides};
use keyfold_dispatch::DispatchKey;
use keyfold_dispatch::schema::Type;
use keyfold_layers::tracer;
use keyfold_tensor::Tensor;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use smallvec::SmallVec;

use crate::call::{context, results};
use crate::classes::cudnn::graph::PyCudnnGraph;
use crate::classes::cudnn::library::LibraryOptions;
use crate::marshal::argument::Count;
use crate::marshal::arrays::numpy_array::{self, is_ndarray};
use crate::marshal::arrays::{self, caller::Caller};
use crate::marshal::attach::attach;
use crate::marshal::describe::describe_object;
use crate::marshal::dtype::PyDevice;
use crate::marshal::errors::{IntoPyResult, error, from_pyerr};
use crate::marshal::values::value_from;

/// The work, in elements, from which on the GIL is released while a plan runs.
const WORK: u64 = 32_768;

/// What is asked of a build: device, precision, choice of the engine, limit of scratch memory, TF32.
#[derive(FromPyObject)]
pub(crate) struct Options {
    #[pyo3(item)]
    device: Py<PyDevice>,
    #[pyo3(item)]
    precision: String,
    #[pyo3(item)]
    policy: String,
    #[pyo3(item)]
    workspace_limit: Option<Count>,
    #[pyo3(item)]
    tf32: bool,
    #[pyo3(item)]
    rewrite: String,
    /// How libcudnn plans, where it does.
    #[pyo3(item)]
    pub(crate) libcudnn: Option<LibraryOptions>,
}

fn named<T: Copy>(what: &str, all: &[(&str, T)], name: &str) -> Result<T> {
    all.iter().find(|one| one.0 == name).map(|one| one.1).ok_or_else(|| {
        let known: Vec<String> = all.iter().map(|one| format!("{:?}", one.0)).collect();
        let message = format!("build(): {what} is one of {}, not {name:?}", known.join(", "));
        Error::new(ErrorKind::Value, message)
    })
}

impl Options {
    /// Returns what plans for the device.
    pub(crate) fn planner(&self, progress: Progress<'_>) -> Result<Arc<dyn Planner>> {
        if let Some(options) = &self.libcudnn {
            return options.planner(progress);
        }
        let all =
            [("spec", Precision::AsSpec), ("float32", Precision::F32), ("float64", Precision::F64)];
        let precision = named("precision", &all, &self.precision)?;
        Ok(Arc::new(Reference::new(self.device.get().0, precision)))
    }

    pub(crate) fn policy(&self) -> Result<Policy> {
        let all = [
            ("first", Choice::First),
            ("autotune", Choice::Autotune),
            ("deterministic", Choice::Deterministic),
        ];
        let choice = named("policy", &all, &self.policy)?;
        let workspace_limit = self.workspace_limit.as_ref().map(|limit| limit.0 as u64);
        let rewrite =
            named("rewrite", &[("view", Rewrite::View), ("split", Rewrite::Split)], &self.rewrite)?;
        Ok(Policy { choice, workspace_limit, tf32: self.tf32, rewrite })
    }
}

/// Runs a build without the GIL; signals, and what `progress` raises, cancel it.
pub(crate) fn build_with<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    build: impl FnOnce(Progress<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let watch = |step: keyfold::cudnn::Step<'_>| {
        attach(|py| {
            py.check_signals().map_err(from_pyerr)?;
            let Some(progress) = &progress else { return Ok(()) };
            let told = progress.call1(py, (step.done, step.total, step.what));
            told.map(drop).map_err(from_pyerr)
        })
    };
    py.detach(|| build(&watch)).py(py)
}

/// Builds a graph's plan, or takes it from the cache. `keys` has the object of each tensor by its number.
#[pyfunction]
pub(crate) fn _cudnn_build(
    py: Python<'_>,
    graph: &PyCudnnGraph,
    keys: &Bound<'_, PyDict>,
    options: Options,
    progress: Option<Py<PyAny>>,
) -> PyResult<PyPlan> {
    let spec = graph.spec();
    let prepared = build_with(py, progress, |progress| {
        let planner = options.planner(progress)?;
        plan_cache().get_or_build(&spec, &*planner, &options.policy()?, progress)
    })?;
    PyPlan::new(py, prepared, keys)
}

/// A tensor that a run is given.
struct Slot {
    uid: Uid,
    /// The tensor's object, by which its array is given and returned.
    key: Py<PyAny>,
    dims: Shape,
    strides: Strides,
    /// How many elements its memory has.
    extent: usize,
    data_type: DataType,
    is_output: bool,
    /// Whether a run reads what the output holds before.
    is_updated: bool,
    by_value: bool,
}

/// A graph that is ready to run on a device.
///
/// `Graph.build` makes it. Called with a dict of arrays it computes the graph's outputs. Several
/// threads may call one plan.
#[pyclass(name = "Plan", module = "keyfold.cudnn", frozen)]
pub(crate) struct PyPlan {
    prepared: Prepared,
    slots: Vec<Slot>,
    /// The place in `slots` by tensor, number and name.
    places: Py<PyDict>,
    releases: bool,
}

impl PyPlan {
    pub(crate) fn new(
        py: Python<'_>,
        prepared: Prepared,
        keys: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let places = PyDict::new(py);
        let mut slots = Vec::new();
        for member in prepared.members() {
            let spec = member.spec;
            let sizes: Vec<usize> = spec.dims.iter().map(|size| *size as usize).collect();
            let steps: Vec<isize> = spec.strides.iter().map(|step| *step as isize).collect();
            let last: usize = sizes
                .iter()
                .zip(&steps)
                .map(|(n, step)| n.saturating_sub(1) * *step as usize)
                .sum();
            let key = match keys.get_item(member.uid)? {
                Some(key) => key,
                None => member.uid.into_pyobject(py)?.into_any(),
            };
            let at = slots.len();
            let name = key.getattr("name").ok().filter(|name| name.is_truthy().unwrap_or(false));
            // A name that two tensors have is no key.
            if let Some(name) = name {
                let taken = places.contains(&name)?;
                places.set_item(name, if taken { None } else { Some(at) })?;
            }
            places.set_item(&key, at)?;
            places.set_item(member.uid, at)?;
            slots.push(Slot {
                uid: member.uid,
                key: key.unbind(),
                dims: Shape::new(&sizes).py(py)?,
                strides: Strides::new(&steps).py(py)?,
                extent: last + 1,
                // A plan's graph is proven: each tensor has one.
                data_type: spec.dtype.unwrap_or(DataType::F32),
                is_output: member.is_output,
                is_updated: member.is_updated,
                by_value: spec.by_value,
            });
        }
        let releases = prepared.plan().graph.work() >= WORK;
        Ok(PyPlan { prepared, slots, places: places.unbind(), releases })
    }

    /// The place of a tensor that is given by itself, its number or its name.
    #[inline]
    fn place(&self, key: &Bound<'_, PyAny>, output: bool) -> PyResult<usize> {
        let found = self.places.bind(key.py()).get_item(key).ok().flatten();
        let place = found.and_then(|place| place.extract::<usize>().ok());
        match place {
            Some(place) if self.slots[place].is_output == output => Ok(place),
            place => Err(self.no_place(key, place, output)),
        }
    }

    #[cold]
    fn no_place(&self, key: &Bound<'_, PyAny>, place: Option<usize>, output: bool) -> PyErr {
        let given = key.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        let has = |output| {
            let all = self.slots.iter().filter(|slot| slot.is_output == output);
            all.map(|slot| slot.label(key.py())).collect::<Vec<_>>().join(", ")
        };
        let message = match (place, output) {
            (Some(_), false) => format!(
                "plan(): {given} is an output, which the plan returns; out= takes an array for it"
            ),
            (Some(_), true) => format!("plan(): {given} is an input, and out= is for outputs"),
            (None, output) => format!(
                "plan(): {given} is no {} of the graph, by tensor, uid or a name that one tensor has; \
                 these are: {}",
                if output { "output" } else { "input" },
                has(output)
            ),
        };
        error(key.py(), ErrorKind::Value, message)
    }
}

impl Slot {
    fn label(&self, py: Python<'_>) -> String {
        let name = self.key.bind(py).getattr("name").and_then(|name| name.extract::<String>());
        match name {
            Ok(name) if !name.is_empty() => format!("{name:?}"),
            _ => format!("#{}", self.uid),
        }
    }

    #[cold]
    fn not_given(&self, py: Python<'_>) -> PyErr {
        let message = format!(
            "plan(): {} is added to what its array holds, since beta isn't 0: out= takes the array",
            self.label(py)
        );
        error(py, ErrorKind::Value, message)
    }

    /// Memory for an output.
    #[inline]
    fn allocate(&self, runner: &dyn PlanRunner, device: Device) -> Result<Tensor> {
        let memory = runner.allocate(self.extent, self.data_type.storage(), device)?;
        Tensor::from_parts(memory.buffer().clone(), self.dims.clone(), self.strides.clone(), 0)
    }

    /// A tensor over what a caller gives, and whose library it is of.
    ///
    /// # Safety
    /// The object outlives the tensor.
    #[inline]
    unsafe fn view(&self, object: &Bound<'_, PyAny>) -> Result<(Tensor, Caller)> {
        // SAFETY: alive while bound, and longer than the view by the caller's contract; filled on success.
        unsafe {
            if is_ndarray(object.as_ptr()) && numpy_array::look(object.as_ptr()).is_some() {
                let mut slot = MaybeUninit::uninit();
                numpy_array::write_view(&mut slot, object.as_ptr())?;
                return Ok((slot.assume_init(), Caller::NUMPY));
            }
        }
        self.view_other(object)
    }

    fn view_other(&self, object: &Bound<'_, PyAny>) -> Result<(Tensor, Caller)> {
        let Some((_, library)) = arrays::look(object)? else {
            if self.by_value
                && let Ok(Some(value)) = value_from(object, &Type::Scalar)
                && let Some(number) = keyfold_dispatch::Value::as_ref(&value).scalar()
            {
                let sizes: SmallVec<[usize; 6]> = self.dims.iter().copied().collect();
                let dtype = self.data_type.storage();
                return Ok((Tensor::full(&sizes, number, dtype, Device::CPU)?, Caller::NONE));
            }
            let message = format!("it is an array, not {}", describe_object(object));
            return Err(Error::new(ErrorKind::Binding, message));
        };
        let tensor = arrays::view_for(object, self.is_output)?;
        if tensor.keys().contains(DispatchKey::Vmap) {
            let message = "a plan has no batching rule: call it outside of vmap";
            return Err(Error::new(ErrorKind::NotSupported, message));
        }
        if tensor.requires_grad() {
            let message = "a plan has no derivative, and it requires grad: pass x.detach()";
            return Err(Error::new(ErrorKind::Gradient, message));
        }
        Ok((tensor, library))
    }
}

/// The arrays of a run: the views go before the objects that they are of.
struct Given<'py> {
    tensors: SmallVec<[Option<Tensor>; 8]>,
    objects: SmallVec<[Bound<'py, PyAny>; 8]>,
    caller: Caller,
}

impl<'py> Given<'py> {
    /// Takes the arrays of a dict.
    #[inline]
    fn take(&mut self, plan: &PyPlan, dict: &Bound<'py, PyAny>, output: bool) -> PyResult<()> {
        let py = dict.py();
        let Ok(dict) = dict.cast::<PyDict>() else {
            let message = format!(
                "plan() takes a dict from tensors, their uids or names to arrays, not {}",
                describe_object(dict)
            );
            return Err(error(py, ErrorKind::Binding, message));
        };
        for (key, object) in dict.iter() {
            let place = plan.place(&key, output)?;
            let slot = &plan.slots[place];
            // SAFETY: the object is kept in `objects`, which is dropped behind `tensors`.
            let (tensor, library) = unsafe { slot.view(&object) }
                .map_err(|error| error.at(&format!("plan(): {}", slot.label(py))))
                .py(py)?;
            if self.tensors[place].is_some() {
                let message = format!("plan(): {} is given twice", slot.label(py));
                return Err(error(py, ErrorKind::Value, message));
            }
            self.tensors[place] = Some(tensor);
            self.objects.push(object);
            self.caller = self.caller.with(library);
        }
        Ok(())
    }
}

#[pymethods]
impl PyPlan {
    /// Computes the graph's outputs.
    ///
    /// Args:
    ///     tensors: an array for each input, by its tensor, uid or name: NumPy's, keyfold's, or any other
    ///         library's that keyfold reads, of the tensor's data type, sizes and strides, on the plan's
    ///         device. A number does for a tensor that is passed by value.
    ///     out: arrays for outputs, which are written; other outputs are new arrays.
    ///
    /// Returns:
    ///     A dict from each output's tensor to its array, of the library that the inputs are of.
    ///
    /// Raises:
    ///     InvalidValue: a tensor is missing, given twice, or none of the graph's; an output's memory
    ///         overlaps another tensor's; or `out` has no array for an output that beta reads.
    ///     DTypeError: an array has another data type.
    ///     ShapeError: an array has other sizes or strides.
    ///     DeviceError: an array is on another device.
    ///     ReadOnlyError: an array in `out` can't be written.
    ///     BindingError: it isn't a dict, or the arrays are of different libraries.
    #[pyo3(signature = (tensors, out=None))]
    fn __call__<'py>(
        &self,
        tensors: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = tensors.py();
        if tracer::is_recording() && context::in_context(py, tracer::is_recording_here)? {
            let message = "a plan isn't an operator, and can't be recorded by kf.trace";
            return Err(error(py, ErrorKind::NotSupported, message));
        }
        let mut given = Given {
            tensors: self.slots.iter().map(|_| None).collect(),
            objects: SmallVec::new(),
            caller: Caller::NONE,
        };
        given.take(self, tensors, false)?;
        let inputs = given.objects.len();
        if let Some(out) = out {
            given.take(self, out, true)?;
        }
        if !given.caller.is_uniform() {
            let message = "plan() takes arrays of one library: convert the others (keyfold.asarray takes \
                           any, without a copy)";
            return Err(error(py, ErrorKind::Binding, message));
        }
        let plan = self.prepared.plan();
        plan.runner.available().map_err(|error| error.at("plan()")).py(py)?;
        let mut pack: SmallVec<[(Uid, &Tensor); 8]> = SmallVec::new();
        let mut fresh: SmallVec<[usize; 4]> = SmallVec::new();
        for (place, slot) in self.slots.iter().enumerate() {
            if slot.is_output && given.tensors[place].is_none() {
                if slot.is_updated {
                    return Err(slot.not_given(py));
                }
                given.tensors[place] = Some(slot.allocate(&*plan.runner, plan.device).py(py)?);
                fresh.push(place);
            }
        }
        for (slot, tensor) in self.slots.iter().zip(&given.tensors) {
            pack.extend(tensor.as_ref().map(|tensor| (slot.uid, tensor)));
        }
        let done = match self.releases {
            true => py.detach(|| self.prepared.run(&pack)),
            false => self.prepared.run(&pack),
        };
        drop(pack);
        done.map_err(|error| error.at("plan()")).py(py)?;
        let objects: SmallVec<[_; 8]> = given.objects[..inputs].iter().map(Bound::as_ptr).collect();
        let results = PyDict::new(py);
        for place in fresh {
            let Some(tensor) = given.tensors[place].take() else { continue };
            let array = results::wrap_for(py, tensor, &objects, given.caller)?;
            results.set_item(&self.slots[place].key, array)?;
        }
        if let Some(out) = out {
            for (key, array) in out.cast::<PyDict>()?.iter() {
                results.set_item(&self.slots[self.place(&key, true)?].key, array)?;
            }
        }
        Ok(results)
    }

    /// The scratch memory that a run needs, in bytes.
    #[getter]
    fn workspace_bytes(&self) -> u64 {
        self.prepared.plan().spec.workspace_bytes
    }

    /// The name of what computes it.
    #[getter]
    fn engine(&self) -> String {
        self.prepared.plan().spec.config.engine.clone()
    }

    /// The device that it runs on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.prepared.plan().device)
    }

    /// The signature of its graph: 32 hexadecimal digits.
    #[getter]
    fn signature(&self) -> String {
        self.prepared.signature().to_string()
    }

    /// The steps from the graph to the plan, in words.
    #[getter]
    fn steps(&self) -> Vec<String> {
        self.prepared.plan().spec.steps.clone()
    }

    /// The plan as its device's library has it, as JSON; None where it is calls of operators.
    fn document(&self) -> Option<String> {
        self.prepared.plan().runner.document()
    }

    /// The tensors that a call is given.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.keys(py, false)
    }

    /// The tensors that a call returns.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.keys(py, true)
    }

    /// Says in lines of text what the plan is: its engine, its tensors, and the steps that led to it.
    fn explain(&self, py: Python<'_>) -> String {
        let plan = self.prepared.plan();
        let spec = &plan.spec;
        let mut lines = vec![
            match plan.runner.document() {
                // libcudnn's, of a card that the profile names.
                Some(_) => format!("plan {} for {}", self.prepared.signature(), spec.device),
                None => format!("plan {} on {}", self.prepared.signature(), plan.device),
            },
            format!(
                "engine: {}, {} bytes of scratch memory",
                spec.config.engine, spec.workspace_bytes
            ),
        ];
        for (title, output) in [("inputs", false), ("outputs", true)] {
            let slots = self.slots.iter().filter(|slot| slot.is_output == output);
            let shown = slots.map(|slot| {
                format!("{} {} {:?}", slot.label(py), slot.data_type.numpy_name(), slot.dims)
            });
            lines.push(format!("{title}: {}", shown.collect::<Vec<_>>().join(", ")));
        }
        if let Some(name) = self.prepared.planned_as() {
            lines.push(format!(
                "planned for an equal graph, {name:?}, whose names and numbers follow:"
            ));
        }
        let steps = spec.steps.iter().enumerate();
        lines.extend(steps.map(|(at, step)| format!("  {}. {step}", at + 1)));
        lines.join("\n")
    }

    fn __repr__(&self) -> String {
        let plan = self.prepared.plan();
        let (engine, bytes) = (&plan.spec.config.engine, plan.spec.workspace_bytes);
        let device = match plan.runner.document() {
            Some(_) => plan.spec.device.clone(),
            None => plan.device.to_string(),
        };
        format!("Plan(engine={engine:?}, device='{device}', workspace_bytes={bytes})")
    }
}

impl PyPlan {
    fn keys<'py>(&self, py: Python<'py>, output: bool) -> PyResult<Bound<'py, PyTuple>> {
        let slots = self.slots.iter().filter(|slot| slot.is_output == output);
        PyTuple::new(py, slots.map(|slot| slot.key.bind(py)).collect::<Vec<_>>())
    }
}
