//! Operators that run on another device, where that was allowed.

use std::ffi::CString;

use keyfold_backend::{Fallback, fallbacks, observe_fallbacks};
use keyfold_core::{DeviceType, Error, ErrorKind, Result};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;

use crate::marshal::argument::Text;
use crate::marshal::attach::try_attach;
use crate::marshal::errors::IntoPyResult;

/// Warns of an operator's first run on another device. An exception that a filter makes of the warning
/// can't reach the caller from here; Python prints it.
fn warn(noted: &Fallback) {
    if noted.count > 1 {
        return;
    }
    let Fallback { op, from, to, .. } = noted;
    let text = format!(
        "{op} isn't offered by the backend of {from} and ran on {to}, as kf.allow_fallback allows; its \
         arguments were copied there. kf.fallbacks() counts further calls"
    );
    // Nobody is told when the interpreter has ended.
    let _ = try_attach(|py| {
        let text = CString::new(text).unwrap_or_default();
        let category = py.get_type::<PyRuntimeWarning>();
        if let Err(error) = PyErr::warn(py, &category, &text, 1) {
            error.write_unraisable(py, None);
        }
    });
}

/// The type of device of a name, which has no index.
fn kind(name: &str) -> Result<DeviceType> {
    if name.contains(':') {
        let message = format!("{name:?} is one device; give the type of device, as \"npu\"");
        return Err(Error::new(ErrorKind::Device, message));
    }
    name.parse()
}

/// Lets operators that the backend of a type of device doesn't offer run on another.
///
/// Their arguments are copied there, and their results back. The first time of each operator is a
/// `RuntimeWarning`; `kf.fallbacks()` counts all. Without this nothing ever runs elsewhere.
///
/// Args:
///     device_type: the type of device, such as `"npu"`.
///     to: the type of device that operators may run on; None takes the permission back.
///
/// Raises:
///     DeviceError: a type isn't known, both are the same, or one is meta.
#[pyfunction]
#[pyo3(signature = (device_type, to))]
pub(crate) fn allow_fallback(py: Python<'_>, device_type: Text, to: Option<Text>) -> PyResult<()> {
    observe_fallbacks(warn);
    let from = kind(&device_type).py(py)?;
    let to = to.map(|to| kind(&to)).transpose().py(py)?;
    keyfold_backend::allow_fallback(from, to).py(py)
}

/// Each operator that ran on another type of device: its name, where from, where to, and how often.
#[pyfunction]
pub(crate) fn _fallbacks() -> Vec<(String, String, String, u64)> {
    let all = fallbacks().into_iter();
    all.map(|ran| (ran.op, ran.from.name(), ran.to.name(), ran.count)).collect()
}
