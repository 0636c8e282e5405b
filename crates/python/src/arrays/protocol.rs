//! Arrays of any library, through DLPack: its C exchange API or its Python protocol.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, Tag};
use keyfold_tensor::Tensor;
use keyfold_tensor::dlpack::{
    self, DLDevice, DLManagedTensorVersioned, DLTensor, ExchangeApi, device_from_dl, dtype_from_dl,
};
use pyo3::prelude::*;

use crate::arrays::owners::{self, Loan};
use crate::arrays::types::{self, Known, Way};
use crate::errors::{IntoPyResult, from_pyerr};

/// The tag of an array on a device.
pub(crate) fn tag_on(device: keyfold_core::Device, zero_dim: bool) -> Tag {
    Tag::new(DispatchKey::from_device_type(device.kind()).into(), device, zero_dim)
}

/// The tag of an object with `__dlpack_device__`.
///
/// # Errors
/// What the method raises; what isn't a pair of numbers; a device that keyfold lacks.
pub(crate) fn look(object: &Bound<'_, PyAny>) -> Result<Tag> {
    let given = object.call_method0("__dlpack_device__").map_err(from_pyerr)?;
    // The type is an enum's member in some libraries, which counts as its number.
    let pair = (|| {
        let device_type: i32 = given.get_item(0)?.extract()?;
        let device_id: i32 = given.get_item(1)?.extract()?;
        Ok::<_, PyErr>(DLDevice { device_type, device_id })
    })();
    let device = pair.map_err(|_| {
        let given = crate::foreign::describe_object(&given);
        let message = format!("its __dlpack_device__ must give two numbers, not {given}");
        Error::new(ErrorKind::Exchange, message)
    })?;
    Ok(tag_on(device_from_dl(device)?, false))
}

/// The tag of an object whose class has the C exchange API.
///
/// # Errors
/// What the library raises, and a dtype or device that keyfold lacks.
pub(crate) fn look_exchange(object: &Bound<'_, PyAny>, api: &ExchangeApi) -> Result<Tag> {
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
        device: DLDevice { device_type: dlpack::DL_CPU, device_id: 0 },
        ndim: 0,
        dtype: dlpack::DLDataType { code: dlpack::DL_FLOAT, bits: 32, lanes: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

/// A view through the C exchange API, which holds the memory and, to be found again, the object.
///
/// # Errors
/// What the library raises, and what is malformed or unsupported.
pub(crate) fn view_exchange(object: &Bound<'_, PyAny>, api: &ExchangeApi) -> Result<Tensor> {
    view_exchange_for(object, api, object)
}

/// The same of an object that stands for another, the `source`.
///
/// # Errors
/// As [`view_exchange`].
pub(crate) fn view_exchange_for(
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
        dlpack::view_dl_tensor(tensor, owner, flags & dlpack::DLPACK_FLAG_READ_ONLY != 0)
    }
}

/// An object's memory as DLPack's struct.
pub(crate) fn export(
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
    let managed = dlpack::to_dlpack_versioned(tensor, false).py(py)?;
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

/// A view through `__dlpack__`.
///
/// # Errors
/// No such method; what it raises; what is malformed or unsupported.
pub(crate) fn view(object: &Bound<'_, PyAny>) -> Result<Tensor> {
    crate::arrays::dlpack::import(object).map_err(from_pyerr)
}

/// An object over a tensor's memory, in the library of another one: by its class's C exchange API, its
/// array namespace's `from_dlpack`, or its module's; keyfold's own where it has none of them.
///
/// # Errors
/// What the library raises.
pub(crate) fn give_like<'py>(
    like: &Bound<'py, PyAny>,
    tensor: Tensor,
) -> PyResult<Bound<'py, PyAny>> {
    let py = like.py();
    if let Ok(Some(Known { way: Way::Exchange(api), .. })) = types::known(like) {
        return import_into(py, &tensor, api);
    }
    let namespace = like.call_method0("__array_namespace__").or_else(|_| {
        let name = crate::arrays::library::library_name(like);
        py.import("sys")?.getattr("modules")?.get_item(name)
    });
    match namespace.and_then(|namespace| namespace.getattr("from_dlpack")) {
        Ok(from_dlpack) => {
            from_dlpack.call1((crate::tensor::wrap(py, tensor.into_lasting().py(py)?)?,))
        }
        Err(_) => Ok(crate::tensor::wrap(py, tensor)?.into_any()),
    }
}
