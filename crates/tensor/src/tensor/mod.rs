//! [`Tensor`]: a typed, strided view of a buffer, with its dispatch keys.

mod access;
mod attached;
mod construct;
mod elsewhere;
mod external;
mod overlap;
mod view;

pub use attached::Attached;
use attached::Slot;
pub(crate) use external::Span;
pub use overlap::{Overlap, overlap};

#[cfg(test)]
mod model_tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Shape, Strides, layout};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Tag};

use crate::buffer::BufferHandle;

/// A multi-dimensional array of one dtype on one device.
///
/// It is a view: shape, strides (in elements; negative and zero ones included) and an offset into a
/// buffer that it shares with other views. All elements lie inside the buffer, which is checked when
/// the view is made. The struct itself is plain data, without an allocation up to six dimensions.
///
/// The key set holds the backend key of the device, Autograd while the tensor requires grad, and
/// whatever [`Tensor::insert_key`] added.
pub struct Tensor {
    buffer: BufferHandle,
    /// Where the host finds the buffer's first element, on the CPU; null for memory that only a device
    /// reaches, and for memory that may move or isn't filled yet, so that the buffer is asked at every
    /// access.
    base: *mut u8,
    shape: Shape,
    strides: Strides,
    /// From the buffer's start to the first element, in elements.
    offset: usize,
    numel: usize,
    /// Bits of the key set. Relaxed: a key says how to dispatch this tensor, not that other
    /// memory is ready.
    keys: AtomicU64,
    /// The caller's object that this is a view of; 0 for none.
    token: usize,
    /// Whether it was made as a view of another tensor.
    alias: bool,
    /// What a layer attached. Filled only while a functionality key is among `keys`, or was.
    attached: Slot,
}

// SAFETY: `base` points into the memory that `buffer` keeps, which any thread may use.
unsafe impl Send for Tensor {}
// SAFETY: through a shared reference memory is only read; writers are unsafe and take the blame.
unsafe impl Sync for Tensor {}

impl Clone for Tensor {
    /// Another handle to the same view: same memory, keys, token and attachment.
    fn clone(&self) -> Self {
        let buffer = self.buffer.clone();
        // What borrows memory of another library holds it differently from here on.
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
    /// A view of a buffer: element `[i, j, ..]` is `offset + i * strides[0] + j * strides[1] + ..`.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] when shape and strides differ in length, the element count overflows,
    /// or an element would lie outside the buffer.
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

    /// A view whose bounds were checked.
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
        let attached = Slot::empty();
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

    /// The memory.
    #[inline]
    pub fn buffer(&self) -> &BufferHandle {
        &self.buffer
    }

    /// The memory's handle alone.
    pub fn into_buffer(self) -> BufferHandle {
        self.buffer
    }

    /// The elements' type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.buffer.dtype()
    }

    /// Where the memory is.
    #[inline]
    pub fn device(&self) -> Device {
        self.buffer.device()
    }

    /// The size of each dimension.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The step along each dimension, in elements.
    #[inline]
    pub fn strides(&self) -> &Strides {
        &self.strides
    }

    /// From the buffer's start to the first element, in elements.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The number of dimensions.
    #[inline]
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements.
    #[inline]
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// The size of all elements in bytes, as if they lay without gaps.
    #[inline]
    pub fn nbytes(&self) -> usize {
        self.numel * self.dtype().size()
    }

    /// The dispatch keys.
    #[inline]
    pub fn keys(&self) -> DispatchKeySet {
        DispatchKeySet::from_bits(self.keys.load(Ordering::Relaxed))
    }

    /// What the tensor brings to a call: its keys, its device, and whether it has no dimensions.
    #[inline]
    pub fn tag(&self) -> Tag {
        Tag::new(self.keys(), self.device(), self.shape.is_empty())
    }

    /// Adds a functionality key (Quantized, or one of the user's own) to the tensor's keys.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a backend key, which is the device's alone to give, and for
    /// Autograd, which [`Tensor::set_requires_grad`] sets.
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

    /// Whether operations on the tensor are recorded for gradients.
    #[inline]
    pub fn requires_grad(&self) -> bool {
        self.keys.load(Ordering::Relaxed) & AUTOGRAD != 0
    }

    /// Switches recording for gradients on or off, for this tensor and not for its views.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] when the dtype is neither floating nor complex.
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

    /// The caller's object that this tensor is a view of; 0 for none.
    #[inline]
    pub fn token(&self) -> usize {
        self.token
    }

    /// Sets the token in place.
    #[inline]
    pub fn set_token(&mut self, token: usize) {
        self.token = token;
    }

    /// The same tensor, marked as a view of the caller's object with that address.
    #[inline]
    #[must_use]
    pub fn with_token(mut self, token: usize) -> Self {
        self.token = token;
        self
    }

    /// Whether it was made as a view of another tensor, with which it may share elements.
    #[inline]
    pub fn is_view(&self) -> bool {
        self.alias
    }

    /// The same tensor as a view of whatever else has its memory.
    #[must_use]
    pub fn into_view(mut self) -> Self {
        self.alias = true;
        self
    }

    /// The same tensor as one that isn't a view: for whoever knows that nobody else sees its memory.
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

    /// How often the memory was written in place, as far as keyfold knows (see
    /// [`BufferHandle::version`]).
    #[inline]
    pub fn version(&self) -> u32 {
        self.buffer.version()
    }

    /// Says that the memory was written in place, by means that don't say so themselves: through
    /// [`Tensor::raw_data_ptr`], by another library.
    pub fn note_write(&self) {
        self.buffer.bump_version();
    }

    /// The same tensor with a count of the writes to its memory, which memory of other libraries
    /// lacks by itself: for a tensor that outlives the call.
    #[must_use]
    #[inline]
    pub fn into_tracked(mut self) -> Self {
        // keyfold's own memory counts already; a tensor is large, and moving it costs.
        if self.buffer.is_external() {
            self.track();
        }
        self
    }

    #[inline(never)]
    fn track(&mut self) {
        self.buffer = self.buffer.clone().into_tracked();
        self.base = self.buffer.host_ptr();
    }

    /// Whether the elements lie in row-major order without gaps.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        layout::is_contiguous(&self.shape, &self.strides)
    }

    /// Whether the memory may be written.
    #[inline]
    pub fn is_writable(&self) -> bool {
        !self.buffer.is_read_only()
    }

    /// Whether two indices may be the same element (a broadcast tensor, say), so that writing
    /// element by element would have no meaning.
    pub fn may_overlap_itself(&self) -> bool {
        layout::may_overlap(&self.shape, &self.strides)
    }

    /// The same view, to be read only.
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
