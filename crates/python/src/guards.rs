//! `include_keys` and `exclude_keys`: local key sets that follow Python's own context.
//!
//! Every context manager of keyfold that has local keys is a guard or extends one in Rust: between
//! the last instruction of an `__enter__` written in Python and the `with` block's first, a signal
//! handler may raise (Ctrl-C), and the block would stay open for ever.
//!
//! The open guards live in one context variable, as an immutable list, so that
//! an asyncio task or a copied context sees what was open where it began and
//! nobody else's. Calls look at it once any guard was ever opened; before that
//! they pay one load.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfold_core::{Error, ErrorKind};
use keyfold_dispatch::{DispatchKeySet, LocalData};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::to_pyerr;
use crate::keys::{keyset_from_all, removed_from_all};

/// Whether any guard was ever opened in this process.
static USED: AtomicBool = AtomicBool::new(false);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

#[derive(Clone)]
struct Open {
    id: u64,
    include: DispatchKeySet,
    exclude: DispatchKeySet,
    /// Keys that guards further out exclude and this one doesn't.
    restore: DispatchKeySet,
    data: Option<LocalData>,
}

/// The guards open in a context, and what they amount to.
#[pyclass(name = "_LocalKeys", module = "keyfold._core", frozen)]
struct PyLocalKeys {
    open: Vec<Open>,
    include: DispatchKeySet,
    exclude: DispatchKeySet,
    /// What the open guards carry, outermost first.
    data: Vec<LocalData>,
}

fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    let variable = VARIABLE.get_or_try_init(py, || {
        let empty = PyLocalKeys {
            open: Vec::new(),
            include: DispatchKeySet::EMPTY,
            exclude: DispatchKeySet::EMPTY,
            data: Vec::new(),
        };
        let options = PyDict::new(py);
        options.set_item("default", Bound::new(py, empty)?)?;
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
    if status < 0 {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a new reference from the call above.
    let value = unsafe { Bound::from_owned_ptr_or_err(py, value) }?;
    // Anybody can find the variable in a copied context and set it.
    Ok(value.cast_into::<PyLocalKeys>()?)
}

#[cfg(feature = "abi3")]
fn current(py: Python<'_>) -> PyResult<Bound<'_, PyLocalKeys>> {
    Ok(variable(py)?.call_method0("get")?.cast_into::<PyLocalKeys>()?)
}

fn set(py: Python<'_>, open: Vec<Open>) -> PyResult<()> {
    let include = open.iter().fold(DispatchKeySet::EMPTY, |set, guard| set | guard.include);
    let exclude =
        open.iter().fold(DispatchKeySet::EMPTY, |set, guard| (set - guard.restore) | guard.exclude);
    let data = open.iter().filter_map(|guard| guard.data.clone()).collect();
    let value = Bound::new(py, PyLocalKeys { open, include, exclude, data })?;
    variable(py)?.call_method1("set", (value,))?;
    Ok(())
}

/// Whether any guard was ever opened in this process: before that, nobody need look.
#[inline(always)]
pub(crate) fn in_use() -> bool {
    USED.load(Ordering::Relaxed)
}

/// What applies in the running context: key sets, and what the layers that they switch on know.
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

/// A context manager that includes or excludes keys for the calls inside its block.
///
/// Made by `include_keys` and `exclude_keys`. It may be entered again, also while it is open.
#[pyclass(name = "KeyGuard", module = "keyfold", frozen, subclass)]
pub(crate) struct PyGuard {
    include: DispatchKeySet,
    exclude: DispatchKeySet,
    restore: DispatchKeySet,
    /// What the layer at these keys has to know, if this switches one on.
    data: Option<LocalData>,
    /// What errors call it, where it isn't one of the two functions'.
    name: Option<Cow<'static, str>>,
    entered: Mutex<Vec<u64>>,
}

impl PyGuard {
    /// A guard that switches a layer on and tells it what it has to know.
    pub(crate) fn layer(include: DispatchKeySet, data: LocalData) -> Self {
        PyGuard { include, data: Some(data), ..PyGuard::excluding(DispatchKeySet::EMPTY) }
    }

    /// A guard that takes keys away.
    pub(crate) fn excluding(exclude: DispatchKeySet) -> Self {
        let none = DispatchKeySet::EMPTY;
        let entered = Mutex::default();
        PyGuard { include: none, exclude, restore: none, data: None, name: None, entered }
    }

    /// The same guard with a name for errors.
    pub(crate) fn named(self, name: impl Into<Cow<'static, str>>) -> Self {
        PyGuard { name: Some(name.into()), ..self }
    }

    /// A guard that gives keys back which guards further out exclude.
    pub(crate) fn restoring(restore: DispatchKeySet) -> Self {
        PyGuard { restore, ..PyGuard::excluding(DispatchKeySet::EMPTY) }
    }

    fn entered(&self) -> MutexGuard<'_, Vec<u64>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is open, somewhere.
    pub(crate) fn is_open(&self) -> bool {
        !self.entered().is_empty()
    }

    /// Opens it in the running context.
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<()> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        USED.store(true, Ordering::Relaxed);
        let mut open = current(py)?.get().open.clone();
        open.push(Open {
            id,
            include: self.include,
            exclude: self.exclude,
            restore: self.restore,
            data: self.data.clone(),
        });
        set(py, open)?;
        self.entered().push(id);
        Ok(())
    }

    /// Closes it in the running context.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] if it isn't open here, or guards opened later are; those stay open.
    pub(crate) fn exit(&self, py: Python<'_>) -> PyResult<()> {
        // A copy: Python code may run below, and another thread may then want the lock.
        let entered = self.entered().clone();
        let mut open = current(py)?.get().open.clone();
        if entered.is_empty() {
            return Err(guard_error(py, format!("{self:?} was closed without being entered")));
        }
        // One object may be open in several threads and tasks: the last that is open here.
        let here = |id: u64| open.iter().position(|guard| guard.id == id);
        let Some((id, at)) = entered.iter().rev().find_map(|id| Some((*id, here(*id)?))) else {
            return Err(guard_error(
                py,
                format!(
                    "{self:?} was closed on another thread or in another context than it was \
                     entered in; close it where it was entered"
                ),
            ));
        };
        self.entered().retain(|other| *other != id);
        open.remove(at);
        let later = open.len() - at;
        set(py, open)?;
        if later > 0 {
            return Err(guard_error(
                py,
                format!(
                    "{self:?} was closed out of order: {later} entered after it still open; \
                     close guards in the reverse order of entering"
                ),
            ));
        }
        Ok(())
    }
}

#[pymethods]
impl PyGuard {
    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().enter(slf.py())?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.exit(py)
    }

    /// Whether it is open, somewhere.
    #[getter]
    fn is_entered(&self) -> bool {
        self.is_open()
    }

    fn __repr__(&self) -> String {
        format!("{self:?}")
    }
}

impl std::fmt::Debug for PyGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(name) = &self.name {
            return f.write_str(name);
        }
        let (name, set) = if self.exclude.is_empty() {
            ("include_keys", self.include)
        } else {
            ("exclude_keys", self.exclude)
        };
        let keys: Vec<_> = set.iter().map(|key| format!("{:?}", key.name())).collect();
        write!(f, "{name}({})", keys.join(", "))
    }
}

pub(crate) fn guard_error(py: Python<'_>, message: String) -> PyErr {
    to_pyerr(py, Error::new(ErrorKind::Guard, message))
}

/// Adds keys to every call made inside the `with` block, on this thread and in this context.
///
/// Args:
///     keys: keys, names and sets.
///
/// Raises:
///     keyfold.UnknownKey: a name that is no key.
///     keyfold.GuardError: closed out of order or elsewhere than entered.
#[pyfunction]
#[pyo3(signature = (*keys))]
pub(crate) fn include_keys(keys: &Bound<'_, PyTuple>) -> PyResult<PyGuard> {
    let include = keyset_from_all(keys)?;
    Ok(PyGuard { include, ..PyGuard::excluding(DispatchKeySet::EMPTY) })
}

/// Takes keys from every call made inside the `with` block. Exclusion beats inclusion.
///
/// Args:
///     keys: keys, names and sets. A narrowed name such as "AutogradCPU" takes its functionality away
///         and leaves the backend.
///
/// Raises:
///     keyfold.UnknownKey: a name that is no key.
///     keyfold.GuardError: closed out of order or elsewhere than entered.
#[pyfunction]
#[pyo3(signature = (*keys))]
pub(crate) fn exclude_keys(keys: &Bound<'_, PyTuple>) -> PyResult<PyGuard> {
    Ok(PyGuard::excluding(removed_from_all(keys)?))
}
