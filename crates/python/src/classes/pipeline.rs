//! The pipeline in Python: the block, what waits in it, and where a call stands in the program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_layers::pipeline::{
    self, Check, Ending, Failure, Host, Options, ProgramPlace, Session, Site,
};
use pyo3::exceptions::{PyException, PyKeyboardInterrupt};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::call::context;
use crate::classes::guards::PyGuard;
use crate::classes::tracer::PyGraph;
use crate::marshal::attach::{attach, is_attached, try_attach};
use crate::marshal::errors::{IntoPyResult, add_text, error, foreign_exception, from_pyerr};

/// The block behind `keyfold.pipeline`, by the same name, which errors of its constructor tell.
#[pyclass(name = "pipeline", module = "keyfold._core", frozen, subclass)]
pub(crate) struct PyPipeline {
    session: Arc<Session>,
    /// The open blocks of this object: the session that each records in, and its guard.
    open: Mutex<Vec<(Arc<Session>, Arc<PyGuard>)>>,
}

impl PyPipeline {
    fn open(&self) -> MutexGuard<'_, Vec<(Arc<Session>, Arc<PyGuard>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the block that ends here: the only one, or the last one that was opened in the running context, since
    /// other threads and tasks may have blocks of this object, too.
    ///
    /// Raises:
    ///     GuardError: several are open, and none was opened here.
    fn take_open(&self, py: Python<'_>) -> PyResult<Option<(Arc<Session>, Arc<PyGuard>)>> {
        let guards: Vec<_> = {
            let mut open = self.open();
            if open.len() < 2 {
                return Ok(open.pop());
            }
            open.iter().map(|(_, guard)| Arc::clone(guard)).collect()
        };
        // Without the lock: Python code may run, and another thread may then want it.
        for ends in guards.iter().rev() {
            if ends.is_open_here(py)? {
                let mut open = self.open();
                let at = open.iter().rposition(|(_, guard)| Arc::ptr_eq(guard, ends));
                return Ok(at.map(|at| open.remove(at)));
            }
        }
        let message = "pipeline() was closed on another thread or in another context than it was entered in; close \
                       it where it was entered";
        Err(error(py, ErrorKind::Guard, message))
    }

    /// The session that it records in: another block's, where it joined one.
    fn recorded_in(&self) -> Arc<Session> {
        self.open().last().map_or_else(|| Arc::clone(&self.session), |open| Arc::clone(&open.0))
    }
}

