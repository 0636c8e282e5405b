//! `keyfold.ops.ns.name` and its overloads.

use std::sync::Arc;

use keyfold_core::ErrorKind;
use keyfold_dispatch::{DispatchKeySet, Kernel, Operator, RegistrationKey};
use keyfold_tensor::Value;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::call::context;
use crate::call::invoke::{Choose, Computed};
use crate::call::operator::{PyOperator, object_of};
use crate::call::pykernel::PyKernel;
use crate::marshal::errors::{error, from_pyerr};
use crate::marshal::keys::{keyset_from, registration_key_from};

/// The object that a person sees for a kernel: the registered function itself, or a description.
pub(crate) fn kernel_object(
    py: Python<'_>,
    operator: &Arc<Operator<Value>>,
    key: RegistrationKey,
    kernel: &Arc<Kernel<Value>>,
) -> PyResult<Py<PyAny>> {
    if let Some(payload) = kernel.payload() {
        if let Some(python) = payload.downcast_ref::<PyKernel>() {
            return Ok(python.function.clone_ref(py));
        }
        if let Some(object) = payload.downcast_ref::<Py<PyAny>>() {
            return Ok(object.clone_ref(py));
        }
    }
    if kernel.is_fallthrough() {
        return Ok(py.import("keyfold._core")?.getattr("fallthrough")?.unbind());
    }
    let handle = PyKernelHandle::new(Arc::clone(operator), key, Arc::clone(kernel));
    Ok(Bound::new(py, handle)?.into_any().unbind())
}

#[pymethods]
impl PyOperator {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.call_with(args, kwargs, &Computed)
    }

    /// The full name: `ns::name`, or `ns::name.overload`.
    #[getter]
    fn name(&self) -> &str {
        self.operator.name()
    }

    /// The overload's name; `"default"` where it has none.
    #[getter]
    fn overload(&self) -> &str {
        match self.operator.schema().name.overload.as_str() {
            "" => "default",
            name => name,
        }
    }

    /// The names of the tags that it was defined with.
    #[getter]
    fn tags(&self) -> Vec<&'static str> {
        self.operator.tags().names().collect()
    }

    /// The schema: a text that knows what it says.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let class = py.import("keyfold._schema")?.getattr("Schema")?;
        class.call1((self.operator.schema().to_string(),))
    }

    /// The active kernels: from the name of the key that each was registered at to the function.
    #[getter]
    fn kernels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (key, kernel) in self.operator.kernels() {
            let object = kernel_object(py, &self.operator, key, &kernel)?;
            all.set_item(key.to_string(), object)?;
        }
        Ok(all)
    }

    /// Where the kernels come from, key by key: the active one first, then what it shadows.
    #[getter]
    fn shadow_stacks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (key, _) in self.operator.kernels() {
            let stack = self.operator.shadow_stack(key);
            let texts: Vec<_> = stack.iter().map(|k| k.provenance().to_string()).collect();
            all.set_item(key.to_string(), texts)?;
        }
        Ok(all)
    }

    /// The names of the keys where a fallthrough is registered.
    #[getter]
    fn fallthrough(&self) -> Vec<String> {
        let kernels = self.operator.kernels().into_iter();
        kernels.filter(|(_, k)| k.is_fallthrough()).map(|(key, _)| key.to_string()).collect()
    }

    // `redispatch` is in `method_defs`.

    /// Runs the kernel at one key, whatever the arguments' keys are.
    ///
    /// Args:
    ///     key: the key, such as `"CPU"` or `"AutogradCUDA"`; it need not be among the arguments'.
    ///     args: the operator's arguments.
    ///     keyset: what a kernel that asks for the key set gets; the computed set by default.
    ///     kwargs: the operator's keyword arguments.
    #[pyo3(signature = (key, /, *args, keyset=None, **kwargs))]
    pub(crate) fn call_direct<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        keyset: Option<&Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let key = registration_key_from(key)?;
        let keyset = keyset.map(keyset_from).transpose()?;
        self.call_with(args, kwargs, &Direct { key, keyset })
    }

    /// Whether the operator's table has a kernel for a key: the computed entry.
    fn has_kernel(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.operator.has_kernel(registration_key_from(key)?))
    }

    /// The computed table: from a runtime key's name to its entry. Keys with nothing are absent.
    ///
    /// Args:
    ///     fallbacks: whether entries from the keys' fallbacks are shown, too.
    #[pyo3(signature = (*, fallbacks=false))]
    fn table<'py>(&self, py: Python<'py>, fallbacks: bool) -> PyResult<Bound<'py, PyAny>> {
        let rows = PyDict::new(py);
        for entry in self.operator.entries(fallbacks) {
            let kernel = kernel_object(py, &self.operator, entry.registered_at, &entry.kernel)?;
            let row = PyTableEntry {
                key: entry.runtime_key.clone(),
                kernel,
                registered_at: entry.registered_at.to_string(),
                rule: entry.rule.to_string(),
                origin: entry.kernel.provenance().to_string(),
                name: entry.kernel.provenance().name.clone(),
                source: entry.kernel.provenance().source(),
                functionality: entry.functionality.map(|key| key.to_string()),
                backend: entry.backend.to_string(),
                shadows: entry
                    .losers
                    .iter()
                    .map(|(at, rule, kernel)| format!("{} at {at} ({rule})", kernel.provenance()))
                    .collect(),
            };
            rows.set_item(entry.runtime_key, Bound::new(py, row)?)?;
        }
        let class = py.import("keyfold._inspect")?.getattr("OperatorTable")?;
        class.call1((self.operator.name(), rows))
    }

    /// Whether the operator was removed.
    #[getter]
    fn removed(&self) -> bool {
        self.operator.is_removed()
    }

    fn __repr__(&self) -> String {
        let state = if self.operator.is_removed() { ", removed" } else { "" };
        let count = self.operator.kernel_count();
        format!("<Operator {} ({count} kernels{state})>", self.operator.schema())
    }
}

