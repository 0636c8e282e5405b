//! Dtypes and devices as Python objects.

use std::sync::atomic::{AtomicPtr, Ordering};

use keyfold_core::{DType, Device, ErrorKind};
use pyo3::exceptions::PyAttributeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyString, PyType};

use crate::marshal::errors::{IntoPyResult, error};

/// An element type. Compares equal to its name and to NumPy's dtype of the same elements.
#[pyclass(name = "DType", module = "keyfold", frozen)]
pub(crate) struct PyDType(pub(crate) DType);

/// The class's type object.
static CLASS: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());

impl PyDType {
    /// Whether an object is one.
    ///
    /// # Safety
    /// `object` is a live object.
    pub(crate) unsafe fn is_exact(object: *mut ffi::PyObject) -> bool {
        // SAFETY: as for the caller.
        unsafe { ffi::Py_TYPE(object) == CLASS.load(Ordering::Relaxed) }
    }
}

/// The one object of each dtype that keyfold hands out.
static OBJECTS: [PyOnceLock<Py<PyDType>>; DType::ALL.len()] =
    [const { PyOnceLock::new() }; DType::ALL.len()];

/// A dtype as its object, always the same one.
pub(crate) fn object(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyDType>> {
    let place = DType::ALL.iter().position(|known| *known == dtype).unwrap_or(0);
    let object = OBJECTS[place].get_or_try_init(py, || Py::new(py, PyDType(dtype)))?;
    Ok(object.bind(py).clone())
}

/// A `keyfold.DType` for each dtype there is, as attributes of the module.
pub(crate) fn add_dtypes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    CLASS.store(module.py().get_type::<PyDType>().as_type_ptr(), Ordering::Relaxed);
    for dtype in DType::ALL {
        module.add(dtype.name(), object(module.py(), dtype)?)?;
    }
    Ok(())
}

/// A dtype from a `DType`, a name, NumPy's dtypes and scalar types, or Python's number types.
pub(crate) fn dtype_from(given: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = given.py();
    if let Ok(dtype) = given.cast::<PyDType>() {
        return Ok(dtype.get().0);
    }
    if let Ok(name) = given.cast::<PyString>() {
        return name.to_string_lossy().parse::<DType>().py(py);
    }
    if let Ok(class) = given.cast::<PyType>() {
        let builtin = [
            (py.get_type::<PyBool>(), DType::Bool),
            (py.get_type::<PyInt>(), DType::I64),
            (py.get_type::<PyFloat>(), DType::F64),
            (py.get_type::<PyComplex>(), DType::C128),
        ];
        if let Some((_, dtype)) = builtin.iter().find(|(known, _)| known.is(class)) {
            return Ok(*dtype);
        }
        // numpy.float32 and its like.
        if let Ok(name) = class.getattr("__name__") {
            let name = name.extract::<String>()?;
            return name.trim_end_matches('_').parse::<DType>().py(py);
        }
    }
    // numpy.dtype("float32") and its like.
    if let Ok(name) = given.getattr("name").and_then(|name| name.extract::<String>()) {
        return name.parse::<DType>().py(py);
    }
    // torch.float32
    if let Some(text) = of_torch(given, "dtype") {
        return text.trim_start_matches("torch.").parse::<DType>().py(py);
    }
    let message = format!(
        "a dtype is given as keyfold's, NumPy's, or a name such as \"float32\", not {}",
        crate::marshal::describe::describe_object(given)
    );
    Err(error(py, ErrorKind::Binding, message))
}

#[pymethods]
impl PyDType {
    #[new]
    fn new(dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        dtype_from(dtype).map(PyDType)
    }

    /// The name, which is NumPy's where NumPy has it: `float32`, `bfloat16`.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Bytes per element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.0.size()
    }

    /// NumPy's dtype of the same elements, by which NumPy takes a keyfold dtype wherever it takes one.
    ///
    /// Raises:
    ///     AttributeError: NumPy has none (bfloat16).
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.0 == DType::BF16 {
            let message = "NumPy has no bfloat16: convert to float32 first";
            return Err(PyAttributeError::new_err(message));
        }
        py.import("numpy")?.call_method1("dtype", (self.0.name(),))
    }

    fn __str__(&self) -> &'static str {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        format!("keyfold.{}", self.0.name())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        dtype_from(other).is_ok_and(|other| other == self.0)
    }

    /// The hash of the name, which the dtype is equal to.
    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        PyString::new(py, self.0.name()).hash()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (&'static str,)) {
        (py.get_type::<PyDType>(), (self.0.name(),))
    }
}

/// A device: its type and index. Compares equal to its name.
#[pyclass(name = "Device", module = "keyfold", frozen)]
pub(crate) struct PyDevice(pub(crate) Device);

/// The device of a name or a `Device`; `None` for any other object.
///
/// # Errors
/// A name that is no device.
pub(crate) fn find_device(given: &Bound<'_, PyAny>) -> keyfold_core::Result<Option<Device>> {
    if let Ok(device) = given.cast::<PyDevice>() {
        return Ok(Some(device.get().0));
    }
    match given.cast::<PyString>() {
        Ok(name) => name.to_string_lossy().parse().map(Some),
        Err(_) => of_torch(given, "device").map(|name| name.parse()).transpose(),
    }
}

/// The text of an object of that class of torch's.
fn of_torch(given: &Bound<'_, PyAny>, class: &str) -> Option<String> {
    let kind = given.get_type();
    let is = kind.module().is_ok_and(|module| module == "torch")
        && kind.qualname().is_ok_and(|name| name == class);
    is.then(|| given.str().map(|text| text.to_string()).ok()).flatten()
}

/// A device from a `Device` or a name such as `"cpu"` or `"cuda:1"`.
pub(crate) fn device_from(given: &Bound<'_, PyAny>) -> PyResult<Device> {
    match find_device(given).py(given.py())? {
        Some(device) => Ok(device),
        None => {
            let message = format!(
                "a device is given as a keyfold.Device or a name such as \"cpu\" or \"cuda:1\", not {}",
                crate::marshal::describe::describe_object(given)
            );
            Err(error(given.py(), ErrorKind::Binding, message))
        }
    }
}

#[pymethods]
impl PyDevice {
    #[new]
    fn new(device: &Bound<'_, PyAny>) -> PyResult<Self> {
        device_from(device).map(PyDevice)
    }

    /// The kind of device: `"cpu"`, `"cuda"`, `"meta"`, or what was registered.
    #[getter]
    fn r#type(&self) -> String {
        self.0.kind().name()
    }

    /// The ordinal among devices of its type.
    #[getter]
    fn index(&self) -> u8 {
        self.0.index()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Device('{}')", self.0)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        device_from(other).is_ok_and(|other| other == self.0)
    }

    /// The hash of the name, which the device is equal to.
    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        PyString::new(py, &self.0.to_string()).hash()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (String,)) {
        (py.get_type::<PyDevice>(), (self.0.to_string(),))
    }
}
