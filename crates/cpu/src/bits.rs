//! Elements as plain bits of their size: for kernels that move elements without interpreting them.

use keyfold_core::{Complex, Error, ErrorKind, Result, bf16, f16, layout};
use keyfold_tensor::Tensor;

/// A type without padding for which every bit pattern is a value.
///
/// # Safety
/// Both properties must hold.
pub(crate) unsafe trait Bits: Copy + Send + Sync + 'static {}

macro_rules! bits {
    // A macro, since a trait without methods leaves nothing for a function to do.
    ($($type:ty),*) => {$(
        // SAFETY: numbers, and arrays of numbers, have no padding, and every bit pattern is a value.
        unsafe impl Bits for $type {}
    )*};
}

bits!(u8, u16, u32, u64, i64, [u32; 2], [u64; 2], f16, bf16, f32, f64);

// SAFETY: a complex number is its two parts, without padding.
unsafe impl Bits for Complex<f32> {}
// SAFETY: as above.
unsafe impl Bits for Complex<f64> {}

/// Returns the address of the first element of a tensor on the host, whose elements have the size of
/// `B`.
#[inline]
fn address<B: Bits>(x: &Tensor) -> Result<*mut B> {
    let dtype = x.dtype();
    // A complex number is aligned like its parts, any other element to its size.
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

/// As [`address`], for memory that isn't the host's or that another library may move.
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

/// Returns the memory between the lowest and the highest element of a view, and the offset of the first
/// element (index zero) in it, as [`Tensor::as_strided_slice`].
///
/// # Errors
/// [`ErrorKind::DType`] if elements have another size than `B`, [`ErrorKind::Device`] if they aren't in
/// the host's memory.
pub(crate) fn strided_slice<B: Bits>(x: &Tensor) -> Result<(&[B], usize)> {
    let ptr = address::<B>(x)?;
    let Some((first, last)) = layout::bounds(x.shape(), x.strides(), x.offset())? else {
        return Ok((&[], 0));
    };
    let ahead = x.offset() - first;
    // SAFETY: `first..=last` lie inside the buffer, as the view's bounds were checked when it was made;
    // elements have the size and the alignment of `B`, for which every bit pattern is a value; the
    // memory is initialised, and only unsafe code writes to it.
    let bits = unsafe { std::slice::from_raw_parts(ptr.wrapping_sub(ahead), last - first + 1) };
    Ok((bits, ahead))
}

/// Returns the address of the first element, for writing.
///
/// # Errors
/// As [`strided_slice`] and [`Tensor::begin_write`].
pub(crate) fn ptr_for_writing<B: Bits>(out: &Tensor) -> Result<*mut B> {
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
        assert_eq!(
            strided_slice::<u32>(&x).unwrap(),
            (&[0x3f80_0000, 0xc000_0000, 0x3f00_0000][..], 0)
        );
        assert_eq!(strided_slice::<u16>(&x).unwrap_err().kind(), ErrorKind::DType);
        let meta = Tensor::full(&[3], Scalar::Int(0), DType::F32, Device::META).unwrap();
        assert_eq!(strided_slice::<u32>(&meta).unwrap_err().kind(), ErrorKind::Device);
    }

    #[test]
    fn complex_numbers_are_aligned_as_their_parts() {
        let one = Scalar::Complex(Complex::new(1.0, 0.0));
        let x = Tensor::full(&[2], one, DType::C64, Device::CPU).unwrap();
        assert_eq!(strided_slice::<[u32; 2]>(&x).unwrap().0, [[0x3f80_0000, 0]; 2]);
        assert_eq!(strided_slice::<u64>(&x).unwrap_err().kind(), ErrorKind::DType);
        let empty = Tensor::full(&[0], one, DType::C128, Device::CPU).unwrap();
        assert_eq!(strided_slice::<[u64; 2]>(&empty).unwrap(), (&[][..], 0));
    }
}
