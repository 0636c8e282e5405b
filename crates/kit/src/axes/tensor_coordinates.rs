//! The coordinates of tensors: device, dtype, contiguity.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::Tensor;

use super::standard::{Contiguity, Device, Dtype};

/// Returns the common device and dtype of several tensors, and their contiguity. Each tensor comes with
/// the name of its argument; messages call the operator `operator`.
///
/// The contiguity is contiguous only if each tensor is.
///
/// # Errors
/// [`ErrorKind::Device`] and [`ErrorKind::DType`] for tensors that differ, naming two arguments;
/// [`ErrorKind::Device`] for a device that no kernel runs on; [`ErrorKind::Value`] without tensors.
pub fn coordinates(
    operator: &str,
    tensors: &[(&str, &Tensor)],
) -> Result<(Device, Dtype, Contiguity)> {
    Ok((device_of(operator, tensors)?, dtype_of(operator, tensors)?, contiguity_of(tensors)))
}

/// Returns the device that all these tensors are on.
///
/// # Errors
/// As [`coordinates`].
pub fn device_of(operator: &str, tensors: &[(&str, &Tensor)]) -> Result<Device> {
    let (name, first) = first(operator, tensors)?;
    for (other_name, other) in tensors {
        if other.device() != first.device() {
            return Err(Error::new(
                ErrorKind::Device,
                format!(
                    "{operator}: arguments on different devices: '{name}' is on {}, '{other_name}' \
                     on {}; move one of them",
                    first.device(),
                    other.device()
                ),
            ));
        }
    }
    Device::from_type(first.device().kind()).map_err(|error| error.at(operator))
}

/// Returns the dtype that all these tensors have.
///
/// # Errors
/// As [`coordinates`].
pub fn dtype_of(operator: &str, tensors: &[(&str, &Tensor)]) -> Result<Dtype> {
    let (name, first) = first(operator, tensors)?;
    for (other_name, other) in tensors {
        if other.dtype() != first.dtype() {
            return Err(Error::new(
                ErrorKind::DType,
                format!(
                    "{operator}: arguments of different dtypes: '{name}' is {}, '{other_name}' is \
                     {}; convert one of them",
                    first.dtype(),
                    other.dtype()
                ),
            ));
        }
    }
    Ok(first.dtype())
}

/// Returns contiguous if each tensor is, else strided.
pub fn contiguity_of(tensors: &[(&str, &Tensor)]) -> Contiguity {
    Contiguity::of_all(tensors.iter().map(|(_, tensor)| tensor.is_contiguous()))
}

fn first<'a>(operator: &str, tensors: &[(&'a str, &'a Tensor)]) -> Result<(&'a str, &'a Tensor)> {
    tensors.first().copied().ok_or_else(|| {
        Error::new(
            ErrorKind::Value,
            format!("{operator}: no tensors to take coordinates from; give one at least"),
        )
    })
}
