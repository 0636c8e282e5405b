//! `include_keys` and `exclude_keys`: context managers with local key sets (`call::context`).
//!
//! Every context manager of keyfold that has local keys is a guard or extends one in Rust: between
//! the last instruction of an `__enter__` written in Python and the `with` block's first, a signal
//! handler may raise (Ctrl-C), and the block would stay open for ever.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKeySet, LocalData};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::context::{self, Changes};
use crate::marshal::errors::{IntoPyResult, from_pyerr};
use crate::marshal::keys::{keyset_from_all, removed_from_all};

/// A context manager that includes or excludes keys for the calls inside its block.
///
/// Made by `include_keys` and `exclude_keys`. It may be entered again, also while it is open.
#[pyclass(name = "KeyGuard", module = "keyfold", frozen, subclass)]
pub(crate) struct PyGuard {
    changes: Changes,
    /// The guard's name in errors, where it isn't one of the two functions'.
    name: Option<Cow<'static, str>>,
    entered: Mutex<Vec<u64>>,
}

const NONE: Changes = Changes {
    include: DispatchKeySet::EMPTY,
    exclude: DispatchKeySet::EMPTY,
    restore: DispatchKeySet::EMPTY,
    data: None,
};

impl PyGuard {
    fn with(changes: Changes) -> Self {
        PyGuard { changes, name: None, entered: Mutex::default() }
    }

    /// A guard that switches a layer on and tells it what it has to know.
    pub(crate) fn layer(include: DispatchKeySet, data: LocalData) -> Self {
        PyGuard::with(Changes { include, data: Some(data), ..NONE })
    }

    /// A guard that takes keys away.
    pub(crate) fn excluding(exclude: DispatchKeySet) -> Self {
        PyGuard::with(Changes { exclude, ..NONE })
    }

    /// The same guard with a name for errors.
    pub(crate) fn named(self, name: impl Into<Cow<'static, str>>) -> Self {
        PyGuard { name: Some(name.into()), ..self }
    }

    /// A guard that gives keys back which guards further out exclude.
    pub(crate) fn restoring(restore: DispatchKeySet) -> Self {
        PyGuard::with(Changes { restore, ..NONE })
    }

    fn entered(&self) -> MutexGuard<'_, Vec<u64>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is open, somewhere.
    pub(crate) fn is_open(&self) -> bool {
        !self.entered().is_empty()
    }

    /// Whether it is open in the running context.
    pub(crate) fn is_open_here(&self, py: Python<'_>) -> PyResult<bool> {
        let entered = self.entered().clone();
        Ok(context::last_open(py, &entered)?.is_some())
    }

    /// Opens it in the running context.
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<()> {
        let id = context::open(py, self.changes.clone())?;
        self.entered().push(id);
        Ok(())
    }

    /// Closes it in the running context.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] if it isn't open here, or guards opened later are; those stay open.
    pub(crate) fn exit(&self, py: Python<'_>) -> Result<()> {
        // A copy: Python code may run below, and another thread may then want the lock.
        let entered = self.entered().clone();
        if entered.is_empty() {
            let message = format!("{self:?} was closed without being entered");
            return Err(Error::new(ErrorKind::Guard, message));
        }
        // One object may be open in several threads and tasks: the last that is open here.
        let Some(id) = context::last_open(py, &entered).map_err(from_pyerr)? else {
            return Err(Error::new(
                ErrorKind::Guard,
                format!(
                    "{self:?} was closed on another thread or in another context than it was \
                     entered in; close it where it was entered"
                ),
            ));
        };
        self.entered().retain(|other| *other != id);
        let later = context::close(py, id).map_err(from_pyerr)?;
        if later > 0 {
            return Err(Error::new(
                ErrorKind::Guard,
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
        self.exit(py).py(py)
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
        let (name, set) = match self.changes.exclude.is_empty() {
            true => ("include_keys", self.changes.include),
            false => ("exclude_keys", self.changes.exclude),
        };
        let keys: Vec<_> = set.iter().map(|key| format!("{:?}", key.name())).collect();
        write!(f, "{name}({})", keys.join(", "))
    }
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
    Ok(PyGuard::with(Changes { include, ..NONE }))
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
