//! `keyfold.explain`: the engine's explanation as Python data.

use keyfold_dispatch::{Choice, DispatchKeySet, Explanation};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::call::context;
use crate::call::operator::PyOperator;
use crate::marshal::dtype::PyDevice;
use crate::marshal::keys::{key_object, keyset_object};

/// The kernels that a call would run, as a `keyfold.Explanation`.
pub(crate) fn explain<'py>(
    operator: &Bound<'py, PyOperator>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = operator.py();
    let look = || {
        operator
            .get()
            .with_arguments(args, kwargs, |values| operator.get().operator.explain(values))
    };
    let explanation = match context::ambient(py)? {
        Some(context) => context.apply(look)?,
        None => look()?,
    };
    let data = data(py, operator, &explanation)?;
    py.import("keyfold._inspect")?.getattr("Explanation")?.call((), Some(&data))
}

fn data<'py>(
    py: Python<'py>,
    operator: &Bound<'py, PyOperator>,
    explanation: &Explanation,
) -> PyResult<Bound<'py, PyDict>> {
    let data = PyDict::new(py);
    let set = |set: DispatchKeySet| keyset_object(py, set);
    data.set_item("operator", operator)?;
    data.set_item("rows", explanation.rows())?;
    let arguments = PyList::empty(py);
    for argument in &explanation.arguments {
        let device = argument.device.map(|device| Bound::new(py, PyDevice(device))).transpose()?;
        arguments.append((&argument.name, set(argument.keys)?, device))?;
    }
    data.set_item("arguments", arguments)?;
    data.set_item("included", set(explanation.local.included())?)?;
    data.set_item("excluded", set(explanation.local.excluded())?)?;
    data.set_item("keyset", set(explanation.keyset)?)?;
    data.set_item("backend", key_object(py, explanation.backend)?)?;
    data.set_item("skipped", set(explanation.skipped)?)?;
    data.set_item("default_backend", explanation.default_backend)?;
    data.set_item("error", &explanation.error)?;
    let choice = explanation.choice.as_ref().map(|c| choice_data(py, operator, c)).transpose()?;
    data.set_item("choice", choice)?;
    let next: PyResult<Vec<_>> =
        explanation.next.iter().map(|c| choice_data(py, operator, c)).collect();
    data.set_item("next", next?)?;
    Ok(data)
}

fn choice_data<'py>(
    py: Python<'py>,
    operator: &Bound<'py, PyOperator>,
    choice: &Choice,
) -> PyResult<Bound<'py, PyDict>> {
    let data = PyDict::new(py);
    data.set_item("key", key_object(py, choice.key)?)?;
    data.set_item("runtime_key", &choice.runtime_key)?;
    data.set_item("registered_at", choice.registered_at.to_string())?;
    data.set_item("rule", choice.rule.to_string())?;
    data.set_item("because", choice.rule.describe())?;
    data.set_item("origin", choice.kernel.to_string())?;
    let inner = &operator.get().operator;
    let entries = inner.entries(true);
    let entry = entries.iter().find(|entry| entry.runtime_key == choice.runtime_key);
    let kernel = entry
        .map(|e| {
            crate::classes::operator::kernel_object(py, inner, choice.registered_at, &e.kernel)
        })
        .transpose()?;
    data.set_item("kernel", kernel)?;
    let losers = choice
        .losers
        .iter()
        .map(|(at, rule, kernel)| (at.to_string(), rule.to_string(), kernel.to_string()));
    data.set_item("losers", losers.collect::<Vec<_>>())?;
    let shadows = choice.shadows.iter().map(ToString::to_string);
    data.set_item("shadows", shadows.collect::<Vec<_>>())?;
    Ok(data)
}
