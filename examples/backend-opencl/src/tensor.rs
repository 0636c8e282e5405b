//! Tensors as kernels get them.

use keyfold_plugin::{DeviceTensor, Error, Result};

use crate::api::Handle;
use crate::device::{Arg, Buffer};
use crate::types::Type;

/// A tensor's memory, the distance of its element at index zero in elements, and their type.
#[derive(Clone, Copy)]
pub struct Place {
    pub memory: Handle,
    pub at: i64,
    pub dtype: Type,
}

impl Place {
    /// Returns the place of a tensor of an operation.
    ///
    /// # Errors
    /// A dtype that no operation has been offered for.
    pub fn of(tensor: &DeviceTensor<'_, Buffer>) -> Result<Place> {
        let dtype = Type::of(tensor.dtype()).ok_or_else(|| {
            Error::not_supported(format!("it has no operations on {}", tensor.dtype()))
        })?;
        let at = (tensor.byte_offset() / tensor.element_size()) as i64;
        Ok(Place { memory: tensor.buffer().handle, at, dtype })
    }

    /// Returns the two arguments of a kernel: the memory and the distance.
    pub fn args<'a>(&self) -> [Arg<'a>; 2] {
        [Arg::Buffer(self.memory), Arg::I64(self.at)]
    }
}
