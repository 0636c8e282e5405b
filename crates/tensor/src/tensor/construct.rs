//! Constructors of tensors: from new memory and from Rust data.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use keyfold_core::{
    DType, Device, Element, Error, ErrorKind, Result, Scalar, Shape, Strides, bf16, f16, layout,
};
use keyfold_dispatch::{DispatchKey, DispatchKeySet};

use super::attached::AttachmentSlot;
use super::{Tensor, backend_keys};
use crate::buffer::{
    BufferHandle, DeviceBuffer, HostBuffer, NullBuffer, PendingBuffer, PendingSource,
};
use crate::device::{self, Content};

/// Returns an element's bytes and their number.
fn element_bytes(value: Scalar, dtype: DType) -> ([u8; 16], usize) {
    let mut bytes = [0; 16];
    let complex = value.as_complex();
    match dtype {
        DType::Bool => bytes[0] = u8::from(value.is_nonzero()),
        DType::U8 => bytes[..1].copy_from_slice(&value.to::<u8>().to_ne_bytes()),
        DType::U16 => bytes[..2].copy_from_slice(&value.to::<u16>().to_ne_bytes()),
        DType::U32 => bytes[..4].copy_from_slice(&value.to::<u32>().to_ne_bytes()),
        DType::U64 => bytes[..8].copy_from_slice(&value.to::<u64>().to_ne_bytes()),
        DType::I8 => bytes[..1].copy_from_slice(&value.to::<i8>().to_ne_bytes()),
        DType::I16 => bytes[..2].copy_from_slice(&value.to::<i16>().to_ne_bytes()),
        DType::I32 => bytes[..4].copy_from_slice(&value.to::<i32>().to_ne_bytes()),
        DType::I64 => bytes[..8].copy_from_slice(&value.to::<i64>().to_ne_bytes()),
        DType::F16 => bytes[..2].copy_from_slice(&value.to::<f16>().to_ne_bytes()),
        DType::BF16 => bytes[..2].copy_from_slice(&value.to::<bf16>().to_ne_bytes()),
        DType::F32 => bytes[..4].copy_from_slice(&value.to::<f32>().to_ne_bytes()),
        DType::F64 => bytes[..8].copy_from_slice(&value.to::<f64>().to_ne_bytes()),
        DType::C64 => {
            bytes[..4].copy_from_slice(&(complex.re as f32).to_ne_bytes());
            bytes[4..8].copy_from_slice(&(complex.im as f32).to_ne_bytes());
        }
        DType::C128 => {
            bytes[..8].copy_from_slice(&complex.re.to_ne_bytes());
            bytes[8..].copy_from_slice(&complex.im.to_ne_bytes());
        }
    }
    (bytes, dtype.size())
}

impl Tensor {
    /// Returns a row-major tensor of a new buffer of matching size and alignment.
    #[inline]
    pub(super) fn whole(
        buffer: Arc<dyn DeviceBuffer>,
        shape: Shape,
        numel: usize,
        dtype: DType,
    ) -> Self {
        let strides = layout::contiguous_strides(&shape);
        let tensor = Tensor::of_buffer(buffer, dtype, shape, strides, numel, DispatchKeySet::EMPTY);
        debug_assert!(numel <= tensor.buffer.len());
        tensor
    }

    /// Returns a view from a buffer's start on, whose bounds were checked, with keys beside the backend's. Built
    /// where it is returned: a tensor that is moved right after it was written waits for the writes.
    #[inline(always)]
    fn of_buffer(
        buffer: Arc<dyn DeviceBuffer>,
        dtype: DType,
        shape: Shape,
        strides: Strides,
        numel: usize,
        keys: DispatchKeySet,
    ) -> Self {
        let base = buffer.host_ptr().map_or(std::ptr::null_mut(), NonNull::as_ptr);
        let keys = AtomicU64::new(backend_keys(buffer.device()) | keys.bits());
        Tensor {
            buffer: BufferHandle::aligned(buffer, dtype),
            base,
            shape,
            strides,
            offset: 0,
            numel,
            keys,
            token: 0,
            alias: false,
            attached: AttachmentSlot::empty(),
        }
    }

