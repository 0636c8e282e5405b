//! Backends that are written in Python: an object whose methods compute on arrays.

pub(crate) mod fallback;
mod kernels;
mod memory;
mod object;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use keyfold_backend::{
    GpuBackend, Group, Groups, Index, Linalg, Pointwise, Random, Reduce, Registration, Rows, Scan,
    backends,
};
use keyfold_core::DeviceType;
use keyfold_tensor::device::Memory;
use keyfold_tensor::dlpack::extension_number;
use pyo3::prelude::*;

use self::kernels::Kernels;
use self::memory::PyMemory;
use self::object::Object;
use crate::marshal::argument::Text;
use crate::marshal::dtype::PyDevice;
use crate::marshal::errors::{IntoPyResult, to_pyerr};
use crate::marshal::keys::key_object;

/// A Python object as a backend.
struct PyBackend {
    object: Arc<Object>,
    memory: PyMemory,
    kernels: Kernels,
}

impl fmt::Debug for PyBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PyBackend('{}')", self.object.name)
    }
}

impl PyBackend {
    fn new(kind: DeviceType, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let object = Arc::new(Object::new(object)?);
        let memory = PyMemory::new(kind, Arc::clone(&object));
        let kernels = Kernels::new(Arc::clone(&object));
        Ok(PyBackend { object, memory, kernels })
    }
}

impl GpuBackend for PyBackend {
    fn name(&self) -> &str {
        &self.object.name
    }

    fn memory(&self) -> Arc<dyn Memory> {
        Arc::new(self.memory.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        self.object.has("pointwise").then_some(Pointwise::Primitives(&self.kernels))
    }

    fn reduce(&self) -> Option<&dyn Reduce> {
        self.object.has("reduce").then_some(&self.kernels as &dyn Reduce)
    }

    fn rows(&self) -> Option<&dyn Rows> {
        self.object.has("rows").then_some(&self.kernels as &dyn Rows)
    }

    fn scan(&self) -> Option<&dyn Scan> {
        self.object.has("scan").then_some(&self.kernels as &dyn Scan)
    }

    fn linalg(&self) -> Option<&dyn Linalg> {
        self.object.has("matmul").then_some(&self.kernels as &dyn Linalg)
    }

    fn index(&self) -> Option<&dyn Index> {
        let has = self.object.has("index") || self.object.has("positions");
        has.then_some(&self.kernels as &dyn Index)
    }

    fn random(&self) -> Option<&dyn Random> {
        self.object.has("random").then_some(&self.kernels as &dyn Random)
    }

    fn groups(&self) -> Groups<'_> {
        Groups::of(&self.kernels, |group| self.object.has(group.name()))
    }
}

/// A backend that was registered. Only `remove()` takes it back.
#[pyclass(name = "BackendHandle", module = "keyfold", frozen, weakref)]
pub(crate) struct PyBackendHandle {
    registration: Registration,
    backend: Py<PyAny>,
}

#[pymethods]
impl PyBackendHandle {
    /// Takes the backend back, with the kernels that operators have for it and its memory.
    ///
    /// Tensors on its devices stay valid: they can be copied to the CPU.
    ///
    /// Returns:
    ///     Whether it was there: not if it was removed before.
    fn remove(&self) -> bool {
        // With the GIL held, as for kernels: a fork can't come between.
        self.registration.remove().is_some()
    }

    /// The type of its devices, as their names begin.
    #[getter]
    fn device_type(&self) -> String {
        self.registration.device_type().name()
    }

    /// Its number among DLPack's extension devices, as in `kf.backends()`. It stays the name's own when the
    /// backend is removed.
    #[getter]
    fn dlpack_number(&self) -> Option<u8> {
        extension_number(self.registration.device_type())
    }

    /// The key at which operators have kernels for it.
    #[getter]
    fn key(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        key_object(
            py,
            keyfold_dispatch::DispatchKey::from_device_type(self.registration.device_type()),
        )
    }

    /// The object that was registered.
    #[getter]
    fn backend(&self, py: Python<'_>) -> Py<PyAny> {
        self.backend.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        format!("<backend of {}>", self.registration.device_type())
    }
}

