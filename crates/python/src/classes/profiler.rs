//! The profiler in Python: sessions, ranges, and what they recorded as Python's own data.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_core::ErrorKind;
use keyfold_dispatch::{DispatchKey, DispatchKeySet};
use keyfold_layers::profiler::{
    Event, EventKind, OpenRange, Options, Session, SortBy, TableOptions,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::call::context;
use crate::classes::guards::PyGuard;
use crate::marshal::argument::{Count, Text};
use crate::marshal::errors::{IntoPyResult, error};

/// A table's text, heads, rows and notes.
type TableParts = (Vec<&'static str>, Vec<Vec<String>>, Vec<String>);

/// The recorder behind `keyfold.profile`.
#[pyclass(name = "_ProfileSession", module = "keyfold._core", frozen, subclass)]
pub(crate) struct PyProfileSession {
    session: Session,
    /// Brings the calls of the context that opened the session to it, while it is open.
    guard: Mutex<Option<Arc<PyGuard>>>,
}

impl PyProfileSession {
    fn guard(&self) -> MutexGuard<'_, Option<Arc<PyGuard>>> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running thread's name in Python.
fn thread_name(py: Python<'_>) -> PyResult<String> {
    py.import("threading")?.call_method0("current_thread")?.getattr("name")?.extract()
}

#[pymethods]
impl PyProfileSession {
    #[new]
    fn new(nested: bool, memory: bool) -> Self {
        let session = Session::new(Options { nested, memory });
        PyProfileSession { session, guard: Mutex::default() }
    }

    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (py, this) = (slf.py(), slf.get());
        // Python code, which may raise: before anything is open.
        let name = thread_name(py)?;
        let data = context::in_context(py, || this.session.open())?.py(py)?;
        let guard = PyGuard::layer(DispatchKey::Profiler.into(), data).named("profile()");
        if let Err(error) = guard.enter(py) {
            this.session.close();
            return Err(error);
        }
        this.session.name_thread(&name);
        *this.guard() = Some(Arc::new(guard));
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let open = self.guard().clone();
        let Some(guard) = open else {
            let message = "this profile was closed without being open";
            return Err(error(py, ErrorKind::Guard, message.to_owned()));
        };
        let closed = guard.exit(py);
        // In another thread or context the guard stays entered, and so the profile open.
        if !guard.is_open() {
            *self.guard() = None;
            self.session.close();
        }
        closed.py(py)
    }

    /// Return a block in which this thread's calls are recorded, too.
    ///
    /// Call it in that thread, which gives its name to what is recorded there.
    ///
    /// Raises:
    ///     GuardError: the profile isn't open.
    fn attach(&self, py: Python<'_>) -> PyResult<PyGuard> {
        let name = thread_name(py)?;
        let data = context::in_context(py, || self.session.attached())?.py(py)?;
        self.session.name_thread(&name);
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

    /// How long devices that work late worked on the calls, in seconds, if there were such calls.
    #[getter]
    fn _device_time(&self, py: Python<'_>) -> Option<f64> {
        py.detach(|| self.session.profile().device_time()).map(|time| time as f64 / 1e9)
    }

    /// How many events ended.
    #[getter]
    fn _event_count(&self) -> usize {
        self.session.event_count()
    }

    /// The events that ended, as dicts.
    fn _events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let profile = py.detach(|| self.session.profile());
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
    fn _chrome_trace(&self, py: Python<'_>) -> String {
        py.detach(|| self.session.profile().chrome_trace())
    }

    /// The table's heads, rows and notes.
    fn _table(&self, py: Python<'_>, sort: Text, limit: Option<Count>) -> PyResult<TableParts> {
        let options = TableOptions {
            sort: sort.parse::<SortBy>().py(py)?,
            limit: limit.map(|limit| limit.0),
        };
        let table = py.detach(|| self.session.profile().table(&options));
        let (heads, rows) = table.cells();
        Ok((heads, rows, table.notes()))
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
    dict.set_item("device_time", event.device_time.map(|time| time as f64 / 1e9))?;
    dict.set_item("thread", event.thread)?;
    dict.set_item("depth", event.depth)?;
    dict.set_item("parent", event.parent)?;
    dict.set_item("allocated", event.allocated)?;
    dict.set_item("live", event.live)?;
    dict.set_item("failed", event.failed)?;
    Ok(dict)
}

/// A named event around calls; see `keyfold.profile_range`.
#[pyclass(name = "_ProfileRange", module = "keyfold._core", frozen, subclass)]
pub(crate) struct PyProfileRange {
    name: String,
    /// The innermost that is open where the range is entered, if none is given.
    session: Option<Py<PyProfileSession>>,
    /// The event that was entered and not closed yet; `None` where no session was open.
    entered: Mutex<Vec<Option<Arc<Entered>>>>,
}

/// A range that has begun, and the guard that makes calls its children.
struct Entered {
    range: Mutex<Option<OpenRange>>,
    guard: PyGuard,
}

impl PyProfileRange {
    fn entered(&self) -> MutexGuard<'_, Vec<Option<Arc<Entered>>>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, py: Python<'_>) -> PyResult<Option<Arc<Entered>>> {
        let range = context::in_context(py, || match &self.session {
            Some(session) => OpenRange::of(&session.get().session, &self.name).map(Some),
            None => Ok(OpenRange::here(&self.name)),
        })?;
        let Some(range) = range.py(py)? else { return Ok(None) };
        let guard = match range.data() {
            Some(data) => PyGuard::layer(DispatchKeySet::EMPTY, data),
            None => PyGuard::excluding(DispatchKeySet::EMPTY),
        };
        let guard = guard.named("profile_range()");
        guard.enter(py)?;
        Ok(Some(Arc::new(Entered { range: Mutex::new(Some(range)), guard })))
    }

    fn error(&self, py: Python<'_>, problem: &str) -> PyErr {
        match PyString::new(py, &self.name).repr() {
            Ok(name) => {
                let name = name.to_string_lossy();
                error(py, ErrorKind::Guard, format!("the range {name} was closed {problem}"))
            }
            Err(error) => error,
        }
    }
}

#[pymethods]
impl PyProfileRange {
    #[new]
    fn new(name: String, session: Option<Py<PyProfileSession>>) -> Self {
        PyProfileRange { name, session, entered: Mutex::default() }
    }

    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let begun = slf.get().begin(slf.py())?;
        slf.get().entered().push(begun);
        Ok(slf)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let py = exception.py();
        let entered = self.entered().clone();
        if entered.is_empty() {
            return Err(self.error(py, "without being open"));
        }
        // One object may be open in several threads and tasks: the last that is open here.
        for one in entered.iter().rev().flatten() {
            let closed = one.guard.exit(py);
            if one.guard.is_open() {
                continue;
            }
            self.entered().retain(|other| !other.as_ref().is_some_and(|o| Arc::ptr_eq(o, one)));
            let range = one.range.lock().unwrap_or_else(PoisonError::into_inner).take();
            let failed = exception.get_item(0).is_ok_and(|class| !class.is_none());
            match range {
                Some(range) if failed => range.fail(),
                range => drop(range),
            }
            return closed.py(py);
        }
        let mut entered = self.entered();
        let Some(at) = entered.iter().position(Option::is_none) else {
            drop(entered);
            let problem = "on another thread or in another context than it was opened in";
            return Err(self.error(py, problem));
        };
        entered.remove(at);
        Ok(())
    }

    #[getter]
    fn _name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn _session(&self, py: Python<'_>) -> Option<Py<PyProfileSession>> {
        self.session.as_ref().map(|session| session.clone_ref(py))
    }
}
