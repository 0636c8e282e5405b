//! Forward mode in Python: levels of `jvp`, and rules written in Python.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_layers::autograd::{self, Forward, Level, Pushforward, Tangents};
use keyfold_tensor::Tensor;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::call::operator::PyOperator;
use crate::call::{context, results};
use crate::classes::autograd::optional_tensor;
use crate::classes::dispatcher::PyDispatcher;
use crate::marshal::attach::attach;
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, error, from_pyerr};
use crate::marshal::tensor::{PyTensor, wrap};

/// One `jvp` that runs.
#[pyclass(name = "_JvpLevel", module = "keyfold._core", frozen)]
pub(crate) struct PyLevel {
    level: Arc<Level>,
}

#[pymethods]
impl PyLevel {
    #[new]
    fn new() -> Self {
        PyLevel { level: Level::open() }
    }

    /// The primal with a tangent.
    fn dual<'py>(
        &self,
        primal: &Bound<'py, PyTensor>,
        tangent: &Bound<'py, PyTensor>,
    ) -> PyResult<Bound<'py, PyTensor>> {
        let py = primal.py();
        let (primal, tangent) = (&primal.get().tensor, &tangent.get().tensor);
        let make = || autograd::make_dual(primal, tangent, &self.level);
        let made = context::in_context(py, || autograd::with_level(&self.level, true, make))?;
        wrap(py, made.py(py)?)
    }

    /// Calls the function that is differentiated.
    fn call<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        records: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        autograd::with_level(&self.level, records, || function.call1(args))
    }

    /// A result without its tangent, and this; zeros where it doesn't depend on a primal.
    fn unpack<'py>(
        &self,
        result: &Bound<'py, PyTensor>,
    ) -> PyResult<(Bound<'py, PyTensor>, Bound<'py, PyTensor>)> {
        let py = result.py();
        let result = &result.get().tensor;
        let parts = context::in_context(py, || {
            let (value, tangent) = autograd::unpack_dual(result, &self.level)?;
            let zero = || keyfold_layers::aten::zeros_like(&value);
            let tangent = tangent.map_or_else(zero, Ok)?;
            Ok((value, tangent))
        })?;
        let (value, tangent) = parts.py(py)?;
        Ok((wrap(py, value)?, wrap(py, tangent)?))
    }

    /// Whether an operator without a rule for tangents stopped the `jvp`.
    #[getter]
    fn lacks_rule(&self) -> bool {
        self.level.lacks_rule()
    }

    /// Says that the `jvp` returns: its tangents mean nothing any more.
    fn end(&self) {
        self.level.end();
    }
}

impl Drop for PyLevel {
    fn drop(&mut self) {
        self.level.end();
    }
}

/// Whether a tensor has a tangent of a `jvp` that runs.
#[pyfunction]
pub(crate) fn _has_tangent(tensor: &Bound<'_, PyTensor>) -> bool {
    autograd::has_tangent(&tensor.get().tensor)
}

/// Whether a rule for tangents was registered for an operator, other than the one in its row.
#[pyfunction]
pub(crate) fn _has_registered_jvp(operator: &Bound<'_, PyOperator>) -> bool {
    autograd::has_registered_tangent(&operator.get().operator)
}

/// A tensor without a place in the graph, and with its tangents.
#[pyfunction]
pub(crate) fn _without_graph<'py>(tensor: &Bound<'py, PyTensor>) -> PyResult<Bound<'py, PyTensor>> {
    let py = tensor.py();
    wrap(py, autograd::without_graph(&tensor.get().tensor).py(py)?)
}

/// A rule written in Python: `jvp(inputs, tangents, output)`.
struct PyTangent {
    name: String,
    results: usize,
    function: Py<PyAny>,
}