    /// Returns a tensor of zeros on a device (without memory on meta).
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for too many dimensions or elements, [`ErrorKind::Memory`] if there is
    /// no memory left, [`ErrorKind::Device`] for a device without memory or an index out of range;
    /// and the device's errors.
    pub fn zeros(shape: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Tensor::made(Shape::new(shape)?, dtype, device, Content::Zeros)
    }

    /// Returns a tensor with arbitrary elements, to be written. They are the previous content of
    /// recycled memory; bools are false, since not every byte is a bool.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn empty(shape: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Tensor::empty_of(Shape::new(shape)?, dtype, device)
    }

    /// As [`Tensor::empty`], of a shape that is there already.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn empty_of(shape: Shape, dtype: DType, device: Device) -> Result<Self> {
        let content = if dtype == DType::Bool { Content::Zeros } else { Content::Arbitrary };
        Tensor::made(shape, dtype, device, content)
    }

    #[inline]
    fn made(shape: Shape, dtype: DType, device: Device, content: Content) -> Result<Self> {
        let numel = layout::numel(&shape, dtype.size())?;
        let bytes = numel * dtype.size();
        // The host's buffer has a path of its own, on which its methods are called directly, to keep
        // one-element results cheap.
        if device == Device::CPU {
            let buffer = Arc::new(HostBuffer::new(bytes, content)?);
            return Ok(Tensor::whole(buffer, shape, numel, dtype));
        }
        let buffer: Arc<dyn DeviceBuffer> = match device {
            Device::META => Arc::new(NullBuffer::new(bytes)),
            other => device::allocate(other, bytes, content)?,
        };
        Ok(Tensor::whole(buffer, shape, numel, dtype))
    }

    /// Returns a tensor without memory on the device meta.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for too many dimensions or elements.
    pub fn meta(shape: &[usize], dtype: DType) -> Result<Self> {
        Tensor::zeros(shape, dtype, Device::META)
    }

    /// As [`Tensor::meta`], with given strides in elements.
    ///
    /// # Errors
    /// As [`Tensor::meta`], and for negative strides or a wrong number of them.
    pub fn meta_strided(shape: &[usize], strides: &[isize], dtype: DType) -> Result<Self> {
        let (shape, strides) = (Shape::new(shape)?, Strides::new(strides)?);
        layout::numel(&shape, dtype.size())?;
        let last = match shape.len() == strides.len() {
            true => layout::bounds(&shape, &strides, 0)?.map_or(0, |(_, last)| last + 1),
            // Refused below.
            false => 0,
        };
        let bytes = last.saturating_mul(dtype.size());
        let buffer = BufferHandle::new(Arc::new(NullBuffer::new(bytes)), dtype)?;
        Tensor::from_parts(buffer, shape, strides, 0)
    }

    /// Returns a tensor over memory that an operation will fill, with the key Deferred.
    ///
    /// # Errors
    /// As [`Tensor::from_parts`].
    #[inline]
    pub fn pending(
        memory: Arc<PendingBuffer>,
        shape: &Shape,
        strides: &Strides,
        dtype: DType,
    ) -> Result<Self> {
        let keys = DispatchKeySet::EMPTY.insert(DispatchKey::Deferred);
        let numel = layout::numel(shape, dtype.size())?;
        let is_whole = shape.len() == strides.len()
            && layout::is_contiguous(shape, strides)
            && numel * dtype.size() <= memory.byte_len();
        let (shape, strides) = (shape.clone(), strides.clone());
        if is_whole {
            return Ok(Tensor::of_buffer(memory, dtype, shape, strides, numel, keys));
        }
        // Memory without an address is aligned for every dtype.
        let tensor = Tensor::from_parts(BufferHandle::aligned(memory, dtype), shape, strides, 0)?;
        tensor.insert_key(DispatchKey::Deferred)?;
        Ok(tensor)
    }

    /// Returns a tensor over pending memory with the form of another one, and both memories: the pending one can
    /// [stand for](PendingBuffer::stand_for) the other.
    ///
    /// # Errors
    /// As [`Tensor::from_parts`].
    pub fn placeholder(
        like: &Tensor,
        source: Weak<dyn PendingSource>,
    ) -> Result<(Self, Arc<PendingBuffer>, Arc<dyn DeviceBuffer>)> {
        let Some(memory) = like.buffer.clone().into_tracked().into_shared() else {
            unreachable!("tracked buffers are shared")
        };
        let bytes = like.buffer.len() * like.dtype().size();
        let pending = PendingBuffer::new(like.device(), bytes, source);
        if let Some(version) = DeviceBuffer::version(&pending) {
            version.store(like.version(), Ordering::Relaxed);
        }
        let pending = Arc::new(pending);
        let buffer = BufferHandle::aligned(Arc::clone(&pending) as _, like.dtype());
        let view = (like.shape.clone(), like.strides.clone());
        let tensor = Tensor::from_parts(buffer, view.0, view.1, like.offset)?;
        tensor.insert_key(DispatchKey::Deferred)?;
        let tensor = if like.is_writable() { tensor } else { tensor.into_read_only() };
        Ok((tensor, pending, memory))
    }

    /// Returns whether the elements aren't computed yet. Every way to read them computes them.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.pending_buffer().is_some_and(PendingBuffer::is_pending)
    }

    /// Returns the buffer if it is a pending one, filled or not.
    #[inline]
    pub fn pending_buffer(&self) -> Option<&PendingBuffer> {
        // Pending memory has no fixed address.
        if self.is_pinned() { None } else { self.buffer.pending() }
    }

    /// Returns the same view of the memory that fills a pending tensor; `None` for a tensor of
    /// other memory. The view has the backend key alone.
    ///
    /// # Errors
    /// As [`PendingBuffer::wait`].
    pub fn completed(&self) -> Result<Option<Tensor>> {
        let Some(pending) = self.buffer.pending() else { return Ok(None) };
        Ok(Some(self.over(Arc::clone(pending.wait()?))))
    }

    /// Returns the same view of a pending tensor's [staged](PendingBuffer::staged) memory, for the
    /// operations that fill it.
    pub fn over_staged(&self) -> Option<Tensor> {
        Some(self.over(Arc::clone(self.buffer.pending()?.staged()?)))
    }

    /// Returns the same view of memory that is at least as large.
    fn over(&self, memory: Arc<dyn DeviceBuffer>) -> Tensor {
        let buffer = BufferHandle::aligned(memory, self.dtype());
        let view = (self.shape.clone(), self.strides.clone());
        let tensor = Tensor::assume_inside(buffer, view.0, view.1, self.offset, self.numel);
        let tensor = Tensor { alias: self.alias, ..tensor };
        if self.is_writable() { tensor } else { tensor.into_read_only() }
    }

    /// Returns a tensor filled with `value`.
    ///
    /// # Errors
    /// As [`Tensor::zeros`], and as [`Scalar::check`] if the dtype can't hold the value.
    pub fn full(shape: &[usize], value: Scalar, dtype: DType, device: Device) -> Result<Self> {
        value.check(dtype)?;
        let (bytes, size) = element_bytes(value, dtype);
        if device != Device::CPU {
            return Tensor::filled_on(shape, &bytes[..size], dtype, device);
        }
        let shape = Shape::new(shape)?;
        let numel = layout::numel(&shape, size)?;
        let mut buffer = HostBuffer::zeroed(numel * size)?;
        if bytes != [0; 16] {
            for element in buffer.as_bytes_mut().chunks_exact_mut(size) {
                element.copy_from_slice(&bytes[..size]);
            }
        }
        Ok(Tensor::whole(Arc::new(buffer), shape, numel, dtype))
    }

    /// Returns a tensor of a vector's elements in row-major order. Takes ownership of the vector's
    /// memory.
    ///
    /// ```
    /// use keyfold_tensor::Tensor;
    /// let x = Tensor::from_vec(vec![1_i64, 2, 3, 4], &[2, 2])?;
    /// assert_eq!(x.get::<i64>(&[1, 0])?, 3);
    /// # Ok::<(), keyfold_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the number of elements isn't the shape's.
    pub fn from_vec<T: Element>(items: Vec<T>, shape: &[usize]) -> Result<Self> {
        let shape = Shape::new(shape)?;
        let numel = layout::numel(&shape, size_of::<T>())?;
        if numel != items.len() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("shape {shape:?} has {numel} elements, but {} were given", items.len()),
            ));
        }
        Ok(Tensor::whole(Arc::new(HostBuffer::from_vec(items)), shape, numel, T::DTYPE))
    }

    /// Returns a tensor with a copy of the elements in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::from_vec`].
    pub fn from_slice<T: Element>(items: &[T], shape: &[usize]) -> Result<Self> {
        Tensor::from_vec(items.to_vec(), shape)
    }

    /// Returns a tensor without dimensions that holds the value.
    ///
    /// # Errors
    /// As [`Scalar::check`] if the dtype can't hold the value.
    pub fn from_scalar(value: Scalar, dtype: DType) -> Result<Self> {
        Tensor::full(&[], value, dtype, Device::CPU)
    }
}

