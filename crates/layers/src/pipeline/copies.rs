//! Copies of other libraries' arrays. Such an array is copied when a call is recorded, since later writes
//! to it can't be seen. Calls that follow read the same copy, as long as the array is still equal to it.

use keyfold_core::{DType, Device, Result, Shape, Strides};
use keyfold_tensor::{Tensor, ValueRef};
use rustc_hash::FxHashMap;

use super::operation::for_each_tensor;
use super::session::Session;

/// The last copy of each array that waiting operations read, by the array's address and dtype. Operations that ran
/// leave it at the end of the run.
pub(super) type Copies = FxHashMap<(usize, DType), Tensor>;

/// The most memory that a copy with all gaps takes, in multiples of the array's elements.
const MOST: usize = 4;

/// Returns a copy of an array, and whether it was made now. It has the array's strides, or [smaller ones of the
/// same kind](Tensor::copy_compact): kernels of other layouts may compute other digits.
pub(super) fn copy_of(session: &Session, array: &Tensor) -> Result<(Tensor, bool)> {
    // Memory that moves, or is a device's, is copied each time.
    let span = span_of(array).filter(|_| array.device() == Device::CPU);
    let bytes = span.as_ref().and_then(|span| memory_of(array, span).ok());
    let bytes = bytes.as_ref().and_then(|bytes| bytes.as_slice::<u8>().ok());
    let (Some(span), Some(bytes)) = (span, bytes) else { return Ok((array.copy_compact()?, true)) };
    let key = (bytes.as_ptr().addr(), array.dtype());
    let known = session.lock_as_is().copies.get(&key).cloned();
    let is_alike =
        |copy: &Tensor| copy.shape() == array.shape() && copy.strides() == array.strides();
    if let Some(copy) = known.filter(is_alike)
        && memory_of(&copy, &span)?.as_slice::<u8>()? == bytes
    {
        return Ok((copy, false));
    }
    let memory = memory_of(array, &span)?.copy()?.into_buffer().with_dtype(array.dtype())?;
    let (shape, strides) = (array.shape().clone(), array.strides().clone());
    let copy = Tensor::from_parts(memory, shape, strides, span.first)?;
    let old = session.lock_as_is().copies.insert(key, copy.clone());
    // Without the lock, since large memory is given back.
    drop(old);
    Ok((copy, true))
}

/// Returns whether an array still has the elements that a copy of it has.
pub(super) fn is_copy_of(copy: &Tensor, array: &Tensor) -> Result<bool> {
    let span = span_of(array).filter(|_| array.device() == Device::CPU);
    if let Some(span) = span.filter(|_| copy.strides() == array.strides()) {
        let [own, others] = [memory_of(copy, &span)?, memory_of(array, &span)?];
        return Ok(own.as_slice::<u8>()? == others.as_slice::<u8>()?);
    }
    let elements = |tensor: &Tensor| {
        let host = tensor.to_device(Device::CPU)?.copy()?;
        contiguous_bytes(&host, 0, host.numel())
    };
    Ok(elements(copy)?.as_slice::<u8>()? == elements(array)?.as_slice::<u8>()?)
}

/// The most bytes of another library's array that a recorder copies.
const MOST_RECORDED: usize = 1 << 30;

/// Returns whether arrays of other libraries among arguments are too large for copies that are made but to be compared.
pub(super) fn are_too_large(args: &[ValueRef<'_>]) -> bool {
    let mut found = false;
    for arg in args {
        for_each_tensor(*arg, &mut |tensor| {
            found |= tensor.buffer().is_lent() && tensor.nbytes() > MOST_RECORDED;
        });
    }
    found
}

/// Returns the size of the memory that a copy has.
pub(super) fn bytes_of(copy: &Tensor) -> u64 {
    (copy.buffer().len() * copy.dtype().size()) as u64
}

/// The memory between the elements with the lowest and the highest address.
struct Span {
    elements: usize,
    /// The place of the tensor's first element in it.
    first: usize,
}

/// Returns the memory that a tensor's elements lie in; `None` for much more than the tensor has.
fn span_of(tensor: &Tensor) -> Option<Span> {
    let mut span = Span { elements: 1, first: 0 };
    for (size, stride) in tensor.shape().iter().zip(tensor.strides().iter()) {
        let reach = size.checked_sub(1)?.checked_mul(stride.unsigned_abs())?;
        span.elements = span.elements.checked_add(reach)?;
        span.first += if *stride < 0 { reach } else { 0 };
    }
    let is_dense = span.elements <= tensor.numel().checked_mul(MOST)?;
    (is_dense && span.first <= tensor.offset()).then_some(span)
}

/// Returns the bytes of the memory that a tensor's elements lie in.
fn memory_of(tensor: &Tensor, span: &Span) -> Result<Tensor> {
    contiguous_bytes(tensor, tensor.offset() - span.first, span.elements)
}

/// Returns the bytes of that many elements of a tensor's memory on the host, from the one at `offset` on.
pub(super) fn contiguous_bytes(tensor: &Tensor, offset: usize, elements: usize) -> Result<Tensor> {
    let size = tensor.dtype().size();
    let buffer = tensor.buffer().clone().with_dtype(DType::U8)?;
    let (shape, strides) = (Shape::new(&[elements * size])?, Strides::new(&[1])?);
    Tensor::from_parts(buffer, shape, strides, offset * size)
}
