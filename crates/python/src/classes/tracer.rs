//! `keyfold.trace` and `keyfold.Graph`: sessions and graphs of the tracer for `keyfold._trace`, which
//! knows how Python's arguments and results are arranged.

use std::sync::Arc;

use keyfold_core::ErrorKind;
use keyfold_dispatch::{DispatchKey, Value as _};
use keyfold_layers::tracer::{self, Arg, Direction, Graph, Info, Session};
use keyfold_tensor::{Tensor, Value, ValueRef};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::call::{context, homes, results};
use crate::classes::dispatcher::PyDispatcher;
use crate::classes::guards::PyGuard;
use crate::marshal::arrays::caller::Caller;
use crate::marshal::arrays::{self, numpy_array};
use crate::marshal::attach::attach;
use crate::marshal::dtype::{self, PyDevice};
use crate::marshal::errors::{IntoPyResult, error, from_pyerr};
use crate::marshal::py_value::PyValue;
use crate::marshal::tensor::{self, OF_AN_OBJECT, PyTensor};

type Any<'py> = Bound<'py, PyAny>;

/// Whether the calls made here are being recorded. Not for calling.
#[pyfunction]
pub(crate) fn _is_tracing(py: Python<'_>) -> PyResult<bool> {
    Ok(tracer::is_recording() && context::in_context(py, tracer::is_recording_here)?)
}

/// A recording. Not for calling: see `keyfold.trace`.
#[pyclass(name = "_TraceSession", module = "keyfold._core", frozen)]
pub(crate) struct PyTraceSession(Arc<Session>);

#[pymethods]
impl PyTraceSession {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(PyTraceSession(context::in_context(py, Session::begin)?))
    }

    /// Makes an array the next input; gives the tensor to call the function with, or the object
    /// itself where its class was registered.
    fn input<'py>(&self, array: &Any<'py>, name: &str) -> PyResult<Any<'py>> {
        let py = array.py();
        if let Some((_, Caller::OTHER)) = arrays::look(array).map_err(|e| e.at(name)).py(py)? {
            self.0.input_object(PyValue::of(array).py(py)?, name).py(py)?;
            return Ok(array.clone());
        }
        let given = arrays::view(array).and_then(|view| Ok((self.0.input(&view, name)?, view)));
        let (used, view) = given.map_err(|error| error.at(name)).py(py)?;
        let is_copy = used.address() != view.address();
        if array.is_instance_of::<PyTensor>() && !is_copy {
            return Ok(array.clone());
        }
        Ok(tensor::wrap(py, used)?.into_any())
    }

    /// The context manager that records the calls inside its block.
    fn guard(&self) -> PyGuard {
        let session: Arc<Session> = Arc::clone(&self.0);
        PyGuard::layer(Session::keys(), session)
    }

    /// Ends the recording with the arrays that the function returned.
    fn finish(&self, py: Python<'_>, outputs: Vec<Any<'_>>) -> PyResult<PyGraph> {
        let views = outputs.iter().map(|array| {
            if let Ok(tensor) = array.cast::<PyTensor>() {
                return Ok(Value::Tensor(tensor.get().tensor.clone()));
            }
            PyValue::of(array)
        });
        let views = views.collect::<keyfold_core::Result<Vec<Value>>>().py(py)?;
        let refs: Vec<ValueRef<'_>> = views.iter().map(Value::as_ref).collect();
        Ok(PyGraph(self.0.finish(&refs).py(py)?))
    }

    /// Ends the recording without a graph.
    fn abandon(&self) {
        self.0.abandon();
    }
}

/// A recorded function without the arrangement of its arguments. Not for calling: see
/// `keyfold.Graph`.
#[pyclass(name = "_Graph", module = "keyfold._core", frozen)]
pub(crate) struct PyGraph(pub(crate) Graph);

fn direction(py: Python<'_>, name: &str) -> PyResult<Direction> {
    match name {
        "down" => Ok(Direction::Down),
        "right" => Ok(Direction::Right),
        other => {
            let message = format!("a drawing goes \"down\" or \"right\", not {other:?}");
            Err(error(py, ErrorKind::Value, message))
        }
    }
}

