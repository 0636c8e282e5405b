//! `keyfold.trace`: what Python needs of the tracer.

use keyfold_tensor::Tensor;
use pyo3::prelude::*;

/// Refuses to read a tensor that follows from the inputs of a trace that is being recorded.
#[inline]
pub(crate) fn check_readable(_py: Python<'_>, _tensor: &Tensor, _what: &str) -> PyResult<()> {
    Ok(())
}
