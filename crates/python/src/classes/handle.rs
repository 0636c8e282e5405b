//! The handle that a registration returns, to take it back.

use std::sync::Arc;

use keyfold_dispatch::Handle;
use keyfold_tensor::Value;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::classes::operator::{self, PyKernelHandle};
use crate::marshal::errors::error;

/// A definition, kernel or fallback that was registered. Only `remove()` takes it back.
#[pyclass(name = "Handle", module = "keyfold", frozen, weakref)]
pub(crate) struct PyHandle {
    handle: Handle<Value>,
    /// The namespaces that cache what names mean.
    ops: Option<Py<PyAny>>,
}

impl PyHandle {
    pub(crate) fn new(handle: Handle<Value>, ops: Option<Py<PyAny>>) -> Self {
        PyHandle { handle, ops }
    }
}

#[pymethods]
impl PyHandle {
    /// Takes the registration back and restores what it shadowed.
    ///
    /// Calls that run the kernel go on. The kernel's objects are freed when the last of them ends, on that
    /// call's thread.
    ///
    /// Returns:
    ///     Whether there was something to take back: not if it was removed or replaced before.
    pub(crate) fn remove(&self, py: Python<'_>) -> PyResult<bool> {
        let operator = self.handle.operator();
        // With the GIL held: nothing needs it under the engine's locks, and a fork can't come
        // between, which would leave the child with locks that nobody opens.
        let done = self.handle.remove();
        if let (Some(ops), Some(operator), None) = (&self.ops, operator, self.handle.key())
            && operator.is_removed()
        {
            ops.bind(py).call_method1("_forget", (operator.schema().name.qualified(),))?;
        }
        Ok(done)
    }

    /// Whether the registration is still there (a shadowed kernel is).
    #[getter]
    fn active(&self) -> bool {
        self.handle.is_active()
    }

    /// The operator's full name, or `"fallback at KEY"`.
    #[getter]
    fn name(&self) -> &str {
        self.handle.name()
    }

    /// The name of the key; None for a definition.
    #[getter]
    fn key(&self) -> Option<String> {
        self.handle.key().map(|key| key.to_string())
    }

    /// Where the kernel came from; None for a definition or after removal.
    #[getter]
    fn origin(&self) -> Option<String> {
        self.handle.kernel().map(|kernel| kernel.provenance().to_string())
    }

    /// Calls the kernel that this one shadows.
    ///
    /// Raises:
    ///     keyfold.MissingKernel: it shadows none.
    #[pyo3(signature = (*args, **kwargs))]
    fn shadowed<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = args.py();
        let below = self.handle.operator().zip(self.handle.key()).zip(self.handle.shadowed());
        let Some(((operator, key), kernel)) = below else {
            let message = format!("{:?} shadows no kernel", self.handle);
            let kind = keyfold_core::ErrorKind::MissingKernel;
            return Err(error(py, kind, message));
        };
        let handle = PyKernelHandle::new(Arc::clone(&operator), key, kernel);
        operator::call_kernel(py, &handle, args, kwargs)
    }

    fn __repr__(&self) -> String {
        format!("<{:?}>", self.handle)
    }
}
