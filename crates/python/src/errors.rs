//! keyfold's errors as Python exceptions, and the note that a kernel's exception gains.

use keyfold_core::{Error, ErrorKind};
use keyfold_dispatch::describe_path;
use keyfold_ffi::Raised;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyType};

/// The exception classes by the name of their error kind, from `keyfold._errors`.
static CLASSES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// How a note of ours begins; an exception that has one gets no second.
const NOTE: &str = "keyfold: ";

fn class<'py>(py: Python<'py>, kind: ErrorKind) -> PyResult<Bound<'py, PyType>> {
    let classes = CLASSES.get_or_try_init(py, || {
        let module = py.import("keyfold._errors")?;
        Ok::<_, PyErr>(module.getattr("BY_KIND")?.cast_into::<PyDict>()?.unbind())
    })?;
    match classes.bind(py).get_item(kind.name())? {
        Some(class) => Ok(class.cast_into::<PyType>()?),
        None => Err(PyRuntimeError::new_err(format!("no exception class for {kind:?}"))),
    }
}

/// The exception for an error. One that came from Python is raised again as it was.
pub(crate) fn to_pyerr(py: Python<'_>, error: Error) -> PyErr {
    let kind = error.kind();
    let message = error.message().to_owned();
    match (kind, error.into_source()) {
        (ErrorKind::Foreign, Some(source)) => {
            return match source.downcast::<PyErr>() {
                Ok(raised) => *raised,
                Err(other) => PyRuntimeError::new_err(other.to_string()),
            };
        }
        // An error that foreign code raised is the builtin exception of its kind.
        (ErrorKind::KernelFailed, Some(source)) => {
            let raised = source.downcast::<Raised>().ok();
            if let Some(exception) = raised.and_then(|raised| raised_exception(py, &raised)) {
                return exception;
            }
        }
        _ => {}
    }
    match class(py, kind) {
        Ok(class) => PyErr::from_type(class, message),
        Err(problem) => problem,
    }
}

/// The builtin exception that foreign code names as the kind of its error, with a note of where it
/// was raised. `None` for a kind that isn't one.
fn raised_exception(py: Python<'_>, raised: &Raised) -> Option<PyErr> {
    // The kernel called Python, and Python's exception is still set.
    if raised.kind == "EnvErrorAlreadySet"
        && let Some(set) = PyErr::take(py)
    {
        return Some(set);
    }
    // Not these: Python's own control flow.
    if raised.kind == "StopIteration" || raised.kind == "StopAsyncIteration" {
        return None;
    }
    let class = py.import("builtins").ok()?.getattr_opt(&*raised.kind).ok()??;
    let class = class.cast_into::<PyType>().ok()?;
    if !class.is_subclass_of::<PyException>().ok()? {
        return None;
    }
    // One that takes more than a message stays unnamed.
    let value = class.call1((&*raised.message,)).ok()?;
    // Without a place it is the library's own, raised while keyfold used it.
    if raised.place.is_empty() {
        return Some(PyErr::from_value(value));
    }
    let mut notes = vec![format!("{NOTE}raised in {}", raised.place)];
    if let Some(frames) = own_frames(&raised.backtrace) {
        notes.push(format!("where, innermost first:\n{frames}"));
    }
    for note in notes {
        // Every builtin exception has add_note.
        let _ = value.call_method1("add_note", (note,));
    }
    Some(PyErr::from_value(value))
}

/// The frames of foreign code, without those of keyfold's that called it.
fn own_frames(backtrace: &str) -> Option<String> {
    const SHOWN: usize = 20;
    let own = backtrace.lines().take_while(|line| !line.contains("keyfold_ffi_guarded_call"));
    let frames: Vec<&str> = own.filter(|line| !line.trim().is_empty()).take(SHOWN).collect();
    (!frames.is_empty()).then(|| frames.join("\n"))
}

/// An exception as an error, to travel through native layers.
pub(crate) fn from_pyerr(error: PyErr) -> Error {
    Error::foreign(error)
}

/// An error with the place where it happened, an argument say. An exception of somebody else's stays
/// what it is, and gets a note.
pub(crate) fn at(py: Python<'_>, error: Error, place: &str) -> Error {
    if error.kind() != ErrorKind::Foreign {
        return error.at(place);
    }
    let source = std::error::Error::source(&error);
    if let Some(raised) = source.and_then(|source| source.downcast_ref::<PyErr>()) {
        let _ = raised.value(py).call_method1("add_note", (format!("{NOTE}raised by {place}"),));
    }
    error
}

/// `Result` of the engine as a `PyResult`.
pub(crate) trait IntoPyResult<T> {
    fn py(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> IntoPyResult<T> for keyfold_core::Result<T> {
    #[inline]
    fn py(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| to_pyerr(py, error))
    }
}

/// Adds the note with operator and key path to an exception that a kernel raised, once.
///
/// Called inside the kernel's frame, so the path ends with it.
pub(crate) fn add_note(py: Python<'_>, error: &PyErr) {
    let value = error.value(py);
    let noted = value
        .getattr("__notes__")
        .ok()
        .and_then(|notes| notes.cast_into::<PyList>().ok())
        .is_some_and(|notes| {
            notes.iter().any(|note| {
                note.cast::<PyString>().is_ok_and(|text| text.to_string_lossy().starts_with(NOTE))
            })
        });
    if !noted {
        let note = format!("{NOTE}raised in {}", describe_path());
        // An exception class without add_note (none in the standard library) stays without.
        let _ = value.call_method1("add_note", (note,));
    }
}
