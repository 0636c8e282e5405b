//! Local key sets that follow Python's own context.
//!
//! The open guards live in one context variable, as an immutable list, so that
//! an asyncio task or a copied context sees what was open where it began and
//! nobody else's. Calls look at it once any guard was ever opened; before that
//! they pay one load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keyfold_dispatch::{DispatchKeySet, LocalData};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// Whether any guard was ever opened in this process.
static USED: AtomicBool = AtomicBool::new(false);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
/// No guards: the variable's default.
static NONE: PyOnceLock<Py<PyLocalKeys>> = PyOnceLock::new();

/// The changes of an open guard.
#[derive(Clone)]
pub(crate) struct Changes {
    pub(crate) include: DispatchKeySet,
    pub(crate) exclude: DispatchKeySet,
    /// Keys that guards further out exclude and this one doesn't.
    pub(crate) restore: DispatchKeySet,
    /// The local data for the layer at these keys, if the guard switches one on.
    pub(crate) data: Option<LocalData>,
}

#[derive(Clone)]
struct Open {
    id: u64,
    changes: Changes,
}

/// The guards open in a context, and what they amount to.
#[pyclass(name = "_LocalKeys", module = "keyfold._core", frozen)]
struct PyLocalKeys {
    open: Vec<Open>,
    include: DispatchKeySet,
    exclude: DispatchKeySet,
    /// The local data of the open guards, outermost first.
    data: Vec<LocalData>,
}

fn none(py: Python<'_>) -> PyResult<&Bound<'_, PyLocalKeys>> {
    let none = NONE.get_or_try_init(py, || {
        let (include, exclude) = (DispatchKeySet::EMPTY, DispatchKeySet::EMPTY);
        Py::new(py, PyLocalKeys { open: Vec::new(), include, exclude, data: Vec::new() })
    })?;
    Ok(none.bind(py))
}

fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    let variable = VARIABLE.get_or_try_init(py, || {
        let options = PyDict::new(py);
        options.set_item("default", none(py)?)?;
        let class = py.import("contextvars")?.getattr("ContextVar")?;
        Ok::<_, PyErr>(class.call(("keyfold_local_keys",), Some(&options))?.unbind())
    })?;
    Ok(variable.bind(py))
}

#[cfg(not(feature = "abi3"))]
fn current(py: Python<'_>) -> PyResult<Bound<'_, PyLocalKeys>> {
    let variable = variable(py)?;
    let mut value = std::ptr::null_mut();
    // SAFETY: `variable` is a ContextVar and `value` receives a new reference, or null where
    // there is neither a value nor a default.
    let status = unsafe {
        pyo3::ffi::PyContextVar_Get(variable.as_ptr(), std::ptr::null_mut(), &raw mut value)
    };
    if status < 0 || value.is_null() {
        return failed(py);
    }
    // SAFETY: a new reference from the call above.
    let value = unsafe { Bound::from_owned_ptr(py, value) };
    // Anybody can find the variable in a copied context and set it.
    value.cast_into::<PyLocalKeys>().or_else(not_ours)
}

// Errors are large: moving them about in `current` would cost every call some registers.
#[cfg(not(feature = "abi3"))]
#[cold]
#[inline(never)]
fn failed(py: Python<'_>) -> PyResult<Bound<'_, PyLocalKeys>> {
    Err(PyErr::fetch(py))
}

#[cfg(not(feature = "abi3"))]
#[cold]
#[inline(never)]
fn not_ours<'py>(error: pyo3::CastIntoError<'py>) -> PyResult<Bound<'py, PyLocalKeys>> {
    Err(error.into())
}

