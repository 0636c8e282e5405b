//! Devices as Python asks for them.

use keyfold_tensor::device::{self, memory_of};
use pyo3::prelude::*;

use crate::marshal::dtype::{PyDevice, device_from};
use crate::marshal::errors::IntoPyResult;

/// Every device that has memory.
#[pyfunction]
pub(crate) fn _devices() -> Vec<PyDevice> {
    device::devices().into_iter().map(PyDevice).collect()
}

/// Waits until a device has run everything that is queued on it.
///
/// Results can be read without this, which waits for what it reads. It is for taking times, and for
/// the errors of operations that run late.
///
/// Args:
///     device: the device; all of them by default.
///
/// Raises:
///     DeviceError: there is no such device.
///     KernelFailed: an operation failed since the last call.
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn synchronize(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let devices = match device {
        Some(given) => vec![device_from(given)?],
        None => device::devices(),
    };
    py.detach(|| devices.into_iter().try_for_each(|device| memory_of(device)?.synchronize(device)))
        .py(py)
}
