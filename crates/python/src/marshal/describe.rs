//! Objects in error messages.

use pyo3::ffi;
use pyo3::prelude::*;

use crate::marshal::attach::try_attach;

/// [`describe_object`] on any thread, of an object that the caller holds.
pub(crate) fn describe(object: *mut ffi::PyObject) -> String {
    let described = try_attach(|py| {
        // SAFETY: callers hold the object.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        describe_object(&object)
    });
    described.unwrap_or_else(|| "an object of an interpreter that has ended".to_owned())
}

/// An object for an error message: `numpy.ndarray float64[2, 3]`, `str 'abc'`.
pub(crate) fn describe_object(object: &Bound<'_, PyAny>) -> String {
    if object.is_none() {
        return "None".to_owned();
    }
    let kind = object.get_type();
    let name = match kind.fully_qualified_name() {
        Ok(name) => name.to_string(),
        Err(_) => "?".to_owned(),
    };
    let array = || -> PyResult<String> {
        let shape: Vec<usize> = object.getattr("shape")?.extract()?;
        Ok(format!("{name} {}{shape:?}", object.getattr("dtype")?.str()?))
    };
    if let Ok(text) = array() {
        return text;
    }
    match object.repr() {
        Ok(repr) => {
            let repr = repr.to_string();
            let short: String = repr.chars().take(60).collect();
            let more = if short.len() < repr.len() { "..." } else { "" };
            format!("{name} {short}{more}")
        }
        Err(_) => name,
    }
}
