//! Operators that run on another device than their arguments', where that was allowed.

use std::ffi::CString;

use keyfold_backend as backend;
use keyfold_core::Result;
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::attach::attach;
use crate::dtype::device_from;
use crate::errors::{IntoPyResult, from_pyerr};

/// Let operators that a device's backend doesn't offer run on another device.
///
/// Their arguments are copied there, and their results back, each time. The first time an operator
/// does so, a UserWarning names it; `fallbacks` has how often each did. Without this, such an operator
/// raises NotSupported: nothing runs elsewhere unasked.
///
/// Args:
///     device: the type of device whose operators may run elsewhere, such as "npu".
///     to: the type of device that they run on, such as "cpu"; None takes the permission back.
///
/// Raises:
///     DeviceError: an unknown device, twice the same type, or "meta", which has no elements.
///
/// Example:
///     kf.allow_fallback("npu", "cpu")
#[pyfunction]
pub(crate) fn allow_fallback(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    to: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let from = device_from(device)?.kind();
    let to = to.map(device_from).transpose()?.map(|to| to.kind());
    backend::allow_fallback(from, to).py(py)
}

/// Tell which operators ran on another device than their arguments', and how often.
///
/// Returns:
///     a dict from (operator, type of device of the arguments, type of device where it ran) to the
///     number of calls.
#[pyfunction]
pub(crate) fn fallbacks(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for found in backend::fallbacks() {
        all.set_item((found.op, found.from.name(), found.to.name()), found.count)?;
    }
    Ok(all)
}

/// Warns of an operator's first call elsewhere. A warning that is an error ends the call.
fn warn(found: &backend::Fallback) -> Result<()> {
    if found.count > 1 {
        return Ok(());
    }
    let message = format!(
        "{} runs on {}, and its arguments are copied there from {}, whose backend doesn't offer it \
         (allow_fallback)",
        found.op, found.to, found.from
    );
    attach(|py| {
        let message = CString::new(message).unwrap_or_default();
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), &message, 1).map_err(from_pyerr)
    })
}

/// Has such calls told to users of Python.
pub(crate) fn observe() {
    backend::observe_fallbacks(warn);
}
