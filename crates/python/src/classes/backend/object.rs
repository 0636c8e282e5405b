//! The Python object that is a backend: what it has, and calls of its methods.

use std::ops::ControlFlow;

use keyfold_core::{DType, Device, Error, ErrorKind, Result};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString, PyTuple};

use crate::marshal::arrays::numpy_array;
use crate::marshal::attach::attach;
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{self, error, from_pyerr};

/// The methods that run operations, by group.
pub(super) const GROUPS: [&str; 17] = [
    "pointwise",
    "reduce",
    "rows",
    "scan",
    "matmul",
    "index",
    "positions",
    "random",
    "norm",
    "linear",
    "convolution",
    "pool",
    "attention",
    "recurrent",
    "optim",
    "decomposition",
    "dropout",
];

/// The dtypes of an operation's outputs, as the method `supports` gets them.
#[derive(Clone, Copy)]
pub(super) enum Outputs<'a> {
    /// Of a group whose operations have one output: its name.
    One(DType),
    /// Of a group with any number of outputs: a tuple of names.
    All(&'a [DType]),
}

impl Outputs<'_> {
    fn dtypes(&self) -> &[DType] {
        match self {
            Outputs::One(dtype) => std::slice::from_ref(dtype),
            Outputs::All(all) => all,
        }
    }
}

/// A backend's object. Its numbers are read once: what it says later changes nothing.
pub(crate) struct Object {
    object: Py<PyAny>,
    /// As errors and tables show it.
    pub(super) name: String,
    pub(super) device_count: usize,
    /// How many bytes each device has.
    pub(super) memory_bytes: Option<u64>,
    has: [bool; GROUPS.len()],
    has_supports: bool,
    has_synchronize: bool,
}

