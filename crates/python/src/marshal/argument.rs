//! Arguments of Python functions whose conversion fails with keyfold's errors.

use std::ops::Deref;
use std::path::PathBuf;

use keyfold_core::ErrorKind;
use pyo3::exceptions::{PyOverflowError, PyUnicodeError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};

use crate::marshal::attach::reattach;
use crate::marshal::describe::describe_object;
use crate::marshal::errors::error;

/// Text. Half of a surrogate pair, which Python's `str` may hold, is no character.
pub(crate) struct Text(String);

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self)
    }
}

impl Text {
    /// The text that an argument has by default.
    pub(crate) fn new(text: &str) -> Text {
        Text(text.to_owned())
    }
}

impl From<Text> for String {
    fn from(text: Text) -> String {
        text.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for Text {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Text> {
        let Ok(text) = object.cast::<PyString>() else {
            let given = describe_object(&object);
            return Err(wrong_type(format!("text has to be a str, not {given}")));
        };
        match text.to_str() {
            Ok(text) => Ok(Text(text.to_owned())),
            Err(_) => {
                let message = format!(
                    "{} has half of a surrogate pair, which is no character; decode the bytes that \
                     it came from",
                    object.repr()?
                );
                Err(error(object.py(), ErrorKind::Value, message))
            }
        }
    }
}

/// A bool, for which 0 and 1 are taken, too.
pub(crate) struct Flag(pub(crate) bool);

/// The bool that an object of Python's own stands for: 0 and 1 do, too.
pub(crate) fn flag(object: &Bound<'_, PyAny>) -> Option<bool> {
    let number = object.is_instance_of::<PyInt>().then(|| object.extract::<u8>())?;
    number.ok().filter(|number| *number < 2).map(|number| number == 1)
}

impl<'py> FromPyObject<'_, 'py> for Flag {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Flag> {
        flag(&object).map_or_else(|| object.extract(), Ok).map(Flag)
    }
}

/// A number of things, or an address: what a machine word holds.
pub(crate) struct Count(pub(crate) usize);

/// A file's name.
pub(crate) struct FilePath(pub(crate) PathBuf);

impl<'py> FromPyObject<'_, 'py> for Count {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Count> {
        let range = || format!("between 0 and {}", usize::MAX);
        object.extract().map(Count).map_err(|failed| in_our_words(object, failed, range))
    }
}

impl<'py> FromPyObject<'_, 'py> for FilePath {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<FilePath> {
        let wanted = || "a file's name in this system's encoding".to_owned();
        object.extract().map(FilePath).map_err(|failed| in_our_words(object, failed, wanted))
    }
}

/// The error for a value of the right type that is out of range or can't be encoded.
fn in_our_words(
    object: Borrowed<'_, '_, PyAny>,
    failed: PyErr,
    wanted: impl Fn() -> String,
) -> PyErr {
    let py = object.py();
    if !failed.is_instance_of::<PyOverflowError>(py) && !failed.is_instance_of::<PyUnicodeError>(py)
    {
        return failed;
    }
    let shown = object.repr().map_or_else(|_| "?".to_owned(), |shown| shown.to_string());
    error(py, ErrorKind::Value, format!("{shown} isn't {}", wanted()))
}

/// The error for an argument of another type than the function takes.
pub(crate) fn wrong_type(message: impl Into<String>) -> PyErr {
    reattach(|py| error(py, ErrorKind::Binding, message))
}

/// The error for an argument whose value isn't right.
pub(crate) fn wrong_value(message: impl Into<String>) -> PyErr {
    reattach(|py| error(py, ErrorKind::Value, message))
}