impl PyTangent {
    fn run(&self, py: Python<'_>, call: &Forward<'_, '_>) -> PyResult<Result<Vec<Option<Tensor>>>> {
        let inputs = call.args().iter().map(|arg| results::ref_to_py(py, *arg));
        let inputs = PyTuple::new(py, inputs.collect::<PyResult<Vec<_>>>()?)?;
        let optional = |tangent: &Option<Tensor>| match tangent {
            Some(tangent) => Ok(wrap(py, tangent.clone())?.into_any()),
            None => Ok(py.None().into_bound(py)),
        };
        let tangents = (0..call.args().len()).map(|at| match call.tangents(at) {
            Tangents::None => Ok(py.None().into_bound(py)),
            Tangents::One(tangent) => Ok(wrap(py, tangent.clone())?.into_any()),
            Tangents::Each(items) => {
                let items: PyResult<Vec<_>> = items.iter().map(optional).collect();
                Ok(PyList::new(py, items?)?.into_any())
            }
        });
        let tangents = PyTuple::new(py, tangents.collect::<PyResult<Vec<_>>>()?)?;
        let outputs = call.results().iter().map(|result| wrap(py, result.clone()));
        let outputs = outputs.collect::<PyResult<Vec<_>>>()?;
        let output = match &outputs[..] {
            [] => py.None().into_bound(py),
            [one] if self.results == 1 => one.clone().into_any(),
            many => PyTuple::new(py, many)?.into_any(),
        };
        let returned = self.function.bind(py).call1((inputs, tangents, output))?;
        let count = call.results().len().max(1);
        if count == 1 {
            let one = match returned.cast::<PyTuple>() {
                Ok(tuple) if tuple.len() == 1 => tuple.get_item(0)?,
                _ => returned,
            };
            return Ok(self.tangent(&one).map(|tangent| vec![tangent]));
        }
        let Ok(items) = returned.cast::<PyTuple>() else {
            let given = describe_object(&returned);
            return Ok(Err(self.error(&format!("a tuple of {count} tangents, not {given}"))));
        };
        Ok(items.iter().map(|item| self.tangent(&item)).collect())
    }

    fn tangent(&self, object: &Bound<'_, PyAny>) -> Result<Option<Tensor>> {
        optional_tensor(object).map_err(|_| {
            let given = describe_object(object);
            self.error(&format!("a tensor of the result's form, or None for zero, not {given}"))
        })
    }

    fn error(&self, wanted: &str) -> Error {
        let message = format!("the tangent rule of {} has to return {wanted}", self.name);
        Error::new(ErrorKind::Gradient, message)
    }
}

impl Pushforward for PyTangent {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        attach(|py| self.run(py, call).map_err(from_pyerr))?
    }
}

/// A rule for tangents that was registered.
#[pyclass(name = "TangentHandle", module = "keyfold", frozen)]
pub(crate) struct PyTangentHandle {
    number: u64,
    name: String,
}

#[pymethods]
impl PyTangentHandle {
    /// Takes the rule away.
    ///
    /// Returns:
    ///     Whether it was there.
    fn remove(&self) -> bool {
        autograd::remove_tangent(self.number)
    }

    /// Whether the rule is still there.
    #[getter]
    fn active(&self) -> bool {
        autograd::is_tangent_registered(self.number)
    }

    /// The operator's full name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    fn __repr__(&self) -> String {
        format!("<TangentHandle of {}>", self.name)
    }
}

/// Registers `jvp(inputs, tangents, output)` as an operator's rule; see `keyfold.register_jvp`.
#[pyfunction]
#[pyo3(signature = (dispatcher, op, function, r#override))]
pub(crate) fn _register_jvp(
    py: Python<'_>,
    dispatcher: &Bound<'_, PyDispatcher>,
    op: &Bound<'_, PyAny>,
    function: &Bound<'_, PyAny>,
    r#override: &str,
) -> PyResult<PyTangentHandle> {
    let operator = dispatcher.get().find(op)?.get().operator.clone();
    if !function.is_callable() {
        let message =
            format!("a rule for tangents is a function, not {}", describe_object(function));
        return Err(error(py, ErrorKind::Binding, message));
    }
    let name = operator.name().to_string();
    let rule = PyTangent {
        name: name.clone(),
        results: operator.schema().returns.len(),
        function: function.clone().unbind(),
    };
    let mode = r#override.parse().py(py)?;
    let number = autograd::register_tangent(&operator, Arc::new(rule), mode).py(py)?;
    Ok(PyTangentHandle { number, name })
}
