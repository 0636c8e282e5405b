//! [`Tensor`]: a typed, strided view of a buffer, with its dispatch keys.

mod access;
mod attached;
mod construct;
mod elsewhere;
mod external;
mod overlap;
mod view;

pub use access::before_lending;
pub use attached::Attached;
use attached::AttachmentSlot;
pub(crate) use external::Span;
pub use overlap::{Overlap, overlap};

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Shape, Strides, layout};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Tag};

use crate::buffer::BufferHandle;

/// A multi-dimensional array of one dtype on one device.
///
/// It is a view: shape, strides (in elements, possibly negative or zero) and an offset into a
/// buffer that it may share with other views. All elements lie inside the buffer, which is checked
/// at construction. The struct is plain data and allocates nothing up to six dimensions.
///
/// The key set holds the device's backend key, Autograd while the tensor requires grad, and keys
/// added by [`Tensor::insert_key`].
///
/// ```
/// use keyfold_tensor::Tensor;
/// let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// let y = x.transpose(0, 1)?; // a view
/// assert_eq!(&y.shape()[..], &[3, 2]);
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// # Ok::<(), keyfold_core::Error>(())
/// ```
pub struct Tensor {
    buffer: BufferHandle,
    /// The host address of the buffer's first element, on the CPU. Null for memory that only a
    /// device can access, and for memory that may move or isn't filled yet: then every access asks
    /// the buffer.
    base: *mut u8,
    shape: Shape,
    strides: Strides,
    /// The distance from the buffer's start to the first element, in elements.
    offset: usize,
    numel: usize,
    /// Bits of the key set. Relaxed accesses suffice: a key selects kernels and orders no other
    /// memory.
    keys: AtomicU64,
    /// The caller's object that this is a view of; 0 for none.
    token: usize,
    /// Whether it was made as a view of another tensor.
    alias: bool,
    /// A layer's attachment, set only while `keys` has a functionality key, or once had one.
    attached: AttachmentSlot,
}

// SAFETY: `base` points into the memory that `buffer` keeps alive, which any thread may use.
unsafe impl Send for Tensor {}
// SAFETY: shared references only read memory; writing is unsafe, and its callers rule out data
// races.
unsafe impl Sync for Tensor {}

impl Clone for Tensor {
    /// Returns another handle to the same view: same memory, keys, token and attachment.
    fn clone(&self) -> Self {
        let buffer = self.buffer.clone();
        // A borrowed external object is held differently by the clone, so its address may change.
        let base = if self.buffer.is_external() { buffer.host_ptr() } else { self.base };
        Tensor {
            buffer,
            base,
            shape: self.shape.clone(),
            strides: self.strides.clone(),
            offset: self.offset,
            numel: self.numel,
            keys: AtomicU64::new(self.keys.load(Ordering::Relaxed)),
            token: self.token,
            alias: self.alias,
            attached: self.attached.share(self.keys()),
        }
    }
}

#[inline]
fn backend_keys(device: Device) -> u64 {
    DispatchKeySet::EMPTY.insert(DispatchKey::from_device_type(device.kind())).bits()
}