#[cfg(feature = "abi3")]
fn current(py: Python<'_>) -> PyResult<Bound<'_, PyLocalKeys>> {
    Ok(variable(py)?.call_method0("get")?.cast_into::<PyLocalKeys>()?)
}

fn set(py: Python<'_>, open: Vec<Open>) -> PyResult<()> {
    if open.is_empty() {
        return store(py, none(py)?);
    }
    let changes = || open.iter().map(|guard| &guard.changes);
    let include = changes().fold(DispatchKeySet::EMPTY, |set, guard| set | guard.include);
    let exclude =
        changes().fold(DispatchKeySet::EMPTY, |set, guard| (set - guard.restore) | guard.exclude);
    let data = changes().filter_map(|guard| guard.data.clone()).collect();
    store(py, &Bound::new(py, PyLocalKeys { open, include, exclude, data })?)
}

#[cfg(not(feature = "abi3"))]
fn store(py: Python<'_>, value: &Bound<'_, PyLocalKeys>) -> PyResult<()> {
    // SAFETY: a ContextVar and an object; returns a new reference, or null with an exception.
    let token = unsafe { pyo3::ffi::PyContextVar_Set(variable(py)?.as_ptr(), value.as_ptr()) };
    // SAFETY: as above.
    unsafe { Bound::from_owned_ptr_or_err(py, token) }.map(drop)
}

#[cfg(feature = "abi3")]
fn store(py: Python<'_>, value: &Bound<'_, PyLocalKeys>) -> PyResult<()> {
    variable(py)?.call_method1("set", (value,)).map(drop)
}

/// Opens a guard in the running context, and gives what names it there.
pub(crate) fn open(py: Python<'_>, changes: Changes) -> PyResult<u64> {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    USED.store(true, Ordering::Relaxed);
    let mut open = current(py)?.get().open.clone();
    open.push(Open { id, changes });
    set(py, open)?;
    Ok(id)
}

/// The last of these guards that is open in the running context.
pub(crate) fn last_open(py: Python<'_>, ids: &[u64]) -> PyResult<Option<u64>> {
    let current = current(py)?;
    let open = &current.get().open;
    Ok(ids.iter().rev().copied().find(|id| open.iter().any(|guard| guard.id == *id)))
}

/// Closes a guard in the running context, and gives how many are open there that were opened later.
pub(crate) fn close(py: Python<'_>, id: u64) -> PyResult<usize> {
    let mut open = current(py)?.get().open.clone();
    let Some(at) = open.iter().position(|guard| guard.id == id) else { return Ok(0) };
    open.remove(at);
    let later = open.len() - at;
    set(py, open)?;
    Ok(later)
}

/// Whether any guard was ever opened in this process: before that, nobody need look.
#[inline(always)]
pub(crate) fn in_use() -> bool {
    USED.load(Ordering::Relaxed)
}

/// The state of the running context: key sets, and the local data of the layers that they switch on.
pub(crate) struct Ambient<'py>(Bound<'py, PyLocalKeys>);

impl Ambient<'_> {
    /// Keys that calls gain.
    pub(crate) fn include(&self) -> DispatchKeySet {
        self.0.get().include
    }

    /// Keys that calls lose.
    pub(crate) fn exclude(&self) -> DispatchKeySet {
        self.0.get().exclude
    }

    /// Whether an open guard carries a `T`.
    pub(crate) fn carries<T: 'static>(&self) -> bool {
        self.0.get().data.iter().any(|data| data.is::<T>())
    }

    /// Runs `f` with the context applied to the thread, for native code that makes calls.
    pub(crate) fn apply<R>(&self, f: impl FnOnce() -> R) -> R {
        let keys = self.0.get();
        keyfold_dispatch::with_ambient(keys.include, keys.exclude, &keys.data, f)
    }
}

/// The running context; `None` while no guard was ever opened.
pub(crate) fn ambient(py: Python<'_>) -> PyResult<Option<Ambient<'_>>> {
    if !in_use() {
        return Ok(None);
    }
    Ok(Some(Ambient(current(py)?)))
}

/// Runs native code that makes calls with the running context applied to the thread.
pub(crate) fn in_context<R>(py: Python<'_>, f: impl FnOnce() -> R) -> PyResult<R> {
    Ok(match ambient(py)? {
        Some(context) => context.apply(f),
        None => f(),
    })
}
