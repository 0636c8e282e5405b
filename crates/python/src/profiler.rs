//! The profiler in Python: sessions, ranges, and what they recorded as Python's own data.

use std::sync::{Mutex, PoisonError};

use keyfold_dispatch::{DispatchKey, DispatchKeySet};
use keyfold_layers::profiler::{
    Event, EventKind, OpenRange, Options, Session, SortBy, TableOptions,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::errors::IntoPyResult;
use crate::guards::{self, PyGuard};

/// A table's text, heads, rows and notes.
type TableParts = (String, Vec<&'static str>, Vec<Vec<String>>, Vec<String>);

/// What records; see `keyfold.profile`.
#[pyclass(name = "_ProfileSession", module = "keyfold._core", frozen)]
pub(crate) struct PyProfileSession {
    session: Session,
}

#[pymethods]
impl PyProfileSession {
    #[new]
    fn new(nested: bool, memory: bool) -> Self {
        PyProfileSession { session: Session::new(Options { nested, memory }) }
    }

    /// Opens the session and gives the guard that brings calls to it.
    fn open(&self, py: Python<'_>) -> PyResult<PyGuard> {
        let data = guards::in_context(py, || self.session.open())?.py(py)?;
        Ok(PyGuard::layer(DispatchKey::Profiler.into(), data).named("profile()"))
    }

    /// Ends the recording.
    fn close(&self) {
        self.session.close();
    }

    /// The guard that brings the calls of another thread to the open session.
    fn attach(&self, py: Python<'_>) -> PyResult<PyGuard> {
        let data = guards::in_context(py, || self.session.attached())?.py(py)?;
        Ok(PyGuard::layer(DispatchKey::Profiler.into(), data).named("profile.attach()"))
    }

    /// Whether it records now.
    #[getter]
    fn is_open(&self) -> bool {
        self.session.is_open()
    }

    /// How long it was open, in seconds.
    #[getter]
    fn total_time(&self) -> f64 {
        self.session.total().as_secs_f64()
    }

    /// How many events ended.
    #[getter]
    fn event_count(&self) -> usize {
        self.session.event_count()
    }

    /// Gives the calling thread its name in what is recorded.
    fn name_thread(&self, name: &str) {
        self.session.name_thread(name);
    }

    /// The events that ended, as dicts.
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let profile = self.session.profile();
        let list = PyList::empty(py);
        for (number, event) in profile.events.iter().enumerate() {
            let dict = event_dict(py, event)?;
            let thread = profile.threads.get(&event.thread);
            dict.set_item("thread_name", thread.map_or("", String::as_str))?;
            dict.set_item("path", profile.call_path(number))?;
            list.append(dict)?;
        }
        Ok(list)
    }

    /// The Chrome trace as JSON.
    fn chrome_trace(&self, py: Python<'_>) -> String {
        py.detach(|| self.session.profile().chrome_trace())
    }

    /// The table as text, and its heads, rows and notes.
    fn table(&self, py: Python<'_>, sort: &str, limit: Option<usize>) -> PyResult<TableParts> {
        let options = TableOptions { sort: sort.parse::<SortBy>().py(py)?, limit };
        let table = self.session.profile().table(&options);
        let (heads, rows) = table.cells();
        Ok((table.to_string(), heads, rows, table.notes()))
    }
}

fn event_dict<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let args: Vec<String> = event.args.iter().map(ToString::to_string).collect();
    let shapes: Vec<Bound<'py, PyTuple>> =
        event.args.iter().map(|arg| PyTuple::new(py, arg.shape.iter())).collect::<PyResult<_>>()?;
    dict.set_item("name", &*event.name)?;
    dict.set_item("kind", if event.kind == EventKind::Call { "call" } else { "range" })?;
    dict.set_item("keys", &*event.keys)?;
    dict.set_item("args", args)?;
    dict.set_item("shapes", shapes)?;
    dict.set_item("bytes_in", event.bytes_in)?;
    dict.set_item("bytes_out", event.bytes_out)?;
    dict.set_item("start", event.start as f64 / 1e9)?;
    dict.set_item("duration", event.duration as f64 / 1e9)?;
    dict.set_item("self_time", event.self_time as f64 / 1e9)?;
    dict.set_item("thread", event.thread)?;
    dict.set_item("depth", event.depth)?;
    dict.set_item("parent", event.parent)?;
    dict.set_item("allocated", event.allocated)?;
    dict.set_item("live", event.live)?;
    dict.set_item("failed", event.failed)?;
    Ok(dict)
}

/// A range that is open, until it is closed.
#[pyclass(name = "_ProfileRange", module = "keyfold._core", frozen)]
pub(crate) struct PyProfileRange {
    range: Mutex<Option<OpenRange>>,
}

#[pymethods]
impl PyProfileRange {
    /// Ends the range; `failed`: an exception went through it.
    fn close(&self, failed: bool) {
        let range = self.range.lock().unwrap_or_else(PoisonError::into_inner).take();
        match range {
            Some(range) if failed => range.fail(),
            range => drop(range),
        }
    }
}

/// Opens a range of a session, or of the innermost that is open here: the range, and the guard that
/// makes calls its children. `None` where no session is open here.
#[pyfunction]
#[pyo3(signature = (name, session))]
pub(crate) fn _open_range(
    py: Python<'_>,
    name: &str,
    session: Option<&Bound<'_, PyProfileSession>>,
) -> PyResult<Option<(PyProfileRange, PyGuard)>> {
    let range = guards::in_context(py, || match session {
        Some(session) => OpenRange::of(&session.get().session, name).map(Some),
        None => Ok(OpenRange::here(name)),
    })?;
    let Some(range) = range.py(py)? else { return Ok(None) };
    let guard = match range.data() {
        Some(data) => PyGuard::layer(DispatchKeySet::EMPTY, data),
        None => PyGuard::excluding(DispatchKeySet::EMPTY),
    };
    let guard = guard.named("profile_range()");
    Ok(Some((PyProfileRange { range: Mutex::new(Some(range)) }, guard)))
}
