//! Arrays of any library, through DLPack: its C exchange API or its Python protocol.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, Tag};
use keyfold_tensor::Tensor;
use keyfold_tensor::dlpack::{
    DL_CPU, DL_FLOAT, DLDataType, DLDevice, DLManagedTensorVersioned, DLPACK_FLAG_READ_ONLY,
    DLTensor, EXCHANGE_API_NAME, ExchangeApi, device_from_dl, dtype_from_dl, to_dlpack_versioned,
    view_dl_tensor,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::marshal::arrays::dlpack;
use crate::marshal::arrays::library::{Api, ArrayLibrary};
use crate::marshal::arrays::owners::{self, Loan};
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, from_pyerr};
use crate::marshal::tensor::wrap;

/// The tag of an array on a device.
pub(crate) fn tag_on(device: keyfold_core::Device, zero_dim: bool) -> Tag {
    Tag::new(DispatchKey::from_device_type(device.kind()).into(), device, zero_dim)
}

/// The tag of an object with `__dlpack_device__`.
///
/// # Errors
/// The exception of the method, a result that isn't a pair of numbers, a device that keyfold lacks.
pub(crate) fn look(object: &Bound<'_, PyAny>) -> Result<Tag> {
    let given = object.call_method0("__dlpack_device__").map_err(from_pyerr)?;
    // The type is an enum's member in some libraries, which counts as its number.
    let pair = (|| {
        let device_type: i32 = given.get_item(0)?.extract()?;
        let device_id: i32 = given.get_item(1)?.extract()?;
        Ok::<_, PyErr>(DLDevice { device_type, device_id })
    })();
    let device = pair.map_err(|_| {
        let given = describe_object(&given);
        let message = format!("its __dlpack_device__ must give two numbers, not {given}");
        Error::new(ErrorKind::Exchange, message)
    })?;
    Ok(tag_on(device_from_dl(device)?, false))
}

/// The tag of an object whose class has the C exchange API.
///
/// # Errors
/// The exception of the library, and a dtype or device that keyfold lacks.
fn look_exchange(object: &Bound<'_, PyAny>, api: &ExchangeApi) -> Result<Tag> {
    let Some(describe) = api.describe else { return look(object) };
    let mut described = blank();
    // SAFETY: an object of the class that offers the table, under the GIL.
    if unsafe { describe(object.as_ptr().cast(), &raw mut described) } != 0 {
        return Err(from_pyerr(PyErr::fetch(object.py())));
    }
    dtype_from_dl(described.dtype)?;
    Ok(tag_on(device_from_dl(described.device)?, described.ndim == 0))
}