impl Tensor {
    /// Returns a view of a buffer: element `[i, j, ..]` is `offset + i * strides[0] + j *
    /// strides[1] + ..`.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if shape and strides differ in length, the element count overflows, or
    /// an element would lie outside the buffer.
    pub fn from_parts(
        buffer: BufferHandle,
        shape: Shape,
        strides: Strides,
        offset: usize,
    ) -> Result<Self> {
        if shape.len() != strides.len() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("{} strides don't fit shape {shape:?}: one each is needed", strides.len()),
            ));
        }
        let numel = layout::numel(&shape, buffer.dtype().size())?;
        let len = buffer.current_len();
        let fits = match layout::bounds(&shape, &strides, offset)? {
            Some((_, last)) => last < len,
            None => offset <= len,
        };
        if !fits {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a view of shape {shape:?}, strides {strides:?} and offset {offset} reaches \
                     beyond its buffer of {len} elements"
                ),
            ));
        }
        Ok(Tensor::assume_inside(buffer, shape, strides, offset, numel))
    }

    /// Returns a view whose bounds were checked.
    #[inline]
    pub(crate) fn assume_inside(
        buffer: BufferHandle,
        shape: Shape,
        strides: Strides,
        offset: usize,
        numel: usize,
    ) -> Self {
        let keys = AtomicU64::new(backend_keys(buffer.device()));
        let base = buffer.host_ptr();
        let attached = AttachmentSlot::empty();
        Tensor {
            buffer,
            base,
            shape,
            strides,
            offset,
            numel,
            keys,
            token: 0,
            alias: false,
            attached,
        }
    }

    /// Returns the handle to the memory.
    #[inline]
    pub fn buffer(&self) -> &BufferHandle {
        &self.buffer
    }

    /// Returns the handle to the memory, without the view.
    pub fn into_buffer(self) -> BufferHandle {
        self.buffer
    }

    /// Returns the element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.buffer.dtype()
    }

    /// Returns the device of the memory.
    #[inline]
    pub fn device(&self) -> Device {
        self.buffer.device()
    }

    /// Returns the size of each dimension.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the step along each dimension, in elements.
    #[inline]
    pub fn strides(&self) -> &Strides {
        &self.strides
    }

    /// Returns the distance from the buffer's start to the first element, in elements.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of dimensions.
    #[inline]
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements.
    #[inline]
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// Returns the total size of the elements in bytes, without gaps.
    #[inline]
    pub fn nbytes(&self) -> usize {
        self.numel * self.dtype().size()
    }

    /// Returns the dispatch keys.
    #[inline]
    pub fn keys(&self) -> DispatchKeySet {
        DispatchKeySet::from_bits(self.keys.load(Ordering::Relaxed))
    }

    /// Returns the tensor's tag for a call: its keys, its device, and whether it has no dimensions.
    #[inline]
    pub fn tag(&self) -> Tag {
        Tag::new(self.keys(), self.device(), self.shape.is_empty())
    }

    /// Adds a functionality key (Quantized, or a user's) to the tensor's keys.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a backend key, which follows from the device, and for Autograd,
    /// which [`Tensor::set_requires_grad`] sets.
    pub fn insert_key(&self, key: DispatchKey) -> Result<()> {
        if key.is_backend() || key == DispatchKey::Autograd {
            return Err(Error::new(
                ErrorKind::Value,
                format!(
                    "the key {key} can't be added to a tensor: backend keys follow its device, \
                     and Autograd follows requires_grad"
                ),
            ));
        }
        let bits = DispatchKeySet::EMPTY.insert(key).bits();
        self.keys.fetch_or(bits, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether operations on the tensor are recorded for gradients.
    #[inline]
    pub fn requires_grad(&self) -> bool {
        self.keys.load(Ordering::Relaxed) & AUTOGRAD != 0
    }

    /// Enables or disables recording for gradients, for this tensor but not for its views.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] if the dtype is neither floating nor complex.
    pub fn set_requires_grad(&self, requires_grad: bool) -> Result<()> {
        let dtype = self.dtype();
        if requires_grad && !dtype.is_floating() && !dtype.is_complex() {
            return Err(Error::new(
                ErrorKind::DType,
                format!("a tensor of dtype {dtype} can't require grad; use a float or complex one"),
            ));
        }
        if requires_grad {
            self.keys.fetch_or(AUTOGRAD, Ordering::Relaxed);
        } else {
            self.keys.fetch_and(!AUTOGRAD, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the caller's object that this tensor is a view of; 0 for none.
    #[inline]
    pub fn token(&self) -> usize {
        self.token
    }

    /// Sets the token.
    #[inline]
    pub fn set_token(&mut self, token: usize) {
        self.token = token;
    }

    /// Marks the tensor as a view of the caller's object with that address.
    #[inline]
    #[must_use]
    pub fn with_token(mut self, token: usize) -> Self {
        self.token = token;
        self
    }

    /// Returns whether it was made as a view of another tensor, with which it may share elements.
    #[inline]
    pub fn is_view(&self) -> bool {
        self.alias
    }

    /// Marks the tensor as a view.
    #[must_use]
    pub fn into_view(mut self) -> Self {
        self.alias = true;
        self
    }

    /// Marks the tensor as no view, if nothing else refers to its memory.
    #[must_use]
    pub fn into_whole(mut self) -> Self {
        self.set_whole();
        self
    }

    /// As [`into_whole`](Self::into_whole), in place.
    #[inline]
    pub fn set_whole(&mut self) {
        self.alias = false;
    }

    /// Returns the number of in-place writes to the memory, as far as keyfold knows (see
    /// [`BufferHandle::version`]).
    #[inline]
    pub fn version(&self) -> u32 {
        self.buffer.version()
    }

    /// Counts an in-place write that isn't counted otherwise: through [`Tensor::raw_data_ptr`], or
    /// by another library.
    pub fn note_write(&self) {
        self.buffer.bump_version();
    }

    /// Gives the tensor a version counter, which other libraries' memory lacks. For a tensor that
    /// outlives the call.
    #[inline]
    pub fn track(&mut self) {
        // keyfold's own memory has a counter already.
        if self.buffer.is_external() {
            self.track_external();
        }
    }

    #[inline(never)]
    fn track_external(&mut self) {
        self.buffer = self.buffer.clone().into_tracked();
        self.base = self.buffer.host_ptr();
    }

    /// Returns whether the elements lie in row-major order without gaps.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        layout::is_contiguous(&self.shape, &self.strides)
    }

    /// Returns whether the memory may be written.
    #[inline]
    pub fn is_writable(&self) -> bool {
        !self.buffer.is_read_only()
    }

    /// Returns whether two indices may be the same element (as in a broadcast tensor), so that
    /// writing element by element is ill-defined.
    pub fn may_overlap_itself(&self) -> bool {
        layout::may_overlap(&self.shape, &self.strides)
    }

    /// Makes the view read-only.
    #[must_use]
    pub fn into_read_only(mut self) -> Self {
        self.buffer = self.buffer.into_read_only();
        self
    }
}

const AUTOGRAD: u64 = DispatchKeySet::EMPTY.insert(DispatchKey::Autograd).bits();

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor(shape={:?}, strides={:?}, offset={}, dtype={}, device={}, keys={})",
            self.shape,
            self.strides,
            self.offset,
            self.dtype(),
            self.device(),
            self.keys()
        )
    }
}