#[cfg(test)]
mod tests {
    use keyfold_core::{Complex, DeviceType};

    use super::*;

    #[test]
    fn meta_tensors_keep_their_strides() {
        let t = Tensor::meta_strided(&[2, 3], &[1, 2], DType::F32).unwrap();
        assert_eq!(t.shape()[..], [2, 3]);
        assert_eq!(t.strides()[..], [1, 2]);
        assert_eq!(t.device(), Device::META);
        let t = Tensor::meta_strided(&[4, 3], &[0, 1], DType::F32).unwrap();
        assert_eq!(t.numel(), 12);
        assert_eq!(Tensor::meta_strided(&[0, 3], &[3, 1], DType::F32).unwrap().numel(), 0);
        for strides in [&[-1, 1][..], &[1], &[isize::MAX, 1]] {
            assert!(Tensor::meta_strided(&[2, 3], strides, DType::F32).is_err());
        }
    }

    #[test]
    fn every_dtype_can_be_filled_and_read_back() {
        for dtype in DType::ALL {
            let t = Tensor::full(&[2, 2], Scalar::Bool(true), dtype, Device::CPU).unwrap();
            assert_eq!(t.dtype(), dtype);
            let one = t.get_scalar(&[1, 1]).unwrap();
            assert_eq!(one.as_complex(), Complex::new(1.0, 0.0), "{dtype}: {one}");
            assert_eq!(Tensor::zeros(&[3], dtype, Device::CPU).unwrap().nbytes(), 3 * dtype.size());
        }
        let value = Scalar::Complex(Complex::new(1.5, -2.0));
        let t = Tensor::from_scalar(value, DType::C64).unwrap();
        assert_eq!(t.item().unwrap(), value);
    }