/// The set that a call with such arguments would start from, in Python's context.
fn computed_set(
    operator: &PyOperator,
    tag: keyfold_dispatch::Tag,
) -> keyfold_core::Result<DispatchKeySet> {
    // SAFETY: calls hold the GIL.
    let py = unsafe { Python::assume_attached() };
    let keyset = || operator.operator.keyset_of(tag.keys());
    Ok(match context::ambient(py).map_err(from_pyerr)? {
        Some(context) => context.apply(keyset),
        None => keyset(),
    })
}

/// `call_direct`: one key's kernel.
#[derive(Clone, Copy)]
struct Direct {
    key: RegistrationKey,
    keyset: Option<DispatchKeySet>,
}

impl Choose for Direct {
    const CHECKS_DEVICES: bool = false;

    fn choose<R>(
        &self,
        operator: &PyOperator,
        tag: keyfold_dispatch::Tag,
        call: impl FnOnce(
            &keyfold_dispatch::CallContext<'_, Value>,
            &Kernel<Value>,
        ) -> keyfold_core::Result<R>,
    ) -> keyfold_core::Result<R> {
        let keyset = match self.keyset {
            Some(keyset) => keyset,
            None => computed_set(operator, tag)?,
        };
        operator.operator.call_direct_with(self.key, keyset, call)
    }
}

/// One row of an operator's table.
#[pyclass(name = "TableEntry", module = "keyfold", frozen, get_all)]
pub(crate) struct PyTableEntry {
    /// The runtime key's name.
    key: String,
    /// The kernel: the function that was registered.
    kernel: Py<PyAny>,
    /// The name of the key that it was registered at.
    registered_at: String,
    /// By which rule it is there.
    rule: String,
    /// The kernel's name, language, file and line; `built in` for keyfold's own.
    origin: String,
    /// The kernel's name, as its author reads it.
    name: String,
    /// The file and line that registered it, or `built in`.
    source: String,
    /// The key's functionality, such as `Autograd`; None for a backend's own key.
    functionality: Option<String>,
    /// The key's backend.
    backend: String,
    /// The registrations that lost to it here.
    shadows: Vec<String>,
}

#[pymethods]
impl PyTableEntry {
    fn __repr__(&self) -> String {
        let (key, at) = (&self.key, &self.registered_at);
        format!("<TableEntry {key}: {}, registered at {at} ({})>", self.origin, self.rule)
    }
}

