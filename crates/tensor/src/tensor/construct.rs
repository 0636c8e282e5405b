//! Making tensors: of fresh memory, of Rust data, of memory that somebody else owns.

use std::ptr::NonNull;
use std::sync::Arc;

use keyfold_core::{
    DType, Device, Element, Error, ErrorKind, Result, Scalar, Shape, Strides, bf16, f16, layout,
};

use super::Tensor;
use crate::buffer::{BufferHandle, DeviceBuffer, ExternalOwner, HostBuffer, NullBuffer};

/// An element's bytes and how many of them there are.
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

/// Where a strided view that somebody else describes lies: its lowest element's address, the first
/// element's distance from there, and the elements in between, ends included.
pub(crate) struct Span {
    pub(crate) low: NonNull<u8>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Span {
    /// Computes it from the address of the first element, without touching memory.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] when something overflows, [`ErrorKind::Value`] when there are elements
    /// but `first` is null.
    #[inline]
    pub(crate) fn of(
        first: *mut u8,
        dtype: DType,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Span> {
        let size = dtype.size();
        let Some((low, high)) = layout::reach(shape, strides)? else {
            // Nothing will be read; any aligned address will do.
            let none = NonNull::<u128>::dangling().cast::<u8>();
            return Ok(Span { low: none, offset: 0, len: 0 });
        };
        let offset = low.unsigned_abs();
        let len = offset.checked_add(high as usize).and_then(|n| n.checked_add(1));
        let bytes = len.and_then(|n| n.checked_mul(size)).filter(|n| isize::try_from(*n).is_ok());
        let start = offset.checked_mul(size).and_then(|n| first.addr().checked_sub(n));
        let end = start.zip(bytes).and_then(|(start, bytes)| start.checked_add(bytes));
        match (NonNull::new(first.wrapping_sub(offset.wrapping_mul(size))), len, end) {
            (Some(low), Some(len), Some(_)) if !first.is_null() => Ok(Span { low, offset, len }),
            _ if first.is_null() => Err(Error::new(
                ErrorKind::Value,
                format!("the data pointer is null, but shape {shape:?} has elements"),
            )),
            _ => Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a view of shape {shape:?} and strides {strides:?} at address {:#x} leaves the \
                     address space",
                    first.addr()
                ),
            )),
        }
    }
}

impl Tensor {
    /// A row-major tensor of a buffer's first elements.
    fn whole(buffer: Arc<dyn DeviceBuffer>, shape: Shape, dtype: DType) -> Result<Self> {
        let strides = layout::contiguous_strides(&shape);
        Tensor::from_parts(BufferHandle::new(buffer, dtype)?, shape, strides, 0)
    }

    /// A tensor of zeros, on the CPU or (without memory) on meta.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for too many dimensions or elements, [`ErrorKind::Memory`] when there is
    /// no memory, [`ErrorKind::Device`] for other devices, whose own backend makes their tensors.
    pub fn zeros(shape: &[usize], dtype: DType, device: Device) -> Result<Self> {
        let shape = Shape::new(shape)?;
        let bytes = layout::numel(&shape, dtype.size())? * dtype.size();
        match device {
            Device::CPU => Tensor::whole(Arc::new(HostBuffer::zeroed(bytes)?), shape, dtype),
            Device::META => Tensor::whole(Arc::new(NullBuffer::new(bytes)), shape, dtype),
            other => Err(Error::new(
                ErrorKind::Device,
                format!(
                    "host code can't allocate memory on {other}; make the tensor with an operator \
                     that has a kernel for it, or on cpu or meta"
                ),
            )),
        }
    }

