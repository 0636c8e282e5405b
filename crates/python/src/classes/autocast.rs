//! `keyfold.autocast` and `keyfold.register_autocast`: the layer is in `keyfold_layers::autocast`.

use std::sync::Arc;

use keyfold::layers::autocast::{self, Category, Settings};
use keyfold_core::ErrorKind;
use keyfold_dispatch::{DispatchKey, Override, Provenance};
use pyo3::prelude::*;

use crate::call::context;
use crate::classes::guards::PyGuard;
use crate::classes::handle::PyHandle;
use crate::classes::packet;
use crate::marshal::argument::Text;
use crate::marshal::dtype::{self, PyDType, dtype_from};
use crate::marshal::errors::{IntoPyResult, error};

/// An autocast scope; see `keyfold.autocast`.
#[pyclass(name = "_Autocast", module = "keyfold._core", frozen, subclass, extends = PyGuard)]
pub(crate) struct PyAutocast;

#[pymethods]
impl PyAutocast {
    #[new]
    fn new(dtype: &Bound<'_, PyAny>, enabled: bool) -> PyResult<PyClassInitializer<Self>> {
        let settings = Settings::new(dtype_from(dtype)?).py(dtype.py())?;
        let settings = if enabled { settings } else { settings.disabled() };
        let guard = PyGuard::layer(DispatchKey::Autocast.into(), Arc::new(settings));
        let off = if enabled { "" } else { ", enabled=False" };
        let guard = guard.named(format!("autocast({}{off})", dtype.str()?.to_string_lossy()));
        Ok(PyClassInitializer::from(guard).add_subclass(PyAutocast))
    }
}

/// The dtype that calls made here are autocast to; `None` where they aren't.
#[pyfunction]
pub(crate) fn _autocast_dtype(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDType>>> {
    let current = context::in_context(py, autocast::current)?;
    current.map(|settings| dtype::object(py, settings.dtype)).transpose()
}

/// Registers a category for an operator; `file` and `line` are the caller's.
#[pyfunction]
pub(crate) fn _register_autocast(
    op: &Bound<'_, PyAny>,
    category: Option<Text>,
    cast_inputs: Option<&Bound<'_, PyAny>>,
    r#override: Text,
    file: String,
    line: u32,
) -> PyResult<PyHandle> {
    let py = op.py();
    let category = match (category, cast_inputs) {
        (Some(name), None) => name.parse::<Category>().py(py)?,
        (None, Some(dtype)) => Category::exactly(dtype_from(dtype)?).py(py)?,
        (given, _) => {
            let names = Category::NAMES.map(|(name, _)| format!("{name:?}")).join(", ");
            let both = if given.is_some() { "not both" } else { "and neither was given" };
            let message = format!(
                "register_autocast() takes category= (one of {names}) or cast_inputs= (a floating \
                 dtype), {both}"
            );
            return Err(error(py, ErrorKind::Binding, message));
        }
    };
    let operator = packet::operator_from(keyfold::dispatcher(), op)?;
    let operator = &operator.get().operator;
    let Some(dispatcher) = operator.dispatcher() else {
        let message = format!("the dispatcher that {} belongs to is gone", operator.name());
        return Err(error(py, ErrorKind::OperatorRemoved, message));
    };
    let mode = r#override.parse::<Override>().py(py)?;
    let provenance = Provenance {
        language: "Python",
        name: format!("autocast as {category}"),
        module: None,
        file,
        line,
        named: false,
        instance: None,
    };
    let kernel = autocast::kernel(category).with_provenance(provenance);
    let handle = dispatcher.register_with(operator, DispatchKey::Autocast, kernel, mode);
    Ok(PyHandle::new(handle.py(py)?, None))
}
