//! The memory of devices in numbers, and what is kept for the next tensors, for Python.

use keyfold_core::Device;
use keyfold_tensor::cache;
use keyfold_tensor::device::memory_of;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::classes::threads::size;
use crate::marshal::dtype::device_from;
use crate::marshal::errors::IntoPyResult;

/// The memory of tensors on a device in numbers: a dict of ints, in bytes but for counts.
///
/// - "allocated": had from the system, "live" and "cached" together
/// - "live": in use by tensors, and by arrays that share their memory
/// - "cached": free, and kept for the next tensors
/// - "peak": the most that "allocated" was
/// - "hits", "misses": how many tensors took memory that was kept, and how many fresh memory; of the
///   CPU. Of other devices "allocations", both together
/// - "returned": given back to the system so far; of the CPU
/// - "limit": the most that is kept
///
/// On the CPU, tensors of less than 4 KiB don't count, and sizes are rounded up by an eighth at most.
///
/// Args:
///     device: the device; the CPU by default.
///
/// Raises:
///     DeviceError: there is no such device.
///     InvalidValue: `KEYFOLD_CACHE_BYTES` is no number of bytes.
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn memory_stats<'py>(
    py: Python<'py>,
    device: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let device = device.map_or(Ok(Device::CPU), device_from)?;
    let numbers = if device == Device::CPU {
        let stats = cache::stats().py(py)?;
        vec![
            ("allocated", stats.allocated),
            ("live", stats.live),
            ("cached", stats.cached),
            ("peak", stats.peak),
            ("hits", stats.hits),
            ("misses", stats.misses),
            ("returned", stats.returned),
            ("limit", stats.limit),
        ]
    } else {
        let stats = memory_of(device).and_then(|memory| memory.statistics(device)).py(py)?;
        vec![
            ("allocated", stats.in_use + stats.cached),
            ("live", stats.in_use),
            ("cached", stats.cached),
            ("peak", stats.peak),
            ("allocations", stats.allocations),
            ("limit", stats.limit),
        ]
    };
    let dict = PyDict::new(py);
    for (name, number) in numbers {
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
/// Until then it is, on the CPU, what the environment variable `KEYFOLD_CACHE_BYTES` says, else an
/// eighth of the memory that the process may use, at most 4 GiB.
///
/// Args:
///     limit: a number of bytes; 0 for keeping nothing.
///     device: the device; the CPU by default.
///
/// Raises:
///     BindingError: it isn't an int.
///     DeviceError: there is no such device.
///     InvalidValue: it is negative, or more than an address space has.
#[pyfunction]
#[pyo3(signature = (limit, /, device=None))]
pub(crate) fn set_cache_limit(
    limit: &Bound<'_, PyAny>,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = limit.py();
    let bytes = size(limit, "set_cache_limit", "limit", "a number of bytes, 0 or more")?;
    let device = device.map_or(Ok(Device::CPU), device_from)?;
    py.detach(|| memory_of(device)?.set_limit(device, Some(bytes as u64))).py(py)
}
