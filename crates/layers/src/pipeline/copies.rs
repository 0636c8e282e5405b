//! Copies of other libraries' arrays. Such an array is copied when a call is recorded, since later writes
//! to it can't be seen. Calls that follow read the same copy, as long as the array is still equal to it.

use keyfold_core::{DType, Device, Result, Shape, Strides};
use keyfold_tensor::Tensor;
use rustc_hash::FxHashMap;

use super::session::Session;

/// The last copy of each array that waiting operations read, by the array's address and dtype. Operations that ran
/// leave it at the end of the run.
pub(super) type Copies = FxHashMap<(usize, DType), Tensor>;

/// Returns a copy of an array, and whether it was made now.
pub(super) fn copy_of(session: &Session, array: &Tensor) -> Result<(Tensor, bool)> {
    // Memory that moves, or is a device's, is copied each time.
    let bytes = match array.device() == Device::CPU && array.is_contiguous() {
        true => bytes_of(array).ok(),
        false => None,
    };
    let Some(bytes) = bytes.as_ref().and_then(|bytes| bytes.as_slice::<u8>().ok()) else {
        return Ok((array.copy()?, true));
    };
    let key = (bytes.as_ptr().addr(), array.dtype());
    let known = session.lock().copies.get(&key).cloned();
    if let Some(copy) = known.filter(|copy| copy.shape() == array.shape())
        && bytes_of(&copy)?.as_slice::<u8>()? == bytes
    {
        return Ok((copy, false));
    }
    let copy = array.copy()?;
    let old = session.lock().copies.insert(key, copy.clone());
    // Without the lock, since large memory is given back.
    drop(old);
    Ok((copy, true))
}

/// Returns the bytes of a contiguous tensor on the host.
pub(super) fn bytes_of(tensor: &Tensor) -> Result<Tensor> {
    let buffer = tensor.buffer().clone().with_dtype(DType::U8)?;
    let offset = tensor.offset() * tensor.dtype().size();
    let (shape, strides) = (Shape::new(&[tensor.nbytes()])?, Strides::new(&[1])?);
    Tensor::from_parts(buffer, shape, strides, offset)
}