    /// A tensor whose elements are about to be written. They are zero all the same: memory is
    /// always initialised, and fresh pages come zeroed from the system for free.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn empty(shape: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Tensor::zeros(shape, dtype, device)
    }

    /// A tensor without memory: shape, strides and dtype on the device meta.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for too many dimensions or elements.
    pub fn meta(shape: &[usize], dtype: DType) -> Result<Self> {
        Tensor::zeros(shape, dtype, Device::META)
    }

    /// A tensor with `value` everywhere.
    ///
    /// # Errors
    /// As [`Tensor::zeros`], and as [`Scalar::check`] where the dtype can't hold the value.
    pub fn full(shape: &[usize], value: Scalar, dtype: DType, device: Device) -> Result<Self> {
        value.check(dtype)?;
        if device != Device::CPU {
            return Tensor::zeros(shape, dtype, device);
        }
        let shape = Shape::new(shape)?;
        let (bytes, size) = element_bytes(value, dtype);
        let mut buffer = HostBuffer::zeroed(layout::numel(&shape, size)? * size)?;
        if bytes != [0; 16] {
            for element in buffer.as_bytes_mut().chunks_exact_mut(size) {
                element.copy_from_slice(&bytes[..size]);
            }
        }
        Tensor::whole(Arc::new(buffer), shape, dtype)
    }

    /// A tensor of a vector's elements in row-major order; the vector's memory is taken over.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] when there aren't as many elements as the shape says.
    pub fn from_vec<T: Element>(items: Vec<T>, shape: &[usize]) -> Result<Self> {
        let shape = Shape::new(shape)?;
        let numel = layout::numel(&shape, size_of::<T>())?;
        if numel != items.len() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("shape {shape:?} has {numel} elements, but {} were given", items.len()),
            ));
        }
        Tensor::whole(Arc::new(HostBuffer::from_vec(items)), shape, T::DTYPE)
    }

    /// A tensor with a copy of those elements in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::from_vec`].
    pub fn from_slice<T: Element>(items: &[T], shape: &[usize]) -> Result<Self> {
        Tensor::from_vec(items.to_vec(), shape)
    }

    /// A tensor without dimensions that holds the value.
    ///
    /// # Errors
    /// As [`Scalar::check`] where the dtype can't hold the value.
    pub fn from_scalar(value: Scalar, dtype: DType) -> Result<Self> {
        Tensor::full(&[], value, dtype, Device::CPU)
    }

    /// A view of memory that an external object owns: `first` is the address of the element at
    /// index zero, and strides count elements.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] when shape and strides differ in length or overflow,
    /// [`ErrorKind::Value`] when `first` is null although there are elements, or isn't aligned.
    ///
    /// # Safety
    /// While the owner's object lives, every element that shape and strides reach from `first`, and
    /// what lies between them, is readable and initialised (on the host if `device` is the CPU, else
    /// on that device), and writable unless `read_only`. If the owner is borrowed, the tensor is
    /// dropped before the object is.
    #[inline]
    pub unsafe fn from_external(
        owner: ExternalOwner,
        first: *mut u8,
        shape: Shape,
        strides: Strides,
        dtype: DType,
        device: Device,
        read_only: bool,
    ) -> Result<Self> {
        if shape.len() != strides.len() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("{} strides don't fit shape {shape:?}: one each is needed", strides.len()),
            ));
        }
        let numel = layout::numel(&shape, dtype.size())?;
        let Span { low, offset, len } = Span::of(first, dtype, &shape, &strides)?;
        // SAFETY: the span is what the caller vouches for.
        let buffer =
            unsafe { BufferHandle::external(owner, low, len, dtype, device, read_only) }?;
        Ok(Tensor::assume_inside(buffer, shape, strides, offset, numel))
    }
}

#[cfg(test)]
mod tests {
    use keyfold_core::{Complex, DeviceType};

    use super::*;

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

    #[test]
    fn spans_find_the_lowest_element_and_refuse_what_no_memory_has() {
        let first = std::ptr::without_provenance_mut::<u8>(8000);
        let span = Span::of(first, DType::F64, &[3, 2], &[-2, 5]).unwrap();
        assert_eq!((span.low.addr().get(), span.offset, span.len), (8000 - 32, 4, 10));
        let kind = |first, shape: &[usize], strides: &[isize]| {
            Span::of(first, DType::F64, shape, strides).map(|_| ()).unwrap_err().kind()
        };
        assert_eq!(kind(first, &[2000], &[-1]), ErrorKind::Shape);
        assert_eq!(kind(first, &[2], &[isize::MAX / 4]), ErrorKind::Shape);
        assert_eq!(kind(std::ptr::null_mut(), &[1], &[1]), ErrorKind::Value);
        let last = std::ptr::without_provenance_mut::<u8>(usize::MAX - 7);
        assert_eq!(kind(last, &[2], &[1]), ErrorKind::Shape);
        assert_eq!(Span::of(std::ptr::null_mut(), DType::F64, &[0], &[1]).unwrap().len, 0);
    }
}