/// A kernel of an operator, callable with the operator's arguments.
///
/// It stands for that very kernel: once the kernel or its operator is removed, calling it is an
/// `OperatorRemoved`.
#[pyclass(name = "KernelHandle", module = "keyfold", frozen)]
pub(crate) struct PyKernelHandle {
    operator: Arc<Operator<Value>>,
    key: RegistrationKey,
    kernel: Arc<Kernel<Value>>,
}

impl PyKernelHandle {
    pub(crate) fn new(
        operator: Arc<Operator<Value>>,
        key: RegistrationKey,
        kernel: Arc<Kernel<Value>>,
    ) -> Self {
        PyKernelHandle { operator, key, kernel }
    }
}

/// The kernel of a handle, run at its key.
#[derive(Clone, Copy)]
struct Held<'k>(&'k PyKernelHandle);

impl Choose for Held<'_> {
    const CHECKS_DEVICES: bool = false;

    fn choose<R>(
        &self,
        operator: &PyOperator,
        tag: keyfold_dispatch::Tag,
        call: impl FnOnce(
            &keyfold_dispatch::CallContext<'_, Value>,
            &Kernel<Value>,
        ) -> keyfold_core::Result<R>,
    ) -> keyfold_core::Result<R> {
        let keyset = computed_set(operator, tag)?;
        let key = match self.0.key {
            RegistrationKey::Key(key) => Some(key),
            RegistrationKey::Narrow { functionality, .. } => Some(functionality),
            _ => keyset.backend(),
        };
        let key = key.unwrap_or(keyfold_dispatch::DispatchKey::CPU);
        operator.operator.run_kernel_with(&self.0.kernel, keyset, key, call)
    }
}

#[pymethods]
impl PyKernelHandle {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let operator = object_of(args.py(), &self.operator)?;
        operator.get().call_with(args, kwargs, &Held(self))
    }

    /// The operator's full name.
    #[getter]
    fn operator(&self) -> &str {
        self.operator.name()
    }

    /// The name of the key.
    #[getter]
    fn key(&self) -> String {
        self.key.to_string()
    }

    /// The kernel's name, language, file and line; `built in` for keyfold's own.
    #[getter]
    fn origin(&self) -> String {
        self.kernel.provenance().to_string()
    }

    /// The registered function; the handle itself for a native kernel.
    #[getter]
    fn function(slf: Bound<'_, Self>) -> Py<PyAny> {
        let payload = slf.get().kernel.payload();
        match payload.and_then(|payload| payload.downcast_ref::<PyKernel>()) {
            Some(python) => python.function.clone_ref(slf.py()),
            None => slf.into_any().unbind(),
        }
    }

    fn __repr__(&self) -> String {
        let state = if self.kernel.is_removed() { ", removed" } else { "" };
        let origin = self.kernel.provenance();
        format!("<Kernel of {} at {}: {origin}{state}>", self.operator.name(), self.key)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyKernelHandle>().is_ok_and(|o| Arc::ptr_eq(&o.get().kernel, &self.kernel))
    }

    fn __hash__(&self) -> usize {
        Arc::as_ptr(&self.kernel) as usize
    }
}

/// The kernel in an operator's table at a key.
pub(crate) fn get_kernel(
    py: Python<'_>,
    operator: &Arc<Operator<Value>>,
    key: RegistrationKey,
) -> PyResult<PyKernelHandle> {
    if operator.is_removed() {
        let message = format!("{} was removed; define it again and fetch it anew", operator.name());
        return Err(error(py, ErrorKind::OperatorRemoved, message));
    }
    match operator.kernel_at(key) {
        Some(kernel) => Ok(PyKernelHandle::new(Arc::clone(operator), key, kernel)),
        None => {
            let known: Vec<_> = operator.kernels().iter().map(|(k, _)| k.to_string()).collect();
            let message = format!(
                "{}: no kernel registered for {key}; kernels are registered at: {}; to add one: {}",
                operator.name(),
                if known.is_empty() { "nothing".to_owned() } else { known.join(", ") },
                operator.registration_line(&key.to_string())
            );
            Err(error(py, ErrorKind::MissingKernel, message))
        }
    }
}

/// Calls the kernel of a handle.
pub(crate) fn call_kernel<'py>(
    py: Python<'py>,
    handle: &PyKernelHandle,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    object_of(py, &handle.operator)?.get().call_with(args, kwargs, &Held(handle))
}
