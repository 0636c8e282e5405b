//! The process's plan cache, for `keyfold.cudnn.plan_cache`.

use keyfold::cudnn::{Counts, Uid, plan_cache};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::classes::cudnn::graph::PyCudnnGraph;
use crate::classes::cudnn::plan::{Options, PyPlan, build_with};
use crate::marshal::argument::Count;
use crate::marshal::errors::IntoPyResult;

/// The cache's numbers: as text for people, and as data.
#[pyfunction]
pub(crate) fn _cudnn_cache_stats(py: Python<'_>) -> PyResult<(String, Bound<'_, PyDict>)> {
    let stats = plan_cache().stats();
    let data = counts(py, &stats.total)?;
    data.set_item("capacity", stats.capacity)?;
    data.set_item("capacity_bytes", stats.capacity_bytes)?;
    data.set_item("bytes", stats.bytes)?;
    let by_operation = PyDict::new(py);
    for (operation, of_kind) in &stats.by_operation {
        by_operation.set_item(operation, counts(py, of_kind)?)?;
    }
    data.set_item("by_operation", by_operation)?;
    let by_kind = PyDict::new(py);
    for ((operation, dtype), of_kind) in &stats.by_kind {
        let data_type = dtype.map(|dtype| dtype.numpy_name());
        by_kind.set_item((*operation, data_type), counts(py, of_kind)?)?;
    }
    data.set_item("by_kind", by_kind)?;
    let entries = PyList::empty(py);
    for entry in &stats.entries {
        let row = PyDict::new(py);
        row.set_item("operation", entry.operation)?;
        row.set_item("data_type", entry.dtype.map(|dtype| dtype.numpy_name()))?;
        row.set_item("signature", entry.signature.to_string())?;
        row.set_item("device", &entry.device)?;
        row.set_item("engine", &entry.engine)?;
        row.set_item("workspace_bytes", entry.workspace_bytes)?;
        row.set_item("bytes", entry.bytes)?;
        row.set_item("build_seconds", entry.build_time.as_secs_f64())?;
        row.set_item("hits", entry.hits)?;
        row.set_item("is_marker", entry.is_marker)?;
        entries.append(row)?;
    }
    data.set_item("entries", entries)?;
    Ok((stats.to_string(), data))
}

fn counts<'py>(py: Python<'py>, counts: &Counts) -> PyResult<Bound<'py, PyDict>> {
    let data = PyDict::new(py);
    data.set_item("plans", counts.entries)?;
    data.set_item("hits", counts.hits)?;
    data.set_item("misses", counts.misses)?;
    data.set_item("waits", counts.waits)?;
    data.set_item("failures", counts.failures)?;
    data.set_item("evictions", counts.evictions)?;
    data.set_item("build_seconds", counts.build_time.as_secs_f64())?;
    Ok(data)
}

/// How many plans it has, and its bounds: of plans, and of their bytes.
#[pyfunction]
pub(crate) fn _cudnn_cache_size() -> (usize, usize, u64) {
    let (entries, bytes) = plan_cache().capacity();
    (plan_cache().len(), entries, bytes)
}

/// Sets the bounds.
#[pyfunction]
pub(crate) fn _cudnn_cache_set_capacity(
    py: Python<'_>,
    entries: Count,
    bytes: Count,
) -> PyResult<()> {
    py.detach(|| plan_cache().set_capacity(entries.0, bytes.0 as u64)).py(py)
}

/// Forgets all plans.
#[pyfunction]
pub(crate) fn _cudnn_cache_clear(py: Python<'_>) {
    py.detach(|| plan_cache().clear());
}

/// Builds the plans of a graph with other sizes of tensors.
#[pyfunction]
pub(crate) fn _cudnn_prepare(
    py: Python<'_>,
    graph: &PyCudnnGraph,
    keys: &Bound<'_, PyDict>,
    shapes: Vec<Vec<(Uid, Vec<i64>)>>,
    options: Options,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<PyPlan>> {
    let spec = graph.spec();
    let prepared = build_with(py, progress, |progress| {
        let planner = options.planner(progress)?;
        plan_cache().prepare(&spec, &shapes, &*planner, &options.policy()?, progress)
    })?;
    prepared.into_iter().map(|prepared| PyPlan::new(py, prepared, keys)).collect()
}