#[pymethods]
impl PyPipeline {
    #[new]
    #[pyo3(signature = (
        *, max_ops=10_000, max_pending_bytes=1_073_741_824, max_wait=None, flush_on_backward=false, check=None
    ))]
    fn new(
        py: Python<'_>,
        max_ops: usize,
        max_pending_bytes: u64,
        max_wait: Option<f64>,
        flush_on_backward: bool,
        check: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let max_wait = max_wait.map(|seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|problem| {
                let message = format!("max_wait of a pipeline is {seconds} seconds: {problem}");
                error(py, ErrorKind::Value, message)
            })
        });
        let max_wait = max_wait.transpose()?;
        let check = check.map(|given| {
            let name = given.extract::<String>();
            let name = name.or_else(|_| given.repr().map(|text| text.to_string()))?;
            Check::named(&name).py(py)
        });
        let check = check.transpose()?;
        let options = Options { max_ops, max_pending_bytes, max_wait, flush_on_backward, check };
        Ok(PyPipeline { session: Session::new(options).py(py)?, open: Mutex::default() })
    }

    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (py, this) = (slf.py(), slf.get());
        if this.session.options().check.is_some() {
            let reason = "it opens a pipeline that checks";
            context::in_context(py, || pipeline::note_unrecordable(reason))?.py(py)?;
        }
        let around = context::in_context(py, Session::current)?;
        let session = around.unwrap_or_else(|| Arc::clone(&this.session));
        session.check_join(this.session.options()).py(py)?;
        session.open();
        let guard = PyGuard::layer(Session::keys(), pipeline::as_data(&session));
        let guard = guard.named("pipeline()");
        if let Err(error) = guard.enter(py) {
            // Nothing was recorded; the first error is the one that tells.
            let _ = session.close(Ending::GiveUp);
            return Err(error);
        }
        this.open().push((session, Arc::new(guard)));
        Ok(slf)
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let py = exception.py();
        let Some((session, guard)) = self.take_open(py)? else {
            let message = "this pipeline was closed without being open";
            return Err(error(py, ErrorKind::Guard, message.to_owned()));
        };
        let raised = exception.get_item(1).ok().filter(|raised| !raised.is_none());
        let stops = raised.as_ref().is_some_and(|raised| !raised.is_instance_of::<PyException>());
        let ending = if stops { Ending::GiveUp } else { Ending::Run };
        let ended = detached(py, || session.close(ending));
        let closed = guard.exit(py);
        let Some(raised) = raised else {
            return ended.and(closed).py(py);
        };
        // The block's own exception is the one that is raised.
        if let Err(also) = ended.and(closed) {
            add_text(
                &raised,
                &format!("also, when the pipeline's block ended: {}", also.message()),
            );
        }
        Ok(())
    }

    /// Run what waits.
    ///
    /// Raises:
    ///     the error of the first operation that failed and that nobody was told yet. Operations that don't
    ///     depend on it are computed, and those that do raise the same error when they are read.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.recorded_in();
        detached(py, || session.flush()).py(py)
    }

    /// Return how many operations wait.
    fn pending_count(&self) -> usize {
        self.recorded_in().pending_count()
    }

    /// Return how many bytes wait: the results of operations, and copies of other libraries' arrays.
    fn pending_bytes(&self) -> u64 {
        self.recorded_in().pending_bytes()
    }

    /// Whether a `with` block of this object is running.
    #[getter]
    fn is_open(&self) -> bool {
        !self.open().is_empty()
    }

    /// Whether the block joined one around it, whose record and limits it uses.
    #[getter]
    fn is_joined(&self) -> bool {
        !Arc::ptr_eq(&self.recorded_in(), &self.session)
    }

    #[getter]
    fn _limits(&self) -> (usize, u64, Option<f64>, bool, Option<&'static str>) {
        let options = self.recorded_in().options();
        let Options { max_ops, max_pending_bytes, max_wait, flush_on_backward, check } = options;
        let wait = max_wait.map(|wait| wait.as_secs_f64());
        (max_ops, max_pending_bytes, wait, flush_on_backward, check.map(Check::name))
    }

    fn _statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let numbers = self.recorded_in().statistics();
        let dict = PyDict::new(py);
        dict.set_item("recorded", numbers.recorded)?;
        dict.set_item("ran", numbers.ran)?;
        dict.set_item("at_once", numbers.at_once)?;
        dict.set_item("dead", numbers.dead)?;
        dict.set_item("merged", numbers.merged)?;
        dict.set_item("failed", numbers.failed)?;
        dict.set_item("skipped", numbers.skipped)?;
        dict.set_item("flushes", numbers.flushes)?;
        dict.set_item("groups", numbers.groups)?;
        dict.set_item("fused", numbers.fused)?;
        dict.set_item("concurrent", numbers.concurrent)?;
        dict.set_item("planned", numbers.planned)?;
        dict.set_item("recognised", numbers.recognised)?;
        dict.set_item("checked", numbers.checked)?;
        Ok(dict)
    }

    fn _last_failure<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.recorded_in().last_failure().map(|failure| failure_dict(py, &failure)).transpose()
    }

    fn _explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let explained = self.recorded_in().explain();
        let operations = PyList::empty(py);
        for one in &explained.operations {
            let dict = PyDict::new(py);
            dict.set_item("index", one.index)?;
            dict.set_item("operator", &one.operator)?;
            dict.set_item("call", &one.call)?;
            dict.set_item("line", &one.site)?;
            dict.set_item("after", &one.after)?;
            dict.set_item("dead", one.dead)?;
            dict.set_item("bytes", one.bytes)?;
            operations.append(dict)?;
        }
        let groups = PyList::empty(py);
        for one in &explained.groups {
            let dict = PyDict::new(py);
            dict.set_item("operations", &one.operations)?;
            dict.set_item("stored", &one.stored)?;
            dict.set_item("saved_bytes", one.saved_bytes)?;
            dict.set_item("tiles", one.tiles)?;
            groups.append(dict)?;
        }
        let at_once = PyList::empty(py);
        for one in &explained.at_once {
            let dict = PyDict::new(py);
            dict.set_item("operator", &one.operator)?;
            dict.set_item("reason", one.reason)?;
            dict.set_item("count", one.count)?;
            at_once.append(dict)?;
        }
        let dict = PyDict::new(py);
        dict.set_item("operations", operations)?;
        dict.set_item("groups", groups)?;
        let concurrent = explained.concurrent.iter().map(|one| &one.steps);
        dict.set_item("concurrent", PyList::new(py, concurrent)?)?;
        dict.set_item("at_once", at_once)?;
        dict.set_item("bytes", explained.bytes)?;
        dict.set_item("text", explained.to_string())?;
        dict.set_item("graph", Bound::new(py, PyGraph(explained.graph))?)?;
        Ok(dict)
    }
}

