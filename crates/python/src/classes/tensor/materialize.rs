//! Whether Python may read a tensor's elements: one question for every place that does.
//!
//! An example of a vmap batch has no elements of its own, and what is read of a tensor that is
//! being traced never gets into the graph: both are errors that say what to do instead.

use keyfold_core::ErrorKind;
use keyfold_dispatch::{DispatchKey, DispatchKeySet};
use keyfold_layers::{pipeline, tracer};
use keyfold_tensor::Tensor;
use pyo3::prelude::*;

use crate::call::context;
use crate::marshal::errors::{IntoPyResult, error};

/// Refuses to read a tensor whose elements aren't for Python to see; `what` names what was asked
/// for, `bool()` say.
///
/// # Errors
/// [`ErrorKind::Value`] for an example of a vmap batch, [`ErrorKind::Trace`] for a tensor that
/// follows from the inputs of a trace that is being recorded. A function that is recorded for `fuse` runs from
/// there on.
#[inline]
pub(crate) fn check(py: Python<'_>, tensor: &Tensor, what: &str) -> PyResult<()> {
    if tensor.keys().contains(DispatchKey::Vmap) {
        return Err(batched(py, tensor, what));
    }
    if !tracer::is_recording() && !pipeline::is_recording() {
        return Ok(());
    }
    let readable = || {
        pipeline::note_unrecordable(pipeline::READS)?;
        tracer::check_readable(tensor, what)
    };
    context::in_context(py, readable)?.py(py)
}

/// Notes that Python asks for something of a tensor that differs from call to call, or where it is pending: a function
/// that is recorded for `fuse` runs from there on.
pub(crate) fn note_asked(py: Python<'_>, tensor: &Tensor, reason: &str) -> PyResult<()> {
    if !pipeline::is_recording() || tensor.pending_buffer().is_none() {
        return Ok(());
    }
    context::in_context(py, || pipeline::note_unrecordable(reason))?.py(py)
}

/// Returns a tensor's keys: those of what stands for it, where a function is recorded for `fuse`.
pub(crate) fn keys(py: Python<'_>, tensor: &Tensor) -> PyResult<DispatchKeySet> {
    let keys = tensor.keys();
    let may_stand = pipeline::is_recording() && tensor.pending_buffer().is_some();
    match may_stand && context::in_context(py, pipeline::is_recording_here)? {
        true => Ok(keys.remove(DispatchKey::Deferred)),
        false => Ok(keys),
    }
}

/// Notes that Python shows a tensor: its elements stand in the text.
pub(crate) fn note_shown(py: Python<'_>) -> PyResult<()> {
    match pipeline::is_recording() {
        true => context::in_context(py, || pipeline::note_unrecordable(pipeline::READS))?.py(py),
        false => Ok(()),
    }
}

#[cold]
fn batched(py: Python<'_>, tensor: &Tensor, what: &str) -> PyErr {
    let (dtype, shape) = (tensor.dtype(), tensor.shape());
    let message = format!(
        "{what}: the tensor ({dtype}{shape:?}) is one example of a vmap batch and has no data of \
         its own; compute with operators (keyfold.where chooses element by element), or return it \
         from the function and read the whole batch"
    );
    error(py, ErrorKind::Value, message)
}