#[pymethods]
impl PyGraph {
    /// Replays the graph. `numpy` says for each output whether it was a NumPy array; all are where
    /// only NumPy arrays are given. An argument that requires grad is a tensor.
    #[pyo3(signature = (arrays, numpy, any_shape, dispatcher))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        arrays: Vec<Any<'py>>,
        numpy: Vec<bool>,
        any_shape: bool,
        dispatcher: Option<&Bound<'py, PyDispatcher>>,
    ) -> PyResult<Vec<Any<'py>>> {
        let mut inputs = Vec::with_capacity(arrays.len());
        let mut caller = Caller::NONE;
        for (at, array) in arrays.iter().enumerate() {
            let place = || match self.0.inputs().get(at).map(|input| &*input.name) {
                Some("") | None => format!("input %{at}"),
                Some(name) => format!("input %{at} ({name})"),
            };
            let found = arrays::look(array).map_err(|error| error.at(&place())).py(py)?;
            caller = caller.with(found.map_or(Caller::NUMPY, |(_, caller)| caller));
            if let Some((_, Caller::OTHER)) = found {
                inputs.push(PyValue::of(array).py(py)?);
                continue;
            }
            let view = arrays::view(array).map_err(|error| error.at(&place())).py(py)?;
            inputs.push(Value::Tensor(view.with_token(OF_AN_OBJECT)));
        }
        let dispatcher = match dispatcher {
            Some(given) => given.get().dispatcher.clone(),
            None => keyfold::dispatcher().clone(),
        };
        let wrap = |like: &Value, tensor: Tensor| -> keyfold_core::Result<Value> {
            let Value::Foreign(like) = like else { return Ok(Value::Tensor(tensor)) };
            attach(|py| {
                // SAFETY: a foreign object here is a Python object that its holder keeps alive.
                let like = unsafe { Bound::from_borrowed_ptr(py, like.original().cast()) };
                let made = results::give_like(&like, tensor).map_err(from_pyerr)?;
                PyValue::of(&made)
            })
        };
        let run = || self.0.run_values(&dispatcher, inputs, any_shape, &wrap);
        let values = context::in_context(py, || py.detach(run))?.py(py)?;
        let objects: Vec<*mut ffi::PyObject> = arrays.iter().map(Bound::as_ptr).collect();
        let outputs = values.into_iter().enumerate().map(|(at, value)| {
            let was_numpy = numpy.get(at).copied().unwrap_or(false);
            // An array couldn't carry its place in the graph of derivatives.
            let keys = Value::tag(value.as_ref()).keys();
            let library = match was_numpy || caller.wants_numpy() {
                true if !keys.contains(DispatchKey::Autograd) => Caller::NUMPY,
                // The result that the class's `wrap` makes is a value of the graph already.
                false if results::class_wraps(py, &objects) => Caller::TENSOR,
                false if !caller.keeps_tensors() => homes::home(py, &objects, caller),
                _ => Caller::TENSOR,
            };
            output(py, value, &objects, library)
        });
        outputs.collect()
    }

    #[getter]
    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<Py<PyGraphValue>>> {
        let all = self.values(py)?;
        let inputs = self.0.inputs().iter();
        Ok(inputs.map(|input| all[input.id.index()].clone_ref(py)).collect())
    }

    /// The values with what they hold.
    #[getter]
    fn constants<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Py<PyGraphValue>, Any<'py>)>> {
        let all = self.values(py)?;
        let constants = self.0.constants().iter().map(|constant| {
            let held = constant.value.clone();
            let held = results::value_to_py(py, held, &[], Caller::TENSOR)?;
            Ok((all[constant.id.index()].clone_ref(py), held))
        });
        constants.collect()
    }

    #[getter]
    fn nodes(&self, py: Python<'_>) -> PyResult<Vec<PyGraphNode>> {
        let all = self.values(py)?;
        let nodes = self.0.nodes().iter().map(|node| {
            let arguments = PyDict::new(py);
            for argument in &node.args {
                arguments.set_item(&argument.name, arg_to_py(py, &argument.arg, &all)?)?;
            }
            let results = node.results.iter().map(|result| arg_to_py(py, result, &all));
            let results = results.collect::<PyResult<Vec<_>>>()?;
            Ok(PyGraphNode {
                operator: node.operator.clone(),
                arguments: arguments.unbind(),
                results: PyTuple::new(py, results)?.unbind(),
                effects: node.effects,
                text: self.0.node_text(node),
            })
        });
        nodes.collect()
    }

    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Any<'py>>> {
        let all = self.values(py)?;
        self.0.outputs().iter().map(|output| arg_to_py(py, output, &all)).collect()
    }

    fn dot(&self, py: Python<'_>, direction: &str) -> PyResult<String> {
        Ok(self.0.to_dot(self::direction(py, direction)?))
    }

    fn mermaid(&self, py: Python<'_>, direction: &str) -> PyResult<String> {
        Ok(self.0.to_mermaid(self::direction(py, direction)?))
    }

    fn simplified(&self) -> PyGraph {
        PyGraph(self.0.simplified())
    }

    /// The graph as JSON, with other JSON inside that Python adds.
    fn to_json(&self, py: Python<'_>, extra: &str) -> PyResult<String> {
        let mut graph = self.0.clone();
        graph.set_extra_json(extra).and_then(|()| graph.to_json()).py(py)
    }

    /// A graph from JSON, and the JSON inside that Python added.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<(PyGraph, String)> {
        let graph = Graph::from_json(text).py(py)?;
        let extra = graph.extra().to_string();
        Ok((PyGraph(graph), extra))
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