/// Registers a backend: its key (the name in capitals), its narrowed keys, its device type, and the
/// object that computes on its devices.
///
/// Without an object the device type has a key and no memory: for kernels of your own that take arrays of
/// a class of your own (`register_array_type`).
///
/// The object's methods get NumPy arrays over the devices' memory, of any strides, which are theirs
/// until they return; inputs are read-only, `out` is to be written, and the method returns `None`.
/// `NotImplemented` says that these arguments can't be computed. All are optional: operators that need a
/// method that isn't there are an error that says so, and never run elsewhere.
///
/// - `pointwise(name, inputs, out)`: an elementwise primitive. Expressions and all elementwise operators are
///   run step by step by these: "cast", "iota", "gather", "add", "sub", "mul", "div", "neg", "abs",
///   "sqrt", "exp", "log", "sin", "cos", "floor", "equal", "less", "and", "or", "xor", "shift_left",
///   "shift_right", "where"
/// - `reduce(name, x, out, dims, keepdim)`: "sum", "mean", "max", "min", "argmax", "argmin", "all", "any"
/// - `rows(name, x, out, axis)`: "softmax", "log_softmax"
/// - `matmul(a, b, out)`: stacks of matrices
/// - `index(name, inputs, out, dims, at)`: "take", "put", "put_add", "gather", "scatter_add"
/// - `positions(mask)`: returns a tuple of int64 arrays, where the mask is true along each dimension
/// - `random(name, seed, offset, out)`: "uniform", "normal"; the numbers of Philox4x32-10
/// - `norm`, `linear`, `convolution`, `pool`, `attention`, `recurrent`, `optim`, `decomposition`,
///   `dropout`: each `(name, inputs, outputs, params)`, the fused steps of networks, optimizers and
///   linear algebra. `outputs` is a tuple of arrays; `params` is a dict of numbers, tuples and names
/// - `supports(method, name, inputs, output)`: whether a method takes these dtypes: True, False, or a
///   reason in words. `output` is a name, for the methods with several outputs a tuple of names
/// - `synchronize(index)`: waits for what the methods queued on a device. Memory is read, written and
///   copied after it
///
/// Its attributes: `name`, for messages, by default its class's; `device_count`, by default 1;
/// `memory_bytes`, how much a device has.
///
/// Args:
///     name: the device type's name, such as `"npu"`.
///     backend: the object.
///
/// Returns:
///     The key; with an object a `BackendHandle`, whose `remove()` takes the backend back.
///
/// Raises:
///     keyfold.UnknownKey: the name is taken or no identifier, or no place is left.
///     keyfold.RegistrationError: the device type has a backend, which the message names.
///     keyfold.InvalidValue: `device_count` or `memory_bytes` is out of range.
///     keyfold.BindingError: something that has to be a method isn't.
#[pyfunction]
#[pyo3(signature = (name, backend=None))]
pub(crate) fn register_backend<'py>(
    py: Python<'py>,
    name: Text,
    backend: Option<&Bound<'py, PyAny>>,
) -> PyResult<Py<PyAny>> {
    let Some(object) = backend else {
        return key_object(py, keyfold_dispatch::register_backend(&name).py(py)?);
    };
    // Before the key, which stays.
    Object::new(object)?;
    keyfold_dispatch::register_backend(&name).py(py)?;
    let kind = name.parse::<DeviceType>().py(py)?;
    let made = Arc::new(PyBackend::new(kind, object)?);
    let registration =
        keyfold_backend::register(kind, made).map_err(|refused| to_pyerr(py, refused.error))?;
    let handle = PyBackendHandle { registration, backend: object.clone().unbind() };
    Ok(Py::new(py, handle)?.into_any())
}

/// A backend's name, device type, devices, number of streams of a device, groups, and DLPack's number.
type Description = (String, String, Vec<PyDevice>, usize, Vec<String>, Option<u8>);

/// Each backend.
#[pyfunction]
pub(crate) fn _backends() -> Vec<Description> {
    let describe = |(kind, backend): (DeviceType, Arc<dyn GpuBackend>)| -> Description {
        let memory = backend.memory();
        let indices = (0..=u8::MAX).take(memory.device_count());
        let devices: Vec<_> = indices.map(|i| keyfold_core::Device::new(kind, i)).collect();
        let streams = devices.first().map_or(0, |device| memory.stream_count(*device));
        let has = |group: &Group| match group {
            Group::Pointwise => backend.pointwise().is_some(),
            Group::Reduce => backend.reduce().is_some(),
            Group::Rows => backend.rows().is_some(),
            Group::Scan => backend.scan().is_some(),
            Group::Linalg => backend.linalg().is_some(),
            Group::Index => backend.index().is_some(),
            Group::Random => backend.random().is_some(),
            other => backend.groups().has(*other),
        };
        let groups = Group::ALL.into_iter().filter(has).map(|group| group.name().to_owned());
        let devices = devices.into_iter().map(PyDevice).collect();
        let number = extension_number(kind);
        (backend.name().to_owned(), kind.name(), devices, streams, groups.collect(), number)
    };
    backends().into_iter().map(describe).collect()
}
