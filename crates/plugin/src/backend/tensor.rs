//! Tensors on a plugin's device.

use std::fmt;
use std::marker::PhantomData;

use super::layout::{ByteOffsets, Layout};
use crate::abi::DLTensor;
use crate::tensor::{is_contiguous, sizes};
use crate::types::DType;

/// A tensor in a buffer of the backend, or strided bytes of it: then the elements are unsigned
/// integers of the elements' size.
pub struct DeviceTensor<'a, B> {
    dl: &'a DLTensor,
    buffer: PhantomData<&'a B>,
}

impl<B> Clone for DeviceTensor<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for DeviceTensor<'_, B> {}

impl<'a, B> DeviceTensor<'a, B> {
    /// # Safety
    /// `dl` is the host's, alive for `'a`, and its data is a live handle of a `B`.
    pub(crate) unsafe fn new(dl: &'a DLTensor) -> Self {
        DeviceTensor { dl, buffer: PhantomData }
    }

    /// Returns the buffer.
    pub fn buffer(&self) -> &'a B {
        // SAFETY: the contract of `new`; handles are boxes of a `B`.
        unsafe { &*self.dl.data.cast::<B>() }
    }

    /// Returns the index of the device.
    pub fn device(&self) -> u32 {
        (self.dl.device.device_id & 0xff).cast_unsigned()
    }

    /// Returns the element type; for the strided bytes of memory functions an unsigned integer of
    /// the element's size, which may have more than 64 bits.
    pub fn dtype(&self) -> DType {
        DType(self.dl.dtype)
    }

    /// Returns the size of an element in bytes.
    pub fn element_size(&self) -> usize {
        self.dtype().size()
    }

    /// Returns the size of each dimension.
    pub fn shape(&self) -> &'a [i64] {
        // SAFETY: the host provides `ndim` sizes, which live as long as the tensor.
        unsafe { sizes(self.dl.shape, self.dl.ndim) }
    }

    /// Returns the strides in elements; they may be 0 or negative.
    pub fn strides(&self) -> &'a [i64] {
        // SAFETY: as above; strides are never null.
        unsafe { sizes(self.dl.strides, self.dl.ndim) }
    }

    /// Returns the distance from the buffer's start to the element at index zero, in bytes.
    pub fn byte_offset(&self) -> usize {
        self.dl.byte_offset as usize
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        self.shape().iter().product::<i64>() as usize
    }

    /// Returns whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        is_contiguous(self.shape(), self.strides())
    }

    /// Returns where the elements are, without borrowing the tensor.
    pub fn layout(&self) -> Layout {
        Layout::new(self.dtype(), self.byte_offset(), self.shape(), self.strides())
    }

    /// Returns the byte offset of each element from the buffer's start, in row-major order.
    pub fn byte_offsets(&self) -> ByteOffsets {
        self.layout().offsets()
    }
}

impl<B> fmt::Debug for DeviceTensor<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} on device {}", self.dtype(), self.shape(), self.device())
    }
}
