//! Python's objects as values of the engine, and back: arrays, tensors, numbers, dtypes, keys, errors.
//!
//! Nothing here calls an operator.

pub(crate) mod argument;
pub(crate) mod arrays;
pub(crate) mod attach;
pub(crate) mod describe;
pub(crate) mod dtype;
pub(crate) mod errors;
pub(crate) mod forced_unwind;
pub(crate) mod keys;
pub(crate) mod py_value;
pub(crate) mod tensor;
pub(crate) mod values;

/// Called once, at import.
pub(crate) fn init(py: pyo3::Python<'_>) -> pyo3::PyResult<()> {
    forced_unwind::init();
    tensor::init(py);
    arrays::numpy_array::init(py)?;
    keys::init(py);
    Ok(())
}