    #[test]
    fn bad_requests_are_typed_errors() {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F64, Device::CPU);
        assert_eq!(zeros(&[1 << 40, 1 << 40]).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(zeros(&[1; 65]).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(zeros(&[1 << 59]).unwrap_err().kind(), ErrorKind::Memory);
        let cuda = Device::new(DeviceType::CUDA, 1);
        let error = Tensor::zeros(&[1], DType::F64, cuda).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device);
        assert!(error.message().contains("cuda:1"), "{error}");
        let full = Tensor::full(&[1], Scalar::Int(300), DType::U8, Device::CPU);
        assert_eq!(full.unwrap_err().kind(), ErrorKind::Value);
        let error = Tensor::from_vec(vec![1, 2, 3], &[2, 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(error.message().contains("4 elements, but 3"), "{error}");
    }

    #[test]
    fn meta_tensors_have_a_shape_and_no_memory() {
        let t = Tensor::meta(&[1 << 20, 1 << 20], DType::F32).unwrap();
        assert_eq!(t.numel(), 1 << 40);
        assert!(t.as_slice::<f32>().is_err());
        assert!(t.item().is_err());
        assert_eq!(t.keys().to_string(), "DispatchKeySet(Meta)");
        assert!(Tensor::meta(&[1 << 40, 1 << 40], DType::F32).is_err());
    }
}
