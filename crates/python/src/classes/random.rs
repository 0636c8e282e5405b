//! The streams of random numbers, for Python.

use keyfold_core::{Device, ErrorKind, Result};
use keyfold_tensor::device::memory_of;
use keyfold_tensor::device::random::{self, State};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::call::context::in_context;
use crate::marshal::dtype::device_from;
use crate::marshal::errors::{IntoPyResult, error};

/// A word of the state.
fn word(object: &Bound<'_, PyAny>, function: &str, argument: &str) -> PyResult<u64> {
    if !object.is_instance_of::<PyInt>() {
        let given = object.get_type().fully_qualified_name()?;
        let message = format!("{function}(): argument '{argument}' must be an int, not {given}");
        return Err(error(object.py(), ErrorKind::Binding, message));
    }
    object.extract::<u64>().map_err(|_| {
        let message = format!(
            "{function}(): argument '{argument}' must be from 0 to 2 ** 64 - 1, and is {object}"
        );
        error(object.py(), ErrorKind::Value, message)
    })
}

/// Accesses a state in the running context, where a function may be recorded that can't be then.
fn access<R>(py: Python<'_>, f: impl FnOnce() -> Result<R>) -> PyResult<R> {
    in_context(py, f)?.py(py)
}

/// Goes to the start of the random numbers of a seed, on every device, those registered later included.
///
/// `rand`, `randn` and `dropout` draw from the numbers of their device, in whichever thread. Until
/// somebody calls this, the seed is 0.
///
/// Args:
///     seed: from 0 to 2 ** 64 - 1.
///
/// Raises:
///     InvalidValue: the seed is out of range.
#[pyfunction]
#[pyo3(signature = (seed, /))]
pub(crate) fn manual_seed(seed: &Bound<'_, PyAny>) -> PyResult<()> {
    let word = word(seed, "manual_seed", "seed")?;
    access(seed.py(), || random::manual_seed(word))
}

/// Where the CPU's random numbers are: `(seed, offset)`, the blocks of 16 bytes drawn so far.
///
/// With `set_rng_state` the same numbers can be drawn again. `kf.random.get_state` is for any device.
#[pyfunction]
pub(crate) fn get_rng_state(py: Python<'_>) -> PyResult<(u64, u64)> {
    let State { seed, offset, .. } = access(py, || random::state(Device::CPU))?;
    Ok((seed, offset))
}

/// Goes to a place in the CPU's random numbers that `get_rng_state` gave.
///
/// Args:
///     state: the seed and the offset.
///
/// Raises:
///     BindingError: it isn't a pair of ints.
///     InvalidValue: a number is out of range.
#[pyfunction]
#[pyo3(signature = (state, /))]
pub(crate) fn set_rng_state(state: &Bound<'_, PyAny>) -> PyResult<()> {
    let pair = state.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>().map_err(|_| {
        let message = "set_rng_state(): argument 'state' must be what get_rng_state() gives, a tuple \
                       of two ints";
        error(state.py(), ErrorKind::Binding, message.to_owned())
    })?;
    let seed = word(&pair.0, "set_rng_state", "seed")?;
    let offset = word(&pair.1, "set_rng_state", "offset")?;
    access(state.py(), || random::set_state(State { device: Device::CPU, seed, offset }))
}

/// Where a device's random numbers are: its name, the seed and the offset.
#[pyfunction]
#[pyo3(signature = (device, /))]
pub(crate) fn _random_state(device: &Bound<'_, PyAny>) -> PyResult<(String, u64, u64)> {
    let py = device.py();
    let device = device_from(device)?;
    memory_of(device).py(py)?;
    let State { seed, offset, .. } = access(py, || random::state(device))?;
    Ok((device.to_string(), seed, offset))
}

/// Goes to a place in a device's random numbers.
#[pyfunction]
#[pyo3(signature = (device, seed, offset, /))]
pub(crate) fn _set_random_state(
    device: &Bound<'_, PyAny>,
    seed: &Bound<'_, PyAny>,
    offset: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = device.py();
    let device = device_from(device)?;
    memory_of(device).py(py)?;
    let seed = word(seed, "random.set_state", "seed")?;
    let offset = word(offset, "random.set_state", "offset")?;
    access(py, || random::set_state(State { device, seed, offset }))
}
