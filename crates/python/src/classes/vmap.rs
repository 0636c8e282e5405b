//! Vmap in Python: the frames of running `vmap`s, what is asked of examples, rules.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{CallContext, HostLock, Kernel};
use keyfold_layers::vmap::{self, BatchDim, BatchInfo, Randomness, Unwrapped, VmapFrame};
use keyfold_tensor::{Value, ValueRef};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyList, PyTuple};

use crate::call::signature::provenance_of;
use crate::call::{context, results, returned};
use crate::classes::dispatcher::PyDispatcher;
use crate::classes::guards::PyGuard;
use crate::classes::handle::PyHandle;
use crate::marshal::attach::attach;
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, from_pyerr};
use crate::marshal::tensor::PyTensor;

/// One `vmap` that runs: a context manager that follows Python's context.
#[pyclass(name = "_VmapFrame", module = "keyfold._core", frozen)]
pub(crate) struct PyFrame {
    frame: Arc<VmapFrame>,
    guard: Py<PyGuard>,
}

#[pymethods]
impl PyFrame {
    #[new]
    fn new(py: Python<'_>, size: usize, randomness: &str) -> PyResult<Self> {
        let randomness = match randomness {
            "error" => Randomness::Error,
            "different" => Randomness::Different,
            "same" => Randomness::Same,
            other => {
                let message = format!(
                    "vmap: randomness is \"error\", \"different\" or \"same\", not {other:?}"
                );
                return Err(crate::marshal::errors::error(py, ErrorKind::Value, message));
            }
        };
        let frame = context::in_context(py, || VmapFrame::nested(size, randomness))?;
        let guard = PyGuard::layer(VmapFrame::keys(), frame.clone());
        Ok(PyFrame { frame, guard: Py::new(py, guard)? })
    }

    /// How deep it is nested, from 1.
    #[getter]
    fn level(&self) -> usize {
        self.frame.level()
    }

    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().guard.bind(slf.py()).call_method0("__enter__")?;
        Ok(slf)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        self.frame.end();
        self.guard.bind(exception.py()).call_method1("__exit__", exception)?;
        Ok(false)
    }
}

/// Whether a tensor depends on the batch of that level.
#[pyfunction]
pub(crate) fn _vmap_depends(tensor: &Bound<'_, PyTensor>, level: usize) -> bool {
    vmap::is_batched_at(&tensor.get().tensor, level)
}

/// The description of the batch that a batching rule gets.
#[pyclass(name = "VmapInfo", module = "keyfold", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PyVmapInfo {
    /// How many examples there are.
    #[pyo3(get)]
    batch_size: usize,
    /// Which of the nested `vmap`s it belongs to, from 1 for the outermost.
    #[pyo3(get)]
    level: usize,
}

#[pymethods]
impl PyVmapInfo {
    fn __repr__(&self) -> String {
        format!("VmapInfo(batch_size={}, level={})", self.batch_size, self.level)
    }
}

/// Where an argument has its batch: a number, None, or a list of them.
fn dim_to_py<'py>(py: Python<'py>, dim: &BatchDim) -> PyResult<Bound<'py, PyAny>> {
    Ok(match dim {
        BatchDim::None => py.None().into_bound(py),
        BatchDim::At(dim) => dim.into_pyobject(py)?.into_any(),
        BatchDim::Each(dims) => {
            let dims: PyResult<Vec<_>> = dims.iter().map(|dim| dim_to_py(py, dim)).collect();
            PyList::new(py, dims?)?.into_any()
        }
    })
}

/// The batch dimensions of a rule's results; `None` where the rule returned no such thing.
fn dim_from(object: &Bound<'_, PyAny>) -> Option<BatchDim> {
    if object.is_none() {
        return Some(BatchDim::None);
    }
    if object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>() {
        return object.extract().ok().map(BatchDim::At);
    }
    if object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>() {
        let items: Vec<_> = object.try_iter().ok()?.collect::<PyResult<_>>().ok()?;
        return items.iter().map(dim_from).collect::<Option<_>>().map(BatchDim::Each);
    }
    None
}

/// Calls a rule written in Python, `func(info, in_dims, *args)`, and reads what it returned.
fn run_rule(
    py: Python<'_>,
    function: &Py<PyAny>,
    context: &CallContext<'_, Value>,
    call: &Unwrapped<'_>,
) -> PyResult<Result<(Value, BatchDim)>> {
    let schema = context.operator().schema();
    let BatchInfo { size, level } = call.info;
    let info = Bound::new(py, PyVmapInfo { batch_size: size, level })?;
    let dims: PyResult<Vec<_>> = call.dims.iter().map(|dim| dim_to_py(py, dim)).collect();
    let mut positional = vec![info.into_any(), PyTuple::new(py, dims?)?.into_any()];
    let keywords = PyDict::new(py);
    for (argument, value) in schema.arguments.iter().zip(call.args()) {
        let object = results::ref_to_py(py, value)?;
        if argument.kwarg_only {
            keywords.set_item(&argument.name, object)?;
        } else {
            positional.push(object);
        }
    }
    let args = PyTuple::new(py, positional)?;
    let returned = function.bind(py).call(args, Some(&keywords))?;
    let wrong = |what: String| {
        Ok(Err(Error::new(
            ErrorKind::Return,
            format!(
                "{}: a rule for vmap returns (output, out_dims), where out_dims is an int from 0 \
                 or None, or a list of them for several outputs; {} returned {what}",
                context.operator().name(),
                context.kernel().provenance()
            ),
        )))
    };
    let Some(pair) =
        returned::sequence(&returned, 2).filter(|_| returned.is_instance_of::<PyTuple>())
    else {
        return wrong(describe_object(&returned));
    };
    let Some(dims) = dim_from(&pair[1]) else {
        return wrong(format!("out_dims {}", pair[1].repr()?));
    };
    Ok(returned::value_of_result(context, &pair[0]).map(|value| (value, dims)))
}

/// Registers `func(info, in_dims, *args) -> (output, out_dims)` as an operator's rule.
#[pyfunction]
pub(crate) fn _register_vmap(
    py: Python<'_>,
    dispatcher: &Bound<'_, PyDispatcher>,
    op: &Bound<'_, PyAny>,
    function: &Bound<'_, PyAny>,
    r#override: &str,
) -> PyResult<PyHandle> {
    let dispatcher = dispatcher.get();
    let operator = dispatcher.find(op)?.get().operator.clone();
    if !function.is_callable() {
        let message = format!("a rule for vmap is a function, not {}", describe_object(function));
        return Err(crate::marshal::errors::error(py, ErrorKind::Binding, message));
    }
    let rule = function.clone().unbind();
    let kernel = Kernel::boxed(move |context, args: &[ValueRef<'_>]| {
        let done = vmap::with_unwrapped(context, args, |call| {
            let (result, dims) =
                attach(|py| run_rule(py, &rule, context, call).map_err(from_pyerr))??;
            vmap::wrap_result(context.operator().name(), call.info, result, &dims)
        })?;
        done.map_or_else(|| context.call_below(args), Ok)
    });
    let kernel = kernel.with_provenance(provenance_of(function)).with_host_lock(HostLock::Keep);
    let mode = r#override.parse().py(py)?;
    let handle = dispatcher
        .dispatcher
        .register_with(&operator, keyfold_dispatch::DispatchKey::Vmap, kernel, mode)
        .py(py)?;
    Ok(dispatcher.handle(py, handle))
}
