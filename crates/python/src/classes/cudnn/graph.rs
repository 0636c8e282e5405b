//! A graph that is being built. Operations travel as the JSON of graphs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfold::cudnn::{
    DataType, Graph, GraphOptions, GraphSpec, Layout, Number, Operation, Port, TensorSpec, Uid,
};
use keyfold_core::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use crate::marshal::argument::{Text, wrong_type};
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, error};

/// A graph without its tensors' objects. Not for calling: see `keyfold.cudnn.Graph`.
#[pyclass(name = "_CudnnGraph", module = "keyfold._core", frozen)]
pub(crate) struct PyCudnnGraph(Mutex<Graph>);

/// A tensor's name, dtype, sizes, strides, alignment, whether it is virtual, whether it is given by
/// value, and its number if that belongs to the graph.
type Described =
    (String, Option<&'static str>, Vec<i64>, Vec<i64>, i64, bool, bool, Option<Py<PyAny>>);

/// An input of an operation: a tensor by its uid, or a number and its dtype, which becomes a
/// tensor of the graph.
#[derive(FromPyObject)]
enum Input<'py> {
    Tensor(Uid),
    Scalar(Bound<'py, PyAny>, Option<String>),
}

pub(crate) fn data_type(name: Option<&str>) -> Result<Option<DataType>> {
    name.map(str::parse).transpose()
}

fn number(given: &Bound<'_, PyAny>) -> PyResult<Number> {
    if given.is_instance_of::<PyInt>() || given.is_instance_of::<PyBool>() {
        let whole = given.extract::<i64>().map_err(|_| {
            error(given.py(), ErrorKind::Value, format!("{given} doesn't fit 64 bits with a sign"))
        });
        return whole.map(Number::Int);
    }
    if given.is_instance_of::<PyFloat>() {
        return given.extract::<f64>().map(Number::Float);
    }
    Err(wrong_type(format!("a scalar is an int or a float, not {}", describe_object(given))))
}

impl PyCudnnGraph {
    pub(crate) fn graph(&self) -> MutexGuard<'_, Graph> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function on the graph, and returns when its lock is free again: an error becomes an
    /// exception by code of Python's, during which another thread may ask for the graph.
    fn with<R>(&self, f: impl FnOnce(&mut Graph) -> R) -> R {
        f(&mut self.graph())
    }

    pub(crate) fn spec(&self) -> GraphSpec {
        self.graph().spec().clone()
    }
}

#[pymethods]
impl PyCudnnGraph {
    #[new]
    fn new(
        py: Python<'_>,
        name: Text,
        io: Option<&str>,
        intermediate: Option<&str>,
        compute: Option<&str>,
    ) -> PyResult<Self> {
        let options = || {
            Ok(GraphOptions {
                name: name.into(),
                io: data_type(io)?,
                intermediate: data_type(intermediate)?,
                compute: data_type(compute)?,
            })
        };
        Ok(PyCudnnGraph(Mutex::new(Graph::new(options().py(py)?))))
    }

    /// Reads a graph from its JSON.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        let spec = GraphSpec::from_json(text).py(py)?;
        Ok(PyCudnnGraph(Mutex::new(Graph::from_spec(spec))))
    }

    /// Adds a tensor; returns its number.
    #[expect(clippy::too_many_arguments, reason = "what a tensor is, one by one")]
    fn tensor(
        &self,
        py: Python<'_>,
        dims: Vec<i64>,
        strides: Option<Vec<i64>>,
        dtype: Option<&str>,
        name: Text,
        uid: Uid,
        is_virtual: bool,
        by_value: bool,
        alignment: i64,
    ) -> PyResult<Uid> {
        let add = || {
            let layout = strides.map_or(Layout::Packed, Layout::Strides);
            let mut tensor = TensorSpec::new(uid, DataType::F32, &dims, layout)?
                .named(name)
                .with_alignment(alignment);
            tensor.dtype = data_type(dtype)?;
            (tensor.is_virtual, tensor.by_value) = (is_virtual, by_value);
            self.graph().tensor(tensor)
        };
        add().py(py)
    }

    /// Adds a number that belongs to the graph; returns its tensor's.
    fn scalar(&self, value: &Bound<'_, PyAny>, dtype: Option<&str>, name: Text) -> PyResult<Uid> {
        let py = value.py();
        let value = number(value)?;
        let dtype = data_type(dtype).py(py)?;
        let add = |graph: &mut Graph| {
            let uid = graph.scalar(value, dtype);
            graph.set_name(uid, &name).map(|()| uid)
        };
        self.with(add).py(py)
    }

    /// Adds an operation and the numbers that it reads, or nothing; returns the tensors at these
    /// outputs. `dims` are those of the first output, where the inputs leave them free. Errors name
    /// the method.
    #[expect(clippy::too_many_arguments, reason = "what an operation is, one by one")]
    fn add(
        &self,
        py: Python<'_>,
        method: &str,
        operation: &str,
        inputs: Vec<(String, Input<'_>)>,
        outputs: Vec<String>,
        compute: Option<&str>,
        name: Text,
        dims: Option<Vec<i64>>,
    ) -> PyResult<Vec<Uid>> {
        let mut numbers = Vec::new();
        for (_, input) in &inputs {
            if let Input::Scalar(value, dtype) = input {
                numbers.push((number(value)?, data_type(dtype.as_deref()).py(py)?));
            }
        }
        let operation = Operation::from_json(operation);
        let add = |graph: &mut Graph| {
            let mut scalars = numbers.into_iter().map(|(value, dtype)| graph.scalar(value, dtype));
            let mut ports: Vec<(Port, Uid)> = Vec::with_capacity(inputs.len());
            for (port, input) in &inputs {
                let uid = match input {
                    Input::Tensor(uid) => *uid,
                    Input::Scalar(..) => scalars.next().expect("one for each such input"),
                };
                ports.push((port.parse()?, uid));
            }
            drop(scalars);
            let wanted = outputs.iter().map(|name| name.parse()).collect::<Result<Vec<Port>>>()?;
            let (operation, compute) = (operation?, data_type(compute)?);
            if let Some(dims) = dims {
                return Ok(vec![graph.add_shaped(&name, compute, operation, &ports, &dims)?]);
            }
            let made = graph.add_named(&name, compute, operation, &ports, &wanted)?;
            let of = |port| made.iter().find(|entry| entry.0 == port).map(|entry| entry.1);
            Ok(wanted.into_iter().filter_map(of).collect())
        };
        let made = self.with(|graph| {
            let before = graph.clone();
            add(graph).inspect_err(|_| *graph = before)
        });
        made.map_err(|error: Error| error.at(&format!("{method}()"))).py(py)
    }

    /// Describes a tensor.
    fn read(&self, py: Python<'_>, uid: Uid) -> PyResult<Described> {
        let Some(tensor) = self.with(|graph| graph.spec().tensor(uid).cloned()) else {
            return Err(error(py, ErrorKind::Value, format!("the graph has no tensor {uid}")));
        };
        let value = match tensor.scalar {
            Some(Number::Int(value)) => Some(value.into_pyobject(py)?.into_any().unbind()),
            Some(Number::Float(value)) => Some(value.into_pyobject(py)?.into_any().unbind()),
            None => None,
        };
        Ok((
            tensor.name,
            tensor.dtype.map(DataType::numpy_name),
            tensor.dims,
            tensor.strides,
            tensor.alignment,
            tensor.is_virtual,
            tensor.by_value,
            value,
        ))
    }

    /// The numbers of its tensors.
    fn uids(&self) -> Vec<Uid> {
        self.graph().spec().tensors.iter().map(|tensor| tensor.uid).collect()
    }

    /// Its name, and the names of its operations.
    fn operations(&self) -> (String, Vec<String>) {
        let graph = self.graph();
        let operations = graph.spec().operations.iter().map(|op| op.label().to_owned());
        (graph.spec().name.clone(), operations.collect())
    }

    fn set_output(&self, py: Python<'_>, uid: Uid, value: bool) -> PyResult<()> {
        self.with(|graph| graph.set_output(uid, value)).py(py)
    }

    fn set_data_type(&self, py: Python<'_>, uid: Uid, value: &str) -> PyResult<()> {
        let dtype: DataType = value.parse().py(py)?;
        self.with(|graph| graph.set_dtype(uid, dtype)).py(py)
    }

    fn set_dim(&self, py: Python<'_>, uid: Uid, value: Vec<i64>) -> PyResult<()> {
        self.with(|graph| graph.set_dims(uid, &value)).py(py)
    }

    fn set_stride(&self, py: Python<'_>, uid: Uid, value: Vec<i64>) -> PyResult<()> {
        self.with(|graph| graph.set_strides(uid, &value)).py(py)
    }

    fn set_name(&self, py: Python<'_>, uid: Uid, value: Text) -> PyResult<()> {
        self.with(|graph| graph.set_name(uid, &value)).py(py)
    }

    fn set_uid(&self, py: Python<'_>, uid: Uid, value: Uid) -> PyResult<()> {
        self.with(|graph| graph.set_uid(uid, value)).py(py)
    }

    fn validate(&self, py: Python<'_>) -> PyResult<()> {
        let spec = self.spec();
        py.detach(|| spec.validate()).py(py)?;
        Ok(())
    }

    fn to_json(&self) -> String {
        self.spec().to_json()
    }

    fn signature(&self) -> String {
        self.spec().signature().to_string()
    }

    /// A drawing in a format.
    fn draw(&self, py: Python<'_>, format: &str) -> PyResult<String> {
        let spec = self.spec();
        match format {
            "svg" => Ok(py.detach(|| spec.to_svg())),
            "dot" => Ok(spec.to_dot()),
            "mermaid" => Ok(spec.to_mermaid()),
            other => {
                let message =
                    format!("draw(): a format is \"svg\", \"mermaid\" or \"dot\", not {other:?}");
                Err(error(py, ErrorKind::Value, message))
            }
        }
    }
}
