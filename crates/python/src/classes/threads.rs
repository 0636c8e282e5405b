//! How many threads operators compute with, for Python.

use keyfold::cpu::HostBackend;
use keyfold_core::ErrorKind;
use keyfold_kit::isa;
use keyfold_kit::pool;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use crate::marshal::errors::{IntoPyResult, error};

/// A number that isn't negative; `limit` says what there is instead of more.
pub(crate) fn size(
    object: &Bound<'_, PyAny>,
    function: &str,
    argument: &str,
    range: &str,
) -> PyResult<usize> {
    let py = object.py();
    if !object.is_instance_of::<PyInt>() || object.is_instance_of::<PyBool>() {
        let given = object.get_type().fully_qualified_name()?;
        let message = format!("{function}(): argument '{argument}' must be an int, not {given}");
        return Err(error(py, ErrorKind::Binding, message));
    }
    object.extract().map_err(|_| {
        let message =
            format!("{function}(): argument '{argument}' is {object}; it must be {range}");
        error(py, ErrorKind::Value, message)
    })
}

/// How many threads operators compute with, the calling one included.
///
/// The number that `set_num_threads` set; else the environment variable `KEYFOLD_NUM_THREADS`; else the processors
/// that the process may use, by its affinity and its control group.
///
/// Raises:
///     InvalidValue: `KEYFOLD_NUM_THREADS` is no number from 1 to 4096.
#[pyfunction]
pub(crate) fn get_num_threads(py: Python<'_>) -> PyResult<usize> {
    pool::num_threads().py(py)
}

/// Sets how many threads operators compute with from now on, in the whole process.
///
/// Args:
///     n: from 1 to 4096, the calling thread included: with 1, nothing else ever runs.
///
/// Raises:
///     BindingError: it isn't an int.
///     InvalidValue: it is out of range.
#[pyfunction]
#[pyo3(signature = (n, /))]
pub(crate) fn set_num_threads(n: &Bound<'_, PyAny>) -> PyResult<()> {
    let threads = size(n, "set_num_threads", "n", "from 1 to 4096")?;
    pool::set_num_threads(threads).py(n.py())
}

/// Sets the bytes of rows that stay in the cache: programs on larger ones are computed tile by tile.
///
/// Args:
///     bytes: those that the tiles of all threads share.
///
/// Returns:
///     the number before.
#[pyfunction]
#[pyo3(signature = (bytes, /))]
pub(crate) fn _set_tile_cache(bytes: usize) -> usize {
    HostBackend::set_tile_cache(bytes)
}

/// Refuses what the environment says and nobody understands; `keyfold` asks when it is imported.
///
/// Raises:
///     InvalidValue: `KEYFOLD_SIMD` names no level of vector instructions.
#[pyfunction]
pub(crate) fn _check_environment(py: Python<'_>) -> PyResult<()> {
    isa::named_level().map(|_| ()).py(py)
}