fn blank() -> DLTensor {
    DLTensor {
        data: std::ptr::null_mut(),
        device: DLDevice { device_type: DL_CPU, device_id: 0 },
        ndim: 0,
        dtype: DLDataType { code: DL_FLOAT, bits: 32, lanes: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

/// A view through the C exchange API of an object that stands for another, the `source`. It holds the
/// memory and, to be found again, the source.
///
/// # Errors
/// The exception of the library, and a capsule that is malformed or unsupported.
pub(crate) fn view_exchange(
    object: &Bound<'_, PyAny>,
    api: &ExchangeApi,
    source: &Bound<'_, PyAny>,
) -> Result<Tensor> {
    let managed = export(object, api).map_err(from_pyerr)?;
    // SAFETY: what the library's own export gave, and nobody took yet. From here on the loan
    // gives it back, also where it is refused.
    unsafe {
        let loan = Loan::Managed(managed);
        let owner = owners::held(source.clone().unbind(), loan);
        let (tensor, flags) = (&managed.as_ref().dl_tensor, managed.as_ref().flags);
        view_dl_tensor(tensor, owner, flags & DLPACK_FLAG_READ_ONLY != 0)
    }
}

/// An object's memory as DLPack's struct.
fn export(
    object: &Bound<'_, PyAny>,
    api: &ExchangeApi,
) -> PyResult<std::ptr::NonNull<DLManagedTensorVersioned>> {
    let py = object.py();
    let Some(export) = api.export else { unreachable!("tables without it aren't taken") };
    let mut managed = std::ptr::null_mut();
    // SAFETY: an object of the class that offers the table, under the GIL.
    let code = unsafe { export(object.as_ptr().cast(), &raw mut managed) };
    match std::ptr::NonNull::new(managed) {
        Some(managed) if code == 0 => Ok(managed),
        _ => Err(PyErr::take(py).unwrap_or_else(|| {
            pyo3::exceptions::PyBufferError::new_err(
                "the library gave no DLPack struct, and no error",
            )
        })),
    }
}

/// An object of the table's library out of a tensor's memory.
///
/// # Errors
/// A tensor that can't be exported; what the library raises.
pub(crate) fn import_into<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    api: &ExchangeApi,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(import) = api.import else { unreachable!("tables without it aren't taken") };
    let managed = to_dlpack_versioned(tensor, false).py(py)?;
    let mut object = std::ptr::null_mut();
    // SAFETY: a struct of ours, which the function takes over; it gives a new reference.
    unsafe {
        let code = import(managed.as_ptr(), &raw mut object);
        if code != 0 && object.is_null() {
            return Err(PyErr::fetch(py));
        }
        Bound::from_owned_ptr_or_err(py, object.cast())
    }
}

/// The class's table of DLPack's C exchange API.
pub(crate) fn exchange_api(class: &Bound<'_, PyType>) -> Api {
    let capsule = class.getattr("__dlpack_c_exchange_api__").ok()?;
    // SAFETY: a live object; the capsule's name says what it holds, and tables live as long as
    // the process.
    unsafe {
        let name = EXCHANGE_API_NAME.as_ptr();
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), name) == 0 {
            return None;
        }
        ExchangeApi::find(ffi::PyCapsule_GetPointer(capsule.as_ptr(), name))
    }
}

/// The name that people know an array's library by: its class's outermost module.
pub(crate) fn library_name(object: &Bound<'_, PyAny>) -> String {
    let module = object.get_type().module().map(|module| module.to_string()).unwrap_or_default();
    match module.split('.').next() {
        Some(root) if !root.is_empty() => root.to_owned(),
        _ => "an unknown library".to_owned(),
    }
}

/// A library whose arrays are read and made by DLPack alone.
pub(crate) struct DLPackLibrary {
    /// The outermost module and the name of its class of arrays.
    class: Option<(&'static str, &'static str)>,
}

/// Libraries that aren't listed by name.
pub(crate) static DLPACK: DLPackLibrary = DLPackLibrary { class: None };
pub(crate) static CUPY: DLPackLibrary = DLPackLibrary { class: Some(("cupy", "ndarray")) };

impl ArrayLibrary for DLPackLibrary {
    fn owns(&self, _class: &Bound<'_, PyType>, module: &str, name: &str) -> Result<bool> {
        Ok(self.class == Some((module, name)))
    }

    fn look(&self, object: &Bound<'_, PyAny>, api: Api) -> Result<Tag> {
        api.map_or_else(|| look(object), |api| look_exchange(object, api))
    }

    fn view(&self, object: &Bound<'_, PyAny>, api: Api, _written: bool) -> Result<Tensor> {
        match api {
            Some(api) => view_exchange(object, api, object),
            None => dlpack::import(object).map_err(from_pyerr),
        }
    }

    /// By the C exchange API of the class of `like`, its array namespace's `from_dlpack`, or its module's;
    /// keyfold's own where it has none of them.
    fn give<'py>(
        &self,
        py: Python<'py>,
        tensor: Tensor,
        like: &dyn Fn() -> Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(like) = like() else { return Ok(wrap(py, tensor)?.into_any()) };
        if let Some(api) = exchange_api(&like.get_type()) {
            return import_into(py, &tensor, api);
        }
        let namespace = like
            .call_method0("__array_namespace__")
            .or_else(|_| py.import("sys")?.getattr("modules")?.get_item(library_name(&like)));
        match namespace.and_then(|namespace| namespace.getattr("from_dlpack")) {
            Ok(from_dlpack) => from_dlpack.call1((wrap(py, tensor.into_lasting().py(py)?)?,)),
            Err(_) => Ok(wrap(py, tensor)?.into_any()),
        }
    }

    fn is_dlpack(&self) -> bool {
        true
    }
}
