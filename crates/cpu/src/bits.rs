//! Elements as plain bits, whatever the dtype: for what moves elements and doesn't look at them.

use keyfold_core::{Complex, Error, ErrorKind, Result, layout};
use keyfold_tensor::Tensor;

/// A type without padding that every bit pattern is a value of.
///
/// # Safety
/// That has to be true.
pub(crate) unsafe trait Bits: Copy + Send + Sync + 'static {}

macro_rules! bits {
    // A macro, since a trait without methods has nothing that a function could do instead.
    ($($type:ty),*) => {$(
        // SAFETY: numbers, and arrays of them, have no padding, and every bit pattern is a number.
        unsafe impl Bits for $type {}
    )*};
}

bits!(u8, u16, u32, u64, [u32; 2], [u64; 2], f32, f64);

// SAFETY: a complex number is its two parts behind each other.
unsafe impl Bits for Complex<f32> {}
// SAFETY: as above.
unsafe impl Bits for Complex<f64> {}

/// The address of the first element of a tensor on the host, whose elements have the size of `B`.
#[inline]
fn address<B: Bits>(x: &Tensor) -> Result<*mut B> {
    let dtype = x.dtype();
    // A complex number is aligned as its parts are, any other as its size.
    let is_aligned = align_of::<B>() < size_of::<B>() || !dtype.is_complex();
    if dtype.size() != size_of::<B>() || !is_aligned {
        let message =
            format!("elements of {dtype} aren't {} in memory", std::any::type_name::<B>());
        return Err(Error::new(ErrorKind::DType, message));
    }
    if x.is_pinned() {
        return Ok(x.pinned_ptr().cast());
    }
    locate(x)
}

/// As [`address`], of memory that isn't the host's, or that another library may move.
#[cold]
fn locate<B: Bits>(x: &Tensor) -> Result<*mut B> {
    if !x.device().kind().is_host() {
        let message = format!("a tensor on {} isn't in the host's memory", x.device());
        return Err(Error::new(ErrorKind::Device, message));
    }
    let ptr = x.raw_data_ptr()?;
    if ptr.is_null() && x.numel() > 0 {
        let message = format!("a tensor of shape {:?} has no memory", x.shape());
        return Err(Error::new(ErrorKind::NotSupported, message));
    }
    Ok(ptr.cast())
}

/// The memory between the first and the last element that a view touches, and the place of the first
/// (index zero) in it, as of [`Tensor::as_strided_slice`].
///
/// # Errors
/// [`ErrorKind::DType`] where elements have another size than `B`, [`ErrorKind::Device`] where they aren't
/// in the host's memory.
pub(crate) fn strided<B: Bits>(x: &Tensor) -> Result<(&[B], usize)> {
    let ptr = address::<B>(x)?;
    let Some((first, last)) = layout::bounds(x.shape(), x.strides(), x.offset())? else {
        return Ok((&[], 0));
    };
    let ahead = x.offset() - first;
    // SAFETY: `first..=last` lie inside the buffer, as the view's bounds were checked when it was made;
    // elements have the size and the alignment of `B`, of which every bit pattern is a value; the memory is
    // initialised and only unsafe code writes to it.
    let bits = unsafe { std::slice::from_raw_parts(ptr.wrapping_sub(ahead), last - first + 1) };
    Ok((bits, ahead))
}

/// The address of the first element, to write through.
///
/// # Errors
/// As [`strided`] and [`Tensor::begin_write`].
pub(crate) fn to_write<B: Bits>(out: &Tensor) -> Result<*mut B> {
    out.begin_write()?;
    address(out)
}

#[cfg(test)]
mod tests {
    use keyfold_core::{DType, Device, Scalar};

    use super::*;

    #[test]
    fn elements_of_the_same_size_are_read_as_bits() {
        let x = Tensor::from_slice(&[1.0_f32, -2.0, 0.5], &[3]).unwrap();
        assert_eq!(strided::<u32>(&x).unwrap(), (&[0x3f80_0000, 0xc000_0000, 0x3f00_0000][..], 0));
        assert_eq!(strided::<u16>(&x).unwrap_err().kind(), ErrorKind::DType);
        let meta = Tensor::full(&[3], Scalar::Int(0), DType::F32, Device::META).unwrap();
        assert_eq!(strided::<u32>(&meta).unwrap_err().kind(), ErrorKind::Device);
    }

    #[test]
    fn complex_numbers_are_aligned_as_their_parts() {
        let one = Scalar::Complex(Complex::new(1.0, 0.0));
        let x = Tensor::full(&[2], one, DType::C64, Device::CPU).unwrap();
        assert_eq!(strided::<[u32; 2]>(&x).unwrap().0, [[0x3f80_0000, 0]; 2]);
        assert_eq!(strided::<u64>(&x).unwrap_err().kind(), ErrorKind::DType);
        let empty = Tensor::full(&[0], one, DType::C128, Device::CPU).unwrap();
        assert_eq!(strided::<[u64; 2]>(&empty).unwrap(), (&[][..], 0));
    }
}