fn failure_dict<'py>(py: Python<'py>, failure: &Failure) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("index", failure.index)?;
    dict.set_item("operator", &failure.operator)?;
    dict.set_item("line", &failure.site)?;
    dict.set_item("call", &failure.call)?;
    dict.set_item("after", &failure.depends_on)?;
    dict.set_item("error", crate::marshal::errors::to_pyerr(py, failure.error.again()))?;
    dict.set_item("text", failure.to_string())?;
    dict.set_item("graph", Bound::new(py, PyGraph(failure.graph.clone()))?)?;
    Ok(dict)
}

/// Run what waits in the pipeline that is open here; do nothing where none is.
///
/// Raises:
///     the error of an operation that failed, as `pipeline.flush` does.
///
/// Example:
///     >>> import keyfold as kf
///     >>> with kf.pipeline():
///     ...     y = kf.ones(3) + 1.0
///     ...     kf.flush()
///     ...     print(y.is_pending)
///     False
#[pyfunction]
pub(crate) fn flush(py: Python<'_>) -> PyResult<()> {
    match context::in_context(py, Session::current)? {
        Some(session) => detached(py, || session.flush()).py(py),
        None => Ok(()),
    }
}

/// A line of a Python program.
struct Line {
    code: Py<PyAny>,
    /// The last instruction that the frame had begun: its line is only looked up for a person. The stable
    /// ABI has the line alone.
    place: i32,
}

impl Line {
    #[cfg(not(feature = "abi3"))]
    fn line(&self) -> i32 {
        // SAFETY: attached by the caller; the object is the code of a frame.
        unsafe { ffi::PyCode_Addr2Line(self.code.as_ptr().cast(), self.place) }
    }

    #[cfg(feature = "abi3")]
    fn line(&self) -> i32 {
        self.place
    }
}

impl ProgramPlace for Line {
    fn resolve(&self) -> Option<String> {
        try_attach(|py| {
            let file = self.code.bind(py).getattr("co_filename").ok()?;
            Some(format!("{}:{}", file.cast::<PyString>().ok()?.to_string_lossy(), self.line()))
        })?
    }
}

/// A place of a program that was looked at before.
struct Known {
    code: Py<PyAny>,
    place: i32,
    /// `None` in keyfold's own code.
    site: Option<Site>,
}

/// The number of places that are remembered.
const PLACES: usize = 256;

static KNOWN: Mutex<[Option<Known>; PLACES]> = Mutex::new([const { None }; PLACES]);

/// The folder of the package, whose own frames aren't a user's.
static FOLDER: PyOnceLock<Option<String>> = PyOnceLock::new();

fn folder(py: Python<'_>) -> Option<&str> {
    let found = FOLDER.get_or_init(py, || {
        let file = py.import("keyfold").ok()?.getattr("__file__").ok()?.extract::<String>().ok()?;
        Some(file.strip_suffix("__init__.py")?.to_owned())
    });
    found.as_deref()
}

