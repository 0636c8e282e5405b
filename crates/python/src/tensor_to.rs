//! Tensors of another dtype or on another device.

use keyfold_core::{DType, Device, DeviceType, ErrorKind, nearest};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::aten;
use crate::dtype::{self, PyDevice, device_from, dtype_from};
use crate::tensor::{PyTensor, error};

type Any<'py> = Bound<'py, PyAny>;

/// What `to` is asked for: a dtype or a device.
enum Target {
    DType(DType),
    Device(Device),
}

impl Target {
    fn from(given: &Any<'_>) -> PyResult<Target> {
        if given.is_instance_of::<PyDevice>() {
            return device_from(given).map(Target::Device);
        }
        if given.is_instance_of::<PyString>() {
            if let Ok(device) = device_from(given) {
                return Ok(Target::Device(device));
            }
            return match dtype_from(given) {
                Ok(dtype) => Ok(Target::DType(dtype)),
                Err(_) => {
                    let devices = DeviceType::all_names();
                    let text = given.to_string();
                    let known = DType::ALL.iter().map(|dtype| dtype.name());
                    let near = nearest(&text, known.chain(devices.iter().map(String::as_str)));
                    let hint = match near.first() {
                        _ if text.eq_ignore_ascii_case("gpu") => {
                            "did you mean \"cuda\"? ".to_owned()
                        }
                        Some(name) => format!("did you mean \"{name}\"? "),
                        None => String::new(),
                    };
                    let message = format!(
                        "{} is no dtype, such as \"float32\", and no device; {hint}devices are {}",
                        given.repr()?,
                        devices.join(", ")
                    );
                    Err(error(given.py(), ErrorKind::Value, message))
                }
            };
        }
        dtype_from(given).map(Target::DType)
    }
}

/// The tensor on another device. Only meta, which needs no data, can be reached from anywhere.
fn moved<'py>(tensor: &Bound<'py, PyTensor>, device: Device) -> PyResult<Any<'py>> {
    let py = tensor.py();
    let own = tensor.get().tensor.device();
    if device == own {
        return Ok(tensor.clone().into_any());
    }
    if device.kind() == DeviceType::META {
        return aten::TO_META.call(py, (tensor,));
    }
    let (kind, message) = match own.kind() {
        DeviceType::META => (
            ErrorKind::Device,
            format!("a tensor on meta has no data to bring to {device}; make one with zeros()"),
        ),
        _ => (ErrorKind::NotSupported, format!("there is no copy from {own} to {device}")),
    };
    Err(error(py, kind, message))
}

#[pymethods]
impl PyTensor {
    /// The tensor as another dtype, or on another device; itself if it is so already.
    ///
    /// Args:
    ///     target: a dtype or a device, as an object or by name.
    ///     dtype: the dtype, where both are given.
    ///     device: the device, where both are given.
    ///     copy: whether the result is always a copy.
    ///
    /// Raises:
    ///     NotSupported: there is no way from the tensor's device to that one.
    ///     DeviceError: the tensor is on meta and has no data.
    #[pyo3(signature = (target=None, *, dtype=None, device=None, copy=false))]
    fn to<'py>(
        slf: &Bound<'py, Self>,
        target: Option<&Any<'py>>,
        dtype: Option<&Any<'py>>,
        device: Option<&Any<'py>>,
        copy: bool,
    ) -> PyResult<Any<'py>> {
        let py = slf.py();
        let mut wanted = (dtype.map(dtype_from).transpose()?, device.map(device_from).transpose()?);
        match target.map(Target::from).transpose()? {
            Some(Target::DType(given)) if wanted.0.is_none() => wanted.0 = Some(given),
            Some(Target::Device(given)) if wanted.1.is_none() => wanted.1 = Some(given),
            Some(_) => {
                let message = "to() was given the dtype or the device twice";
                return Err(error(py, ErrorKind::Binding, message));
            }
            None => {}
        }
        let mut result = slf.clone().into_any();
        if let Some(dtype) = wanted.0.filter(|dtype| *dtype != slf.get().tensor.dtype()) {
            result = aten::TO.call(py, (slf, dtype::object(py, dtype)?))?;
        }
        if let (Some(device), Ok(tensor)) = (wanted.1, result.cast::<PyTensor>()) {
            result = moved(tensor, device)?;
        }
        if copy && result.is(slf) {
            return aten::CLONE.call(py, (slf,));
        }
        Ok(result)
    }

    /// As `to`, the array API standard's name for devices.
    #[pyo3(signature = (device, /, *, stream=None))]
    fn to_device<'py>(
        slf: &Bound<'py, Self>,
        device: &Any<'py>,
        stream: Option<&Any<'py>>,
    ) -> PyResult<Any<'py>> {
        let device = device_from(device)?;
        if let Some(stream) = stream {
            let message = format!("{device} has no streams; leave stream={} out", stream.repr()?);
            return Err(error(slf.py(), ErrorKind::NotSupported, message));
        }
        moved(slf, device)
    }
}
