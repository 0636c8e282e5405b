//! Tensors of another dtype or on another device.

use keyfold_core::{DType, Device, DeviceType, ErrorKind, nearest};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::classes::aten;
use crate::marshal::argument::Flag;
use crate::marshal::dtype::{self, PyDevice, device_from, dtype_from};
use crate::marshal::errors::{IntoPyResult, error};
use crate::marshal::tensor::PyTensor;

type Any<'py> = Bound<'py, PyAny>;

/// The request of a call of `to`: a dtype or a device.
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
                    let hint = match DeviceType::translated(&text).or(near.first().copied()) {
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

/// The tensor on a device: itself if it is there.
fn moved<'py>(tensor: &Bound<'py, PyTensor>, device: Device) -> PyResult<Any<'py>> {
    if device == tensor.get().tensor.device() {
        tensor.get().tensor.check_backend().map_err(|error| error.at("aten::to")).py(tensor.py())?;
        return Ok(tensor.clone().into_any());
    }
    aten::TO_DEVICE.call(tensor.py(), (tensor, PyDevice(device)))
}

/// The tensor in a dtype: itself if it is of that one.
fn converted<'py>(tensor: &Bound<'py, PyTensor>, dtype: DType) -> PyResult<Any<'py>> {
    if dtype == tensor.get().tensor.dtype() {
        return Ok(tensor.clone().into_any());
    }
    aten::TO.call(tensor.py(), (tensor, dtype::object(tensor.py(), dtype)?))
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
    ///     DeviceError: the device isn't there; the tensor is on meta and has no data.
    ///     NotSupported: the tensor's memory is another library's, on a device without a backend here.
    #[pyo3(
        signature = (target=None, *, dtype=None, device=None, copy=Flag(false)),
        text_signature = "($self, target=None, *, dtype=None, device=None, copy=False)"
    )]
    fn to<'py>(
        slf: &Bound<'py, Self>,
        target: Option<&Any<'py>>,
        dtype: Option<&Any<'py>>,
        device: Option<&Any<'py>>,
        copy: Flag,
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
        // The host converts, where it is one of the two: another device may not know how.
        let moves_first = wanted.1 == Some(Device::CPU);
        let mut result = slf.clone().into_any();
        for moves in [moves_first, !moves_first] {
            // A layer of the user's may have returned something else.
            let Ok(tensor) = result.cast::<PyTensor>() else { break };
            result = match wanted {
                (_, Some(device)) if moves => moved(tensor, device)?,
                (Some(dtype), _) if !moves => converted(tensor, dtype)?,
                _ => continue,
            };
        }
        if copy.0 && result.is(slf) {
            return aten::CLONE.call(py, (slf,));
        }
        Ok(result)
    }

    /// The tensor on the CPU: itself if it is there.
    ///
    /// Raises:
    ///     DeviceError: the tensor is on meta and has no data.
    fn cpu<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        moved(slf, Device::CPU)
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
