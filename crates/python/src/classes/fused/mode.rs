//! How a fused function is called, by its arguments and its context.

use keyfold_dispatch::{DispatchKey, DispatchKeySet, LocalKeys};
use keyfold_tensor::Tensor;
use pyo3::prelude::*;

use crate::call::context;
use crate::marshal::arrays::{self, numpy_array};
use crate::marshal::errors::IntoPyResult;
use crate::marshal::tensor::{OF_AN_OBJECT, PyTensor};

pub(super) type Any<'py> = Bound<'py, PyAny>;

/// How a fused function is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Nothing but backends is in the calls' key sets: a recording can be replayed.
    Replay,
    /// A pipeline is open, which records the calls.
    Here,
    /// A layer is in the key sets: the calls are made, in a pipeline of their own.
    Pipeline,
    /// An array of another library: the calls are made.
    Eager,
}

/// Returns an argument as a tensor; `None` for what isn't keyfold's or NumPy's. Arrays of classes derived
/// from NumPy's have operators of their own.
pub(super) fn array<'py>(object: &Any<'py>) -> PyResult<Option<Tensor>> {
    let is_one = object.is_instance_of::<PyTensor>() || numpy_array::is_exact(object);
    if !is_one {
        return Ok(None);
    }
    let mut view = arrays::view(object).py(object.py())?;
    // A pipeline's result is a tensor as any other once it is computed.
    if view.pending_buffer().is_some_and(|pending| pending.filled().is_some())
        && let Some(done) = view.completed().py(object.py())?
    {
        view = done;
    }
    Ok(Some(view.with_token(OF_AN_OBJECT)))
}

/// Returns the keys that the context adds to calls, and those that it removes.
pub(super) fn local_keys(py: Python<'_>) -> PyResult<(DispatchKeySet, DispatchKeySet)> {
    let local = context::in_context(py, LocalKeys::current)?;
    Ok((local.included(), local.excluded()))
}

/// Returns whether a context adds no keys, and removes none but that of gradients.
pub(super) fn has_no_layers((included, excluded): (DispatchKeySet, DispatchKeySet)) -> bool {
    included.is_empty() && (excluded - DispatchKeySet::from([DispatchKey::Autograd])).is_empty()
}

fn mode_of(py: Python<'_>, leaves: &[Any<'_>]) -> PyResult<Mode> {
    let keys = local_keys(py)?;
    if keys.0.contains(DispatchKey::Pipeline) {
        return Ok(Mode::Here);
    }
    let mut mode = if has_no_layers(keys) { Mode::Replay } else { Mode::Pipeline };
    for leaf in leaves {
        match array(leaf) {
            Ok(Some(tensor)) if !is_plain(&tensor) => mode = Mode::Pipeline,
            Ok(Some(_)) => {}
            // Of a dtype that keyfold lacks.
            Err(_) => return Ok(Mode::Eager),
            // Of a class derived from NumPy's, or of another library.
            Ok(None) if numpy_array::is_array(leaf) => return Ok(Mode::Eager),
            Ok(None) if arrays::look(leaf).is_ok_and(|found| found.is_some()) => {
                return Ok(Mode::Eager);
            }
            Ok(None) => {}
        }
    }
    Ok(mode)
}

/// Returns whether calls with a tensor go to its backend alone.
pub(super) fn is_plain(tensor: &Tensor) -> bool {
    let backend = DispatchKey::from_device_type(tensor.device().kind());
    tensor.keys() == DispatchKeySet::from([backend])
}

/// Say how a fused function is called with these arguments. Not for calling.
#[pyfunction]
pub(crate) fn _fuse_mode(py: Python<'_>, leaves: Vec<Any<'_>>) -> PyResult<&'static str> {
    Ok(match mode_of(py, &leaves)? {
        Mode::Replay => "replay",
        Mode::Here => "here",
        Mode::Pipeline => "pipeline",
        Mode::Eager => "eager",
    })
}