/// An optional attribute.
fn attribute<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    match object.getattr(name) {
        Ok(found) if found.is_none() => Ok(None),
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_instance_of::<PyAttributeError>(object.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// An optional whole number.
fn number(object: &Bound<'_, PyAny>, owner: &str, name: &str, most: u64) -> PyResult<Option<u64>> {
    let py = object.py();
    let Some(found) = attribute(object, name)? else { return Ok(None) };
    let wrong = |given: String| {
        let message = format!("backend '{owner}': {name} is an int from 0 to {most}, not {given}");
        error(py, ErrorKind::Value, message)
    };
    if !found.is_instance_of::<PyInt>() || found.is_instance_of::<PyBool>() {
        return Err(wrong(describe_object(&found)));
    }
    match found.extract::<u64>() {
        Ok(number) if number <= most => Ok(Some(number)),
        _ => Err(wrong(found.str()?.to_string())),
    }
}

impl Object {
    /// Reads what the object has.
    ///
    /// # Errors
    /// Attributes of the wrong type or out of range, methods that can't be called, and what reading
    /// them raises.
    pub(super) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let name = match attribute(object, "name")? {
            None => object.get_type().name()?.to_string(),
            Some(name) => match name.cast::<PyString>() {
                Ok(name) => name.to_string_lossy().into_owned(),
                Err(_) => {
                    let given = describe_object(&name);
                    let message = format!("a backend's name is a str, not {given}");
                    return Err(error(object.py(), ErrorKind::Binding, message));
                }
            },
        };
        let device_count = number(object, &name, "device_count", 256)?.unwrap_or(1) as usize;
        let memory_bytes = number(object, &name, "memory_bytes", u64::MAX)?;
        let method = |method: &str| match attribute(object, method)? {
            None => Ok(false),
            Some(found) if found.is_callable() => Ok(true),
            Some(found) => {
                let given = describe_object(&found);
                let message = format!("backend '{name}': {method} is a method, not {given}");
                Err(error(object.py(), ErrorKind::Binding, message))
            }
        };
        let mut has = [false; GROUPS.len()];
        for (slot, group) in has.iter_mut().zip(GROUPS) {
            *slot = method(group)?;
        }
        let (has_supports, has_synchronize) = (method("supports")?, method("synchronize")?);
        let object = object.clone().unbind();
        Ok(Object { object, name, device_count, memory_bytes, has, has_supports, has_synchronize })
    }

    /// Whether it has the method of a group.
    pub(super) fn has(&self, method: &str) -> bool {
        GROUPS.iter().zip(self.has).any(|(group, has)| has && *group == method)
    }

    /// Why a method isn't called for an operation on these dtypes, if it isn't.
    pub(super) fn refusal(
        &self,
        method: &str,
        operation: &str,
        inputs: &[DType],
        outputs: Outputs<'_>,
    ) -> ControlFlow<String> {
        if !self.has(method) {
            return ControlFlow::Break(format!("it has no method '{method}'"));
        }
        if let Some(dtype) = inputs.iter().chain(outputs.dtypes()).find(|d| !numpy_array::has(**d))
        {
            return ControlFlow::Break(format!(
                "its methods take NumPy arrays, which have no {dtype}"
            ));
        }
        if !self.has_supports {
            return ControlFlow::Continue(());
        }
        let asked = attach(|py| {
            let names = inputs.iter().map(|dtype| dtype.name());
            let ask = || -> PyResult<ControlFlow<String>> {
                let names = PyTuple::new(py, names)?;
                let output = match outputs {
                    Outputs::One(dtype) => dtype.name().into_pyobject(py)?.into_any(),
                    Outputs::All(all) => {
                        PyTuple::new(py, all.iter().map(|dtype| dtype.name()))?.into_any()
                    }
                };
                let arguments = (method, operation, names, output);
                let answer = self.object.bind(py).call_method1("supports", arguments)?;
                if let Ok(text) = answer.cast::<PyString>() {
                    return Ok(ControlFlow::Break(text.to_string_lossy().into_owned()));
                }
                match answer.cast::<PyBool>() {
                    Ok(yes) if yes.is_true() => Ok(ControlFlow::Continue(())),
                    Ok(_) => {
                        Ok(ControlFlow::Break(format!("it takes no {operation} of these dtypes")))
                    }
                    Err(_) => Ok(ControlFlow::Break(format!(
                        "its method 'supports' returned {}, and not a bool or a reason",
                        describe_object(&answer)
                    ))),
                }
            };
            ask().map_err(from_pyerr)
        });
        asked.unwrap_or_else(|error| {
            ControlFlow::Break(format!("its method 'supports' raised {}", error.message()))
        })
    }

    /// Waits for what the methods queued on a device.
    ///
    /// # Errors
    /// The exception of the method.
    pub(super) fn synchronize(&self, device: Device) -> Result<()> {
        if !self.has_synchronize {
            return Ok(());
        }
        self.run("synchronize", |py| PyTuple::new(py, [device.index()]))
    }

    /// Calls a method that returns nothing.
    ///
    /// # Errors
    /// The exception that it raises; [`ErrorKind::NotSupported`] where it returns `NotImplemented`,
    /// [`ErrorKind::Return`] where it returns anything else but `None`.
    pub(super) fn run(
        &self,
        method: &str,
        arguments: impl FnOnce(Python<'_>) -> PyResult<Bound<'_, PyTuple>>,
    ) -> Result<()> {
        self.call(method, arguments, |result| {
            if result.is_none() {
                return Ok(());
            }
            let given = describe_object(&result);
            Err(self.error(
                ErrorKind::Return,
                method,
                &format!("it writes into its outputs and returns None, and not {given}"),
            ))
        })
    }

    /// Calls a method and reads its result.
    ///
    /// # Errors
    /// As [`Object::run`].
    pub(super) fn call<R>(
        &self,
        method: &str,
        arguments: impl FnOnce(Python<'_>) -> PyResult<Bound<'_, PyTuple>>,
        read: impl FnOnce(Bound<'_, PyAny>) -> Result<R>,
    ) -> Result<R> {
        attach(|py| {
            let called = arguments(py)
                .and_then(|arguments| self.object.bind(py).call_method1(method, arguments));
            match called {
                Ok(result) if result.is(py.NotImplemented()) => {
                    let why = "it returned NotImplemented for these arguments; copy them to the CPU \
                               with .cpu(), or have it take them";
                    Err(self.error(ErrorKind::NotSupported, method, why))
                }
                Ok(result) => read(result),
                Err(raised) => {
                    let place = format!("method '{method}' of backend '{}'", self.name);
                    Err(errors::at(py, from_pyerr(raised), &place))
                }
            }
        })
    }

    /// An error that names the backend and the method.
    pub(super) fn error(&self, kind: ErrorKind, method: &str, why: &str) -> Error {
        Error::new(kind, format!("backend '{}', method '{method}': {why}", self.name))
    }
}
