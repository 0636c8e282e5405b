//! Views of other libraries' memory.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Shape, Strides, layout};

use super::{AttachmentSlot, Tensor, backend_keys};
use crate::buffer::{BufferHandle, ExternalOwner};

/// The memory of a strided view: the lowest element's address, the first element's offset from
/// there, and the number of elements in between, both ends included.
pub(crate) struct Span {
    pub(crate) low: NonNull<u8>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Span {
    /// Computes it from the address of the first element, without accessing memory.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] on overflow, [`ErrorKind::Value`] if there are elements but `first` is
    /// null.
    #[inline]
    pub(crate) fn of(
        first: *mut u8,
        dtype: DType,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Span> {
        let size = dtype.size();
        let Some((low, high)) = layout::reach(shape, strides)? else {
            // Nothing is read; any aligned address will do.
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
    /// Returns a view of an external object's memory: `first` is the address of the element at
    /// index zero, and strides count elements.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if shape and strides differ in length or overflow, [`ErrorKind::Value`]
    /// if `first` is null although there are elements, or isn't aligned.
    ///
    /// # Safety
    /// While the owner's object lives, every element that shape and strides reach from `first`, and
    /// the memory between them, is readable and initialised (on the host if `device` is the CPU,
    /// else on that device), and writable unless `read_only`. If the owner is borrowed, the tensor
    /// is dropped before the object.
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
        // SAFETY: the caller's contract covers the span.
        let buffer = unsafe { BufferHandle::external(owner, low, len, dtype, device, read_only) }?;
        Ok(Tensor::assume_inside(buffer, shape, strides, offset, numel))
    }

    /// As [`Tensor::from_external`], with NumPy's types: signed sizes, and strides in bytes.
    ///
    /// # Errors
    /// As [`Tensor::from_external`], and [`ErrorKind::Value`] for a stride that isn't a multiple of
    /// the element size.
    ///
    /// # Safety
    /// As [`Tensor::from_external`].
    #[inline]
    pub unsafe fn from_external_bytes(
        owner: ExternalOwner,
        first: *mut u8,
        sizes: &[isize],
        byte_strides: &[isize],
        dtype: DType,
        device: Device,
        read_only: bool,
    ) -> Result<Self> {
        let mut slot = MaybeUninit::uninit();
        // SAFETY: the caller's contract; the slot is read only after it was written.
        unsafe {
            Self::write_external_bytes(
                &mut slot,
                owner,
                first,
                sizes,
                byte_strides,
                dtype,
                device,
                read_only,
            )?;
            Ok(slot.assume_init())
        }
    }

    /// As [`Tensor::from_external_bytes`], written into the caller's memory. Every array argument
    /// of a call takes this path, so it makes one pass over the dimensions, and moves nothing
    /// afterwards. After `Ok` the slot holds a tensor, which the caller drops.
    ///
    /// # Errors
    /// As [`Tensor::from_external_bytes`]; the slot is then uninitialised.
    ///
    /// # Safety
    /// As [`Tensor::from_external`].
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the fields of an array, and where it goes")]
    pub unsafe fn write_external_bytes(
        slot: &mut MaybeUninit<Tensor>,
        owner: ExternalOwner,
        first: *mut u8,
        sizes: &[isize],
        byte_strides: &[isize],
        dtype: DType,
        device: Device,
        read_only: bool,
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe {
            let of = (sizes, byte_strides);
            Self::write_view::<true>(slot, owner, first, of, dtype, device, read_only)
        }
    }

    /// As [`Tensor::write_external_bytes`], with strides in elements.
    ///
    /// # Errors
    /// As [`Tensor::write_external_bytes`].
    ///
    /// # Safety
    /// As [`Tensor::from_external`].
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the fields of an array, and where it goes")]
    pub unsafe fn write_external(
        slot: &mut MaybeUninit<Tensor>,
        owner: ExternalOwner,
        first: *mut u8,
        sizes: &[isize],
        strides: &[isize],
        dtype: DType,
        device: Device,
        read_only: bool,
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe {
            let of = (sizes, strides);
            Self::write_view::<false>(slot, owner, first, of, dtype, device, read_only)
        }
    }

    /// The common implementation: strides count bytes if `BYTES`, else elements.
    ///
    /// # Safety
    /// As [`Tensor::from_external`].
    #[inline(always)]
    unsafe fn write_view<const BYTES: bool>(
        slot: &mut MaybeUninit<Tensor>,
        owner: ExternalOwner,
        first: *mut u8,
        (sizes, given): (&[isize], &[isize]),
        dtype: DType,
        device: Device,
        read_only: bool,
    ) -> Result<()> {
        let element = dtype.size();
        let shift = element.trailing_zeros();
        let place = slot.as_mut_ptr();
        // SAFETY: the fields lie in the slot; they are written before they are borrowed. If they
        // are abandoned on an error, they own only heap memory, which is freed below.
        let (shape, strides) = unsafe {
            (&raw mut (*place).shape).write(Shape::filled(0, sizes.len())?);
            (&raw mut (*place).strides).write(Strides::filled(0, sizes.len())?);
            (&mut (*place).shape, &mut (*place).strides)
        };
        // The reach below and above the first element, and the size of all elements, in bytes.
        // Anything outside the common case sets the flag, and the slow path below makes the error.
        let (mut low, mut high, mut bytes) = (0_isize, 0_isize, element as isize);
        let mut odd = sizes.len() != given.len();
        let pairs = sizes.iter().zip(given);
        for ((size, stride), (&n, &step)) in shape.iter_mut().zip(strides.iter_mut()).zip(pairs) {
            *size = n as usize;
            let (step, overflow) = match BYTES {
                true => (step, false),
                false => step.overflowing_mul(element as isize),
            };
            *stride = step >> shift;
            odd |= overflow;
            // Empty arrays have any address and strides, so they take the slow path, too.
            odd |= n < 1 || (n > 1 && step & (element as isize - 1) != 0);
            let (count, overflow) = bytes.overflowing_mul(n);
            let (far, overflow_far) = step.overflowing_mul(n - 1);
            let (down, overflow_down) = low.overflowing_add(far.min(0));
            let (up, overflow_up) = high.overflowing_add(far.max(0));
            odd |= overflow | overflow_far | overflow_down | overflow_up;
            (bytes, low, high) = (count, down, up);
        }
        odd |= first.addr().checked_add_signed(low).is_none();
        odd |= first.addr().checked_add_signed(high).is_none();
        odd |= first.is_null() || first.addr() & (dtype.align() - 1) != 0;
        let lowest = NonNull::new(first.wrapping_offset(low));
        let (Some(lowest), false) = (lowest, odd) else {
            // SAFETY: both were written above and aren't used any more; the caller's contract is
            // the same.
            unsafe {
                std::ptr::drop_in_place(shape);
                std::ptr::drop_in_place(strides);
                slot.write(match BYTES {
                    true => {
                        Self::from_odd_bytes(owner, first, sizes, given, dtype, device, read_only)?
                    }
                    false => Self::from_odd(owner, first, sizes, given, dtype, device, read_only)?,
                });
            }
            return Ok(());
        };
        // Both ends are addresses, so their distance fits an unsigned word.
        let len = (high.wrapping_sub(low) as usize >> shift) + 1;
        let base = if device == Device::CPU { lowest.as_ptr() } else { std::ptr::null_mut() };
        // SAFETY: the caller's contract covers the span, and the address is aligned. The fields
        // written here and above are all fields of a tensor.
        unsafe {
            (&raw mut (*place).buffer).write(BufferHandle::external_aligned(
                owner, lowest, len, dtype, device, read_only,
            ));
            (&raw mut (*place).base).write(base);
            (&raw mut (*place).offset).write(low.unsigned_abs() >> shift);
            (&raw mut (*place).numel).write(bytes as usize >> shift);
            (&raw mut (*place).keys).write(AtomicU64::new(backend_keys(device)));
            (&raw mut (*place).token).write(0);
            (&raw mut (*place).alias).write(false);
            (&raw mut (*place).attached).write(AttachmentSlot::empty());
        }
        Ok(())
    }

    /// The slow path: empty arrays, and errors.
    ///
    /// # Safety
    /// As [`Tensor::from_external`].
    #[cold]
    unsafe fn from_odd_bytes(
        owner: ExternalOwner,
        first: *mut u8,
        sizes: &[isize],
        byte_strides: &[isize],
        dtype: DType,
        device: Device,
        read_only: bool,
    ) -> Result<Self> {
        let element = dtype.size() as isize;
        let shape = shape_of(sizes)?;
        let mut strides = Strides::filled(0, byte_strides.len())?;
        let empty = shape.contains(&0);
        for (i, (stride, &given)) in strides.iter_mut().zip(byte_strides).enumerate() {
            if given % element != 0 && !empty && shape.get(i).is_some_and(|n| *n > 1) {
                return Err(Error::new(
                    ErrorKind::Value,
                    format!(
                        "the stride of dimension {i} is {given} bytes, which isn't a multiple of \
                         {element} as dtype {dtype} needs; make a copy"
                    ),
                ));
            }
            *stride = given.div_euclid(element);
        }
        // SAFETY: the caller's contract.
        unsafe { Self::from_external(owner, first, shape, strides, dtype, device, read_only) }
    }

    /// As `from_odd_bytes`, with strides in elements.
    ///
    /// # Safety
    /// As [`Tensor::from_external`].
    #[cold]
    unsafe fn from_odd(
        owner: ExternalOwner,
        first: *mut u8,
        sizes: &[isize],
        strides: &[isize],
        dtype: DType,
        device: Device,
        read_only: bool,
    ) -> Result<Self> {
        let (shape, strides) = (shape_of(sizes)?, Strides::new(strides)?);
        // SAFETY: the caller's contract.
        unsafe { Self::from_external(owner, first, shape, strides, dtype, device, read_only) }
    }
}

fn shape_of(sizes: &[isize]) -> Result<Shape> {
    let mut shape = Shape::filled(0, sizes.len())?;
    for (size, &given) in shape.iter_mut().zip(sizes) {
        *size = usize::try_from(given).map_err(|_| {
            Error::new(ErrorKind::Shape, format!("shape {sizes:?} has a negative size"))
        })?;
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use keyfold_core::Scalar;

    use super::*;

    #[test]
    fn external_arrays_are_viewed_whatever_their_layout() {
        unsafe fn nothing(_: *mut std::ffi::c_void) {}
        static OPS: crate::ExternalOps =
            crate::ExternalOps { retain: nothing, release: nothing, adopt: None };
        let mut data: Vec<f32> = (0..12_u8).map(f32::from).collect();
        let first = data.as_mut_ptr();
        let view = |place: usize, sizes: &[isize], strides: &[isize], extra: usize| {
            // SAFETY: the vector outlives every view, and layouts that reach beyond it are refused
            // or never read.
            unsafe {
                let owner = ExternalOwner::borrowed(NonNull::dangling(), &OPS);
                let first = first.add(place).cast::<u8>().wrapping_add(extra);
                let (dtype, device) = (DType::F32, Device::CPU);
                Tensor::from_external_bytes(owner, first, sizes, strides, dtype, device, false)
            }
        };
        let t = view(11, &[2, 3], &[-24, -4], 0).unwrap();
        assert_eq!(t.to_vec::<f32>().unwrap(), [11.0, 10.0, 9.0, 5.0, 4.0, 3.0]);
        assert_eq!((t.offset(), t.buffer().len(), t.numel()), (8, 9, 6));
        let t = view(2, &[2, 3], &[4, 12], 0).unwrap();
        assert_eq!(t.to_vec::<f32>().unwrap(), [2.0, 5.0, 8.0, 3.0, 6.0, 9.0]);
        assert_eq!(t.strides(), &[1, 3]);
        let t = view(3, &[4], &[0], 0).unwrap();
        assert_eq!(t.to_vec::<f32>().unwrap(), [3.0; 4]);
        let t = view(3, &[], &[], 0).unwrap();
        assert_eq!(t.item().unwrap(), Scalar::Float(3.0));
        let t = view(3, &[1, 2], &[7, 4], 0).unwrap();
        assert_eq!(t.to_vec::<f32>().unwrap(), [3.0, 4.0]);
        let t = view(0, &[0, 3], &[isize::MAX, 1], 1).unwrap();
        assert_eq!(t.numel(), 0);
        let cases = [
            (view(0, &[2], &[4], 1), ErrorKind::Value, "aligned"),
            (view(0, &[2], &[6], 0), ErrorKind::Value, "6 bytes"),
            (view(0, &[-1], &[4], 0), ErrorKind::Shape, "negative"),
            (view(0, &[2], &[4, 4], 0), ErrorKind::Shape, "strides"),
            (view(0, &[isize::MAX, 2], &[0, 0], 0), ErrorKind::Shape, "too large"),
            (view(0, &[1 << 40], &[isize::MAX - 3], 0), ErrorKind::Shape, "overflow"),
            (view(0, &[3], &[isize::MIN / 2], 0), ErrorKind::Shape, "address space"),
            (view(0, &[1; 65], &[4; 65], 0), ErrorKind::Shape, "65"),
        ];
        for (result, kind, word) in cases {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(word), "{error} should say {word}");
        }
    }

    #[test]
    fn strides_in_elements_say_the_same_as_in_bytes() {
        unsafe fn nothing(_: *mut std::ffi::c_void) {}
        static OPS: crate::ExternalOps =
            crate::ExternalOps { retain: nothing, release: nothing, adopt: None };
        let mut data: Vec<f64> = (0..12_u8).map(f64::from).collect();
        let first = data.as_mut_ptr().cast::<u8>();
        let view = |sizes: &[isize], strides: &[isize]| {
            let mut slot = MaybeUninit::uninit();
            // SAFETY: the vector outlives every view, and layouts that reach beyond it are refused.
            unsafe {
                let owner = ExternalOwner::borrowed(NonNull::dangling(), &OPS);
                let (dtype, device) = (DType::F64, Device::CPU);
                Tensor::write_external(
                    &mut slot, owner, first, sizes, strides, dtype, device, false,
                )?;
                Ok::<_, Error>(slot.assume_init())
            }
        };
        assert_eq!(
            view(&[2, 3], &[1, 4]).unwrap().to_vec::<f64>().unwrap(),
            [0.0, 4.0, 8.0, 1.0, 5.0, 9.0]
        );
        assert_eq!(view(&[3], &[0]).unwrap().to_vec::<f64>().unwrap(), [0.0; 3]);
        assert_eq!(view(&[0, 5], &[5, 1]).unwrap().numel(), 0);
        assert_eq!(view(&[1], &[isize::MAX]).unwrap().numel(), 1);
        assert_eq!(view(&[2], &[isize::MAX / 4]).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(view(&[-1], &[1]).unwrap_err().kind(), ErrorKind::Shape);
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