/// The line of the innermost frame that isn't keyfold's own.
fn site() -> Option<Site> {
    try_attach(|py| {
        // SAFETY: attached; a borrowed reference, or null without a frame.
        let frame = unsafe {
            Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast::<ffi::PyObject>())
        };
        let mut frame = frame?;
        loop {
            if let Some(site) = site_of(py, &frame)? {
                return Some(site);
            }
            frame = frame.getattr(intern!(py, "f_back")).ok().filter(|back| !back.is_none())?;
        }
    })?
}

/// The line that a frame is in; `Some(None)` in keyfold's own code.
fn site_of(py: Python<'_>, frame: &Bound<'_, PyAny>) -> Option<Option<Site>> {
    let frame = frame.as_ptr().cast();
    // SAFETY: attached; the object is a frame, and its code a new reference.
    let code = unsafe {
        Bound::from_owned_ptr_or_opt(py, ffi::PyFrame_GetCode(frame).cast::<ffi::PyObject>())?
    };
    // SAFETY: as above.
    #[cfg(not(feature = "abi3"))]
    let place = unsafe { ffi::PyFrame_GetLasti(frame) };
    // SAFETY: as above.
    #[cfg(feature = "abi3")]
    let place = unsafe { ffi::PyFrame_GetLineNumber(frame) };
    let entry = (code.as_ptr().addr() / 16 + place as usize / 2) % PLACES;
    let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = &lock()[entry]
        && known.place == place
        && known.code.is(&code)
    {
        return Some(known.site.clone());
    }
    let site = is_users(py, &code).then(|| Site::new(Line { code: code.clone().unbind(), place }));
    let known = Known { code: code.unbind(), place, site: site.clone() };
    let old = lock()[entry].replace(known);
    // Without the lock: it may be the last reference to an object.
    drop(old);
    Some(site)
}

fn is_users(py: Python<'_>, code: &Bound<'_, PyAny>) -> bool {
    let Some(folder) = folder(py) else { return true };
    let file = code.getattr(intern!(py, "co_filename")).and_then(|file| file.extract::<String>());
    file.is_ok_and(|file| !file.starts_with(folder))
}

/// Runs operations without the lock, in the running context, where a profile may have their steps.
fn detached<R: Send>(py: Python<'_>, run: impl FnOnce() -> R + Send) -> R {
    match context::ambient(py) {
        Ok(Some(context)) => context.apply(|| py.detach(run)),
        _ => py.detach(run),
    }
}

fn without_lock(run: &mut dyn FnMut()) {
    /// The function for `detach`, which runs it on this very thread.
    struct Here<'a>(&'a mut dyn FnMut());
    // SAFETY: it never leaves its thread.
    unsafe impl Send for Here<'_> {}
    impl Here<'_> {
        fn run(self) {
            (self.0)();
        }
    }
    // SAFETY: asking is allowed on any thread at any time.
    let unknown = unsafe { ffi::PyGILState_GetThisThreadState() }.is_null();
    // The stable ABI can't tell whether the lock is held: it is taken, to be given back.
    if unknown || (cfg!(not(feature = "abi3")) && !is_attached()) {
        return run();
    }
    let here = Here(run);
    // The thread's state belongs to an interpreter, so there is one.
    try_attach(|py| detached(py, move || here.run()));
}

fn interrupted() -> Result<()> {
    // SAFETY: a look at the thread's own data.
    if unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
        // A thread that isn't Python's, as that of `max_wait`. Signal handlers run on Python's main thread; and while this
        // one made a thread state, a fork could leave the child CPython's lock of them locked for ever.
        return Ok(());
    }
    attach(|py| py.check_signals().map_err(from_pyerr))
}

/// Whether an exception stops the program: not an `Exception`.
fn is_interrupt(error: &Error) -> bool {
    let Some(raised) = foreign_exception(error) else { return false };
    let stops = try_attach(|py| {
        raised.is_instance_of::<PyKeyboardInterrupt>(py)
            || !raised.is_instance_of::<PyException>(py)
    });
    stops.unwrap_or(false)
}

fn annotate(error: &Error, note: &str) {
    if let Some(raised) = foreign_exception(error) {
        try_attach(|py| add_text(raised.value(py), note));
    }
}

/// Tells the layer what Python knows. Called once, at import.
pub(crate) fn init() {
    pipeline::set_host(Host { site, without_lock, interrupted, is_interrupt, annotate });
}
