//! The memory that is kept for the next tensors, for Python.

use keyfold_tensor::cache;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::IntoPyResult;
use crate::threads::size;

/// The memory of tensors on the CPU in numbers: a dict of ints, in bytes but for hits and misses.
///
/// - "allocated": had from the system, "live" and "cached" together
/// - "live": in use by tensors, and by arrays that share their memory
/// - "cached": free, and kept for the next tensors
/// - "peak": the most that "allocated" was
/// - "hits", "misses": how many tensors took memory that was kept, and how many fresh memory
/// - "returned": given back to the system so far
/// - "limit": the most that is kept
///
/// Tensors of less than 4 KiB don't count here. Sizes are rounded up by an eighth at most.
///
/// Raises:
///     InvalidValue: `KEYFOLD_CACHE_BYTES` is no number of bytes.
#[pyfunction]
pub(crate) fn memory_stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let stats = cache::stats().py(py)?;
    let dict = PyDict::new(py);
    for (name, number) in [
        ("allocated", stats.allocated),
        ("live", stats.live),
        ("cached", stats.cached),
        ("peak", stats.peak),
        ("hits", stats.hits),
        ("misses", stats.misses),
        ("returned", stats.returned),
        ("limit", stats.limit),
    ] {
        dict.set_item(name, number)?;
    }
    Ok(dict)
}

/// Gives the memory that is free and kept back to the system. Returns how many bytes that was.
#[pyfunction]
pub(crate) fn trim_memory(py: Python<'_>) -> usize {
    py.detach(cache::trim)
}

/// Sets how much free memory is kept for the next tensors, and gives back what is beyond.
///
/// Until then it is what the environment variable `KEYFOLD_CACHE_BYTES` says, else an eighth of the
/// memory that the process may use, at most 4 GiB.
///
/// Args:
///     limit: a number of bytes; 0 for keeping nothing.
///
/// Raises:
///     BindingError: it isn't an int.
///     InvalidValue: it is negative, or more than an address space has.
#[pyfunction]
#[pyo3(signature = (limit, /))]
pub(crate) fn set_cache_limit(limit: &Bound<'_, PyAny>) -> PyResult<()> {
    let bytes = size(limit, "set_cache_limit", "limit", "a number of bytes, 0 or more")?;
    limit.py().detach(|| cache::set_limit(bytes));
    Ok(())
}