impl PyGraph {
    fn values(&self, py: Python<'_>) -> PyResult<Vec<Py<PyGraphValue>>> {
        let mut titles = vec![""; self.0.value_count()];
        for input in self.0.inputs() {
            titles[input.id.index()] = &input.name;
        }
        let names = self.0.value_names().into_iter().zip(titles);
        let values = names.zip(self.0.infos()).map(|((name, title), info)| {
            Py::new(py, PyGraphValue { name, title: title.to_owned(), info: info.clone() })
        });
        values.collect()
    }
}

/// An output of a replay in the library that it shall have.
fn output<'py>(
    py: Python<'py>,
    value: Value,
    objects: &[*mut ffi::PyObject],
    library: Caller,
) -> PyResult<Any<'py>> {
    if let Value::Foreign(object_of) = &value {
        // SAFETY: a foreign object here is a Python object that its holder keeps alive.
        let object = unsafe { Bound::from_borrowed_ptr(py, object_of.original().cast()) };
        let at_home = match library.wants_numpy() {
            true => numpy_array::is_array(&object),
            false => object.is_instance_of::<PyTensor>(),
        };
        let is_itself = object_of.is_of_registered_class() || value.as_ref().tensor().is_err();
        if at_home || is_itself {
            return Ok(object);
        }
        return results::tensor_to_py(py, value.into_tensor().py(py)?, objects, library);
    }
    results::value_to_py(py, value, objects, library)
}

fn arg_to_py<'py>(py: Python<'py>, arg: &Arg, values: &[Py<PyGraphValue>]) -> PyResult<Any<'py>> {
    match arg {
        Arg::Value(id) => Ok(values[id.index()].bind(py).clone().into_any()),
        Arg::List(items) => {
            let items = items.iter().map(|item| arg_to_py(py, item, values));
            Ok(PyList::new(py, items.collect::<PyResult<Vec<_>>>()?)?.into_any())
        }
        Arg::Literal(value) => results::value_to_py(py, (**value).clone(), &[], Caller::TENSOR),
    }
}

/// A tensor in a graph: an input, a constant or a result.
#[pyclass(name = "GraphValue", module = "keyfold", frozen)]
pub(crate) struct PyGraphValue {
    name: String,
    title: String,
    info: Info,
}

#[pymethods]
impl PyGraphValue {
    /// Its name in the graph's text: `%3`, or `%c0` for a constant.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Its name in the traced function, if it is an input: `params['w']`; else empty.
    #[getter]
    fn title(&self) -> &str {
        &self.title
    }

    /// The dtype; None for an object that can't be viewed as a tensor.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, dtype::PyDType>>> {
        self.info.dtype.map(|dtype| dtype::object(py, dtype)).transpose()
    }

    /// The size of each dimension when it was recorded.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.info.shape.iter())
    }

    /// Where it was.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.info.device)
    }

    fn __repr__(&self) -> String {
        format!("{}: {}", self.name, self.info)
    }
}

/// A recorded call of an operator.
#[pyclass(name = "GraphNode", module = "keyfold", frozen)]
pub(crate) struct PyGraphNode {
    operator: String,
    arguments: Py<PyDict>,
    results: Py<PyTuple>,
    effects: bool,
    text: String,
}

#[pymethods]
impl PyGraphNode {
    /// The operator's name, with its overload: `aten::sum.dim`.
    #[getter]
    fn operator(&self) -> &str {
        &self.operator
    }

    /// The arguments, by the names of the schema: `GraphValue`s, numbers and so on, lists of these.
    #[getter]
    fn arguments<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        self.arguments.bind(py).clone()
    }

    /// Its results, one item each.
    #[getter]
    fn results<'py>(&self, py: Python<'py>) -> Bound<'py, PyTuple> {
        self.results.bind(py).clone()
    }

    /// Whether it does more than compute its results: writes in place, draws random numbers, returns
    /// nothing.
    #[getter]
    fn effects(&self) -> bool {
        self.effects
    }

    fn __repr__(&self) -> &str {
        &self.text
    }
}
