//! `keyfold.Dispatcher`: operators, kernels and calls by name.

use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{DefineOptions, Dispatcher, Kernel, Override, RegistrationKey, Stage, Tags};
use keyfold_tensor::Value;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::call::current::new_isolated;
use crate::call::invoke::Redispatch;
use crate::call::operator::PyOperator;
use crate::call::pykernel;
use crate::call::signature::Style;
use crate::classes::function;
use crate::classes::handle::PyHandle;
use crate::classes::nativekernel;
use crate::classes::operator::{self, PyKernelHandle};
use crate::classes::packet::{self, PyPacket};
use crate::marshal::argument::{Text, wrong_value};
use crate::marshal::errors::IntoPyResult;
use crate::marshal::keys::{keyset_from, registration_key_from};

/// Operators, their kernels, and the keys' fallbacks.
///
/// `keyfold.Dispatcher()` is an isolated one: nothing registered there is seen elsewhere, and its
/// operators need no namespace; `Dispatcher(layers=True)` has the layers (Autograd, Vmap, ...), which
/// are left out else. The functions of the `keyfold` module use the process's own.
#[pyclass(name = "Dispatcher", module = "keyfold", frozen, weakref)]
pub(crate) struct PyDispatcher {
    pub(crate) dispatcher: Dispatcher<Value>,
    /// The namespaces, made when first asked for. They hold a dispatcher object of their own
    /// without namespaces, so that the two don't keep each other alive.
    ops: PyOnceLock<Py<PyAny>>,
}

impl PyDispatcher {
    fn over(dispatcher: Dispatcher<Value>) -> Self {
        PyDispatcher { dispatcher, ops: PyOnceLock::new() }
    }

    pub(crate) fn handle(
        &self,
        py: Python<'_>,
        handle: keyfold_dispatch::Handle<Value>,
    ) -> PyHandle {
        PyHandle::new(handle, self.ops.get(py).map(|ops| ops.clone_ref(py)))
    }

    /// A name of a packet or an overload as the operator object it means.
    pub(crate) fn find<'py>(&self, given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyOperator>> {
        packet::operator_from(&self.dispatcher, given)
    }
}

/// The process's own dispatcher.
#[pyfunction]
pub(crate) fn _default_dispatcher() -> PyDispatcher {
    PyDispatcher::over(keyfold::dispatcher().clone())
}

/// The mark of a mode that has nothing to do for an operator: calls pass the key by.
///
/// Registered like a kernel, `impl(op, key, fallthrough)`, or by calling it: `fallthrough(op, key)`.
#[pyclass(name = "Fallthrough", module = "keyfold", frozen)]
pub(crate) struct PyFallthrough;

#[pymethods]
impl PyFallthrough {
    /// Registers the mark at an operator's key and returns the handle.
    fn __call__(
        slf: Bound<'_, Self>,
        op: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<PyHandle> {
        let default = slf.py().import("keyfold._default")?.getattr("dispatcher")?;
        let default = default.cast::<PyDispatcher>()?;
        default.get().implement(slf.py(), op, key, slf.as_any(), false, Text::new("error"))
    }

    fn __repr__(&self) -> &'static str {
        "keyfold.fallthrough"
    }

    fn __reduce__(&self) -> &'static str {
        "fallthrough"
    }
}

/// A kernel that a library collected: name, function, key, whether it takes the key set, override.
type StagedKernel<'py> = (Text, Bound<'py, PyAny>, Bound<'py, PyAny>, bool, Text);

/// A kernel from whatever a user registers.
fn kernel_from(function: &Bound<'_, PyAny>, style: Style) -> PyResult<Kernel<Value>> {
    if function.is_instance_of::<PyFallthrough>() {
        return Ok(Kernel::fallthrough());
    }
    if let Some(native) = nativekernel::native_from(function)? {
        return Ok(native);
    }
    pykernel::make(function, style)
}

fn style(with_keyset: bool) -> Style {
    if with_keyset { Style::WithKeySet } else { Style::Plain }
}

#[pymethods]
impl PyDispatcher {
    #[new]
    #[pyo3(signature = (*, layers=false))]
    fn new(py: Python<'_>, layers: bool) -> PyResult<Self> {
        let dispatcher = new_isolated();
        if layers {
            keyfold_layers::register(&dispatcher).py(py)?;
        }
        Ok(PyDispatcher::over(dispatcher))
    }

