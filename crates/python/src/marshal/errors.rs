//! keyfold's errors as Python exceptions, and the note that a kernel's exception gains.

use keyfold_core::{Error, ErrorKind, SharedError};
use keyfold_dispatch::{describe_path, endless_call};
use keyfold_ffi::ForeignError;
use pyo3::exceptions::{PyBaseException, PyException, PyRecursionError, PyRuntimeError};
use pyo3::ffi;
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
    if let Some(exception) = shared_exception(py, &error) {
        return exception;
    }
    match (kind, error.into_source()) {
        (ErrorKind::Foreign, Some(source)) => {
            return match source.downcast::<PyErr>() {
                Ok(raised) => endless(py, *raised),
                Err(other) => PyRuntimeError::new_err(other.to_string()),
            };
        }
        // An error that foreign code raised is the builtin exception of its kind.
        (ErrorKind::KernelFailed, Some(source)) => {
            let raised = source.downcast::<ForeignError>().ok();
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

/// The exception in an error that several readers get: the very one that was raised, for each of them.
fn shared_exception(py: Python<'_>, error: &Error) -> Option<PyErr> {
    let source = std::error::Error::source(error)?.downcast_ref::<SharedError>()?;
    if let Some(raised) = foreign_exception(source.error()) {
        return Some(raised.clone_ref(py));
    }
    let inner = std::error::Error::source(source.error())?;
    raised_exception(py, inner.downcast_ref::<ForeignError>()?)
}

/// The exception of Python's that an error wraps.
pub(crate) fn foreign_exception(error: &Error) -> Option<&PyErr> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Python's `RecursionError` where a call that repeats without end ran into Python's own limit:
/// keyfold's, which says what repeats. Any other exception stays what it is.
fn endless(py: Python<'_>, raised: PyErr) -> PyErr {
    if !raised.get_type(py).is(py.get_type::<PyRecursionError>()) {
        return raised;
    }
    // SAFETY: attached.
    let limit = unsafe { ffi::Py_GetRecursionLimit() };
    // Frames below the innermost call: a function that recurses there by itself fills the stack.
    let mut frames = 0;
    let mut trace = raised.traceback(py).map(Bound::into_any);
    while let Some(at) = trace.filter(|at| !at.is_none()) {
        frames += 1;
        trace = at.getattr("tb_next").ok();
    }
    if 2 * frames > limit {
        return raised;
    }
    // Without a number: CPython 3.12 has a limit of its own for calls through C, which comes first.
    let Some(error) = endless_call("Python's recursion limit is reached") else { return raised };
    // So near the limit even this may fail; then it is done one call further out.
    let made = class(py, ErrorKind::Recursion).and_then(|class| class.call1((error.message(),)));
    match made {
        Ok(value) => {
            let named = PyErr::from_value(value);
            named.set_cause(py, Some(raised));
            named
        }
        Err(_) => raised,
    }
}

/// The exception for an error of an operator that Python called. Where one of keyfold's functions that are
/// written in Python called it for a user, the function and its arguments are named as the user knows them.
#[cold]
pub(crate) fn for_caller(py: Python<'_>, error: Error) -> PyErr {
    reworded(py, error, |messages, text| messages.call_method1("of_function", (text,)))
}

/// The exception for an error of an operator, in the words that a function of `keyfold._messages` makes of
/// the engine's.
pub(crate) fn reworded<'py>(
    py: Python<'py>,
    error: Error,
    words: impl FnOnce(&Bound<'py, PyModule>, &str) -> PyResult<Bound<'py, PyAny>>,
) -> PyErr {
    if error.kind() == ErrorKind::Foreign || !error.message().contains("argument '") {
        return to_pyerr(py, error);
    }
    let worded = || -> PyResult<String> {
        words(&py.import("keyfold._messages")?, error.message())?.extract()
    };
    // The engine's words do where Python can't be asked, at the end of its stack, say.
    match worded() {
        Ok(text) if text != error.message() => to_pyerr(py, Error::new(error.kind(), text)),
        _ => to_pyerr(py, error),
    }
}

/// The builtin exception that foreign code names as the kind of its error, with a note of where it
/// was raised. `None` for a kind that isn't one.
fn raised_exception(py: Python<'_>, raised: &ForeignError) -> Option<PyErr> {
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
        let note = format!("{NOTE}raised by {place}");
        // Once: the exception of an endless recursion passes here in each round.
        if !has_note(raised.value(py), |text| text == note) {
            let _ = raised.value(py).call_method1("add_note", (note,));
        }
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

/// Whether an exception has a note that is so.
fn has_note(value: &Bound<'_, PyBaseException>, is: impl Fn(&str) -> bool) -> bool {
    let notes = value.getattr("__notes__").ok().and_then(|notes| notes.cast_into::<PyList>().ok());
    notes.is_some_and(|notes| {
        notes
            .iter()
            .any(|note| note.cast::<PyString>().is_ok_and(|text| is(&text.to_string_lossy())))
    })
}

/// Adds a note of keyfold's to an exception.
pub(crate) fn add_text(exception: &Bound<'_, PyAny>, text: &str) {
    // An exception class without add_note (none in the standard library) stays without.
    let _ = exception.call_method1("add_note", (format!("{NOTE}{text}"),));
}

/// Adds the note with operator and key path to an exception that a kernel raised, once.
///
/// Called inside the kernel's frame, so the path ends with it.
pub(crate) fn add_note(py: Python<'_>, error: &PyErr) {
    let value = error.value(py);
    if !has_note(value, |text| text.starts_with(NOTE)) {
        let note = format!("{NOTE}raised in {}", describe_path());
        // An exception class without add_note (none in the standard library) stays without.
        let _ = value.call_method1("add_note", (note,));
    }
}

/// An exception of one of keyfold's kinds.
pub(crate) fn error(py: Python<'_>, kind: ErrorKind, message: impl Into<String>) -> PyErr {
    to_pyerr(py, Error::new(kind, message))
}
