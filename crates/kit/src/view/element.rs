//! The load of one element.

use keyfold_core::{DType, Element, Scalar};

/// Loads one element. A bool's byte may come from another library and be neither 0 nor 1, which Rust's
/// `bool` must not be: it is loaded as a byte, and anything but 0 is true.
///
/// # Safety
/// `ptr` is valid for reading an initialised, aligned element of `T`'s dtype.
#[inline(always)]
pub(crate) unsafe fn load<T: Element>(ptr: *const T) -> T {
    if matches!(T::DTYPE, DType::Bool) {
        // SAFETY: a bool element is one initialised byte.
        let byte = unsafe { ptr.cast::<u8>().read() };
        return T::from_scalar(Scalar::Bool(byte != 0));
    }
    // SAFETY: the caller's promise; all other elements are valid whatever their bits.
    unsafe { ptr.read() }
}