    /// The operators by namespace: `dispatcher.ops.ns.name.overload`.
    #[getter]
    fn ops<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ops = self.ops.get_or_try_init(py, || {
            let inner = Bound::new(py, PyDispatcher::over(self.dispatcher.clone()))?;
            let class = py.import("keyfold._ops")?.getattr("Ops")?;
            Ok::<_, PyErr>(class.call1((inner,))?.unbind())
        })?;
        Ok(ops.bind(py).clone())
    }

    /// Defines an operator.
    ///
    /// Args:
    ///     schema: `ns::name.overload(Tensor x, float k=2.0) -> Tensor`.
    ///     mixed_devices: whether its arguments may live on different devices.
    ///     mixed_arrays: whether its arguments may be arrays of different libraries.
    ///     tags: names of tags: "nondeterministic_seeded", "data_dependent_shape".
    ///
    /// Returns:
    ///     A handle. The same schema again gives another one; the operator goes with the last.
    ///
    /// Raises:
    ///     keyfold.SchemaError: the text doesn't parse; a caret shows where.
    ///     keyfold.RegistrationError: the name is defined differently.
    ///     keyfold.InvalidValue: a tag that there isn't.
    #[pyo3(signature = (schema, *, mixed_devices=false, mixed_arrays=false, tags=None))]
    fn define(
        &self,
        py: Python<'_>,
        schema: Text,
        mixed_devices: bool,
        mixed_arrays: bool,
        tags: Option<Vec<Text>>,
    ) -> PyResult<PyHandle> {
        let schema = Schema::parse(&schema).py(py)?;
        let tags = tags_from(&tags.unwrap_or_default()).py(py)?;
        let options = DefineOptions { mixed_devices, mixed_arrays, tags };
        let handle = self.dispatcher.define_with(schema, options).py(py)?;
        Ok(self.handle(py, handle))
    }

    /// Registers a kernel at an operator's key.
    #[pyo3(name = "_implement", signature = (op, key, function, with_keyset, r#override))]
    fn implement(
        &self,
        py: Python<'_>,
        op: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        function: &Bound<'_, PyAny>,
        with_keyset: bool,
        r#override: Text,
    ) -> PyResult<PyHandle> {
        let key = registration_key_from(key)?;
        let mode = r#override.parse::<Override>().py(py)?;
        let kernel = kernel_from(function, style(with_keyset))?;
        let done = if op.is_instance_of::<PyString>() {
            self.dispatcher.implement(&op.extract::<Text>()?, key, kernel, mode)
        } else {
            let operator = self.find(op)?;
            let operator = operator.get().operator.clone();
            self.dispatcher.register_with(&operator, key, kernel, mode)
        };
        Ok(self.handle(py, done.py(py)?))
    }

    /// Registers a kernel, and defines `name(Tensor[] inputs) -> Tensor` if there is no such operator.
    #[pyo3(signature = (name, key, kernel))]
    fn register(
        &self,
        py: Python<'_>,
        name: Text,
        key: &Bound<'_, PyAny>,
        kernel: &Bound<'_, PyAny>,
    ) -> PyResult<PyHandle> {
        let key = registration_key_from(key)?;
        let kernel = kernel_from(kernel, Style::Plain)?;
        let handle = self.dispatcher.register(&name, key, kernel).py(py)?;
        Ok(self.handle(py, handle))
    }

    /// Registers `fn(op, keyset, args, kwargs)` as the kernel of every operator at a key.
    #[pyo3(
        signature = (key, r#fn, *, r#override=Text::new("error")),
        text_signature = "($self, key, fn, *, override=\"error\")"
    )]
    fn fallback(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        r#fn: &Bound<'_, PyAny>,
        r#override: Text,
    ) -> PyResult<PyHandle> {
        let key = registration_key_from(key)?;
        let mode = r#override.parse::<Override>().py(py)?;
        let kernel = kernel_from(r#fn, Style::Fallback)?;
        let handle = self.dispatcher.fallback(key, kernel, mode).py(py)?;
        Ok(self.handle(py, handle))
    }

    /// Registers staged definitions and kernels: all of them or none.
    #[pyo3(name = "_commit")]
    fn commit(
        &self,
        py: Python<'_>,
        definitions: Vec<(Text, bool, bool, Vec<Text>)>,
        kernels: Vec<StagedKernel<'_>>,
        into: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let mut stage = Stage::new(&self.dispatcher);
        for (schema, mixed_devices, mixed_arrays, tags) in definitions {
            let tags = tags_from(&tags).py(py)?;
            let options = DefineOptions { mixed_devices, mixed_arrays, tags };
            stage.define(Schema::parse(&schema).py(py)?, options);
        }
        for (name, function, key, with_keyset, mode) in kernels {
            let key: RegistrationKey = registration_key_from(&key)?;
            let kernel = kernel_from(&function, style(with_keyset))?;
            stage.implement(String::from(name), key, kernel, mode.parse::<Override>().py(py)?);
        }
        let handles = stage.commit().py(py)?;
        handles.into_iter().try_for_each(|handle| into.append(self.handle(py, handle)))
    }

    /// Calls an operator by name.
    #[pyo3(signature = (op, /, *args, **kwargs))]
    fn call<'py>(
        &self,
        op: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if op.is_instance_of::<PyOperator>() || op.is_instance_of::<PyPacket>() {
            return op.call(args, kwargs);
        }
        let (operator, args, kwargs) = function::resolved(&self.dispatcher, op, args, kwargs)?;
        operator.call(args, kwargs.as_ref())
    }

    /// Calls an operator with this key set, taken as given.
    #[pyo3(signature = (op, keyset, /, *args, **kwargs))]
    fn redispatch<'py>(
        &self,
        op: &Bound<'py, PyAny>,
        keyset: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (operator, args, kwargs) = function::resolved(&self.dispatcher, op, args, kwargs)?;
        operator.get().call_with(&args, kwargs.as_ref(), &Redispatch(keyset_from(keyset)?))
    }

    /// Runs the kernel at one key, whatever the arguments' keys are.
    #[pyo3(signature = (op, key, /, *args, keyset=None, **kwargs))]
    fn call_direct<'py>(
        &self,
        op: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        keyset: Option<&Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (operator, args, kwargs) = function::resolved(&self.dispatcher, op, args, kwargs)?;
        operator.get().call_direct(key, &args, keyset, kwargs.as_ref())
    }

    /// Says what a call would do, without running anything.
    #[pyo3(signature = (op, /, *args, **kwargs))]
    fn explain<'py>(
        &self,
        op: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (operator, args, kwargs) = function::resolved(&self.dispatcher, op, args, kwargs)?;
        crate::classes::explain::explain(&operator, &args, kwargs.as_ref())
    }

    /// The operator object of a full name.
    ///
    /// Raises:
    ///     keyfold.UnknownOperator: there is none; the nearest names are offered.
    fn get_op<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyOperator>> {
        self.find(name)
    }

    /// The kernel in an operator's table at a key, callable with the operator's arguments.
    ///
    /// Raises:
    ///     keyfold.MissingKernel: the table has none there.
    fn get_kernel(
        &self,
        op: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<PyKernelHandle> {
        let operator = self.find(op)?;
        let key = registration_key_from(key)?;
        operator::get_kernel(op.py(), &operator.get().operator, key)
    }

    /// Remove every operator, kernel and fallback of an isolated dispatcher.
    ///
    /// A kernel that uses its own dispatcher keeps it alive, which Python's garbage collector can't
    /// see: close a dispatcher that is no longer needed, or use it in a `with` block.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.dispatcher.takes_plain_names() {
            return Err(wrong_value("the process's own dispatcher can't be closed"));
        }
        self.dispatcher.clear();
        if let Some(ops) = self.ops.get(py) {
            ops.bind(py).call_method0("_forget_all")?;
        }
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    /// Whether an operator's table has a kernel for a key; False for an unknown operator.
    fn has_kernel(&self, op: &Bound<'_, PyAny>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = registration_key_from(key)?;
        match op.extract::<String>() {
            Ok(name) => Ok(self.dispatcher.has_kernel(&name, key)),
            Err(_) => Ok(self.find(op)?.get().operator.has_kernel(key)),
        }
    }

    /// How many kernels are registered, fallbacks included, shadowed ones not.
    fn kernel_count(&self) -> usize {
        self.dispatcher.kernel_count()
    }

    /// The full names of all operators, sorted.
    fn operator_names(&self) -> Vec<String> {
        self.dispatcher.operators().iter().map(|o| o.name().to_owned()).collect()
    }

    /// The packet of a qualified name; None where nothing is defined.
    #[pyo3(name = "_packet")]
    fn packet(&self, py: Python<'_>, qualified: Text) -> PyResult<Option<PyPacket>> {
        if self.dispatcher.overloads(&qualified).is_empty() {
            return Ok(None);
        }
        PyPacket::new(py, &self.dispatcher, &qualified).map(Some)
    }

    fn __repr__(&self) -> String {
        format!("<{:?}>", self.dispatcher)
    }
}

/// The tags of these names.
fn tags_from(names: &[Text]) -> keyfold_core::Result<Tags> {
    Tags::from_names(names.iter().map(|name| &**name)).map_err(|error| error.at("argument 'tags'"))
}
