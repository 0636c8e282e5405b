//! The trait that a device's memory implements, and the parts of buffers that it works on.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use keyfold_core::{Device, Error, ErrorKind, Result, layout};

use super::{Event, Statistics, StreamId};
use crate::buffer::DeviceBuffer;

/// What fresh memory has to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Initialised bytes of any value: the caller writes them all before anything reads them.
    Arbitrary,
    /// Zeros.
    Zeros,
}

/// Elements of one size in a buffer, as shape and strides describe them. Every element lies inside
/// the buffer.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    buffer: &'a dyn DeviceBuffer,
    offset: usize,
    shape: &'a [usize],
    strides: &'a [isize],
    element_size: usize,
}

impl<'a> Part<'a> {
    /// The element at index zero begins `offset` bytes behind the buffer's start; strides count
    /// elements.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] when shape and strides differ in length, or when an element would lie
    /// outside the buffer.
    pub fn new(
        buffer: &'a dyn DeviceBuffer,
        offset: usize,
        shape: &'a [usize],
        strides: &'a [isize],
        element_size: usize,
    ) -> Result<Self> {
        if shape.len() != strides.len() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("{} strides don't fit shape {shape:?}: one each is needed", strides.len()),
            ));
        }
        layout::numel(shape, element_size)?;
        let size = element_size as isize;
        let inside = match layout::reach(shape, strides)? {
            None => true,
            Some((low, high)) => {
                let first = low.checked_mul(size).and_then(|low| offset.checked_add_signed(low));
                let end = high.checked_add(1).and_then(|end| end.checked_mul(size));
                let end = end.and_then(|end| offset.checked_add_signed(end));
                first.is_some() && end.is_some_and(|end| end <= buffer.byte_len())
            }
        };
        if !inside {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a part of shape {shape:?}, strides {strides:?}, elements of {element_size} \
                     bytes and byte offset {offset} reaches beyond its buffer of {} bytes",
                    buffer.byte_len()
                ),
            ));
        }
        Ok(Part { buffer, offset, shape, strides, element_size })
    }

    /// As [`Part::new`], of a view whose bounds were checked.
    pub(crate) fn inside(
        buffer: &'a dyn DeviceBuffer,
        offset: usize,
        shape: &'a [usize],
        strides: &'a [isize],
        element_size: usize,
    ) -> Self {
        debug_assert!(Part::new(buffer, offset, shape, strides, element_size).is_ok());
        Part { buffer, offset, shape, strides, element_size }
    }

    /// The buffer.
    pub fn buffer(&self) -> &'a dyn DeviceBuffer {
        self.buffer
    }

    /// The device that the buffer is on.
    pub fn device(&self) -> Device {
        self.buffer.device()
    }

    /// From the buffer's start to the element at index zero, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The size of each dimension.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The step along each dimension, in elements.
    pub fn strides(&self) -> &'a [isize] {
        self.strides
    }

    /// The size of an element in bytes.
    pub fn element_size(&self) -> usize {
        self.element_size
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The size of all elements in bytes, as if they lay without gaps.
    pub fn byte_len(&self) -> usize {
        self.numel() * self.element_size
    }

    /// That the part can be uploaded from, or downloaded to, so many bytes: it is contiguous, and of
    /// that size.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`].
    pub fn check_bytes(&self, len: usize) -> Result<()> {
        if self.is_contiguous() && self.byte_len() == len {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Shape,
            format!("{len} bytes of the host aren't those of a contiguous part of {self:?}"),
        ))
    }

    /// That elements of another part can be copied to this one: shape and element size are the same.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`].
    pub fn check_source(&self, source: &Part<'_>) -> Result<()> {
        if self.shape == source.shape && self.element_size == source.element_size {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Shape,
            format!("{source:?} can't be copied to {self:?}: shape or element size differ"),
        ))
    }

    /// That a value of so many bytes is an element of this part.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`].
    pub fn check_element(&self, len: usize) -> Result<()> {
        if self.element_size == len {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Shape,
            format!("a value of {len} bytes isn't an element of {self:?}"),
        ))
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        layout::is_contiguous(self.shape, self.strides)
    }
}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Part { buffer, offset, shape, strides, element_size } = self;
        write!(
            f,
            "Part(shape={shape:?}, strides={strides:?}, element_size={element_size}, \
             offset={offset}, buffer={buffer:?})"
        )
    }
}

/// The memory of all devices of one type.
///
/// Operations are queued on a stream of the device and may run after the call returns. Operations on
/// one stream run in the order of the calls; operations on different streams run in any order, unless
/// [`Memory::wait`] orders them. What an operation uses stays allocated until it ran, whoever drops
/// the buffer meanwhile.
///
/// A method that is given a device or a stream that isn't there, or a buffer that this memory can't
/// reach, returns [`ErrorKind::Device`], and for parts that don't fit [`ErrorKind::Shape`]
/// ([`Part::check_bytes`], [`Part::check_source`], [`Part::check_element`], [`check_stream`]). A method
/// that fails leaves no operation queued.
///
/// [`check_stream`]: super::check_stream
pub trait Memory: Any + Send + Sync + fmt::Debug {
    /// A number that all handles to this memory have in common, and no other memory that is there: the
    /// address of what they share, say. Tensors of a memory that was removed are told by it from those
    /// of the one that took its place.
    fn identity(&self) -> usize;

    /// How many devices there are: those with an index below it.
    fn device_count(&self) -> usize;

    /// How many streams a device has: those with a number below it, 1 at least.
    fn stream_count(&self, device: Device) -> usize;

    /// Whether operations may run after their calls return. Where they have run by then, the host's time
    /// of a call is the device's too, and nobody need [record](Memory::record) it.
    fn is_asynchronous(&self) -> bool {
        true
    }

    /// Whether [`Memory::upload_pinned`] uses pinned memory. Elsewhere it is a plain upload.
    fn pins_uploads(&self) -> bool {
        false
    }

    /// Memory of that many bytes, aligned for every dtype, that operations on any stream may use at
    /// once.
    ///
    /// The buffer keeps alive what it needs of this memory, also after the memory was removed from
    /// the registry, and returns it from [`DeviceBuffer::memory`]. It is freed by its drop, on any
    /// thread. [`DeviceBuffer::host_ptr`] of it is `None`, unless the device is the CPU.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] when there is none left, with the size asked for.
    fn allocate(
        &self,
        device: Device,
        bytes: usize,
        content: Content,
    ) -> Result<Arc<dyn DeviceBuffer>>;

    /// Copies bytes of the host into a contiguous part, of that many bytes. The host's bytes aren't
    /// used after the return.
    ///
    /// # Errors
    /// What the device reports, and for a buffer that isn't this memory's.
    ///
    /// # Safety
    /// Nobody else uses the target until the operation ran, except for operations behind it on the
    /// same stream.
    unsafe fn upload(&self, bytes: &[u8], target: &Part<'_>, stream: StreamId) -> Result<()>;

    /// As [`Memory::upload`], through pinned memory where [`Memory::pins_uploads`]. The result is the
    /// same.
    ///
    /// # Errors
    /// As [`Memory::upload`].
    ///
    /// # Safety
    /// As [`Memory::upload`].
    unsafe fn upload_pinned(
        &self,
        bytes: &[u8],
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.upload(bytes, target, stream) }
    }

    /// Copies a contiguous part to the host, into that many bytes. They are there when it returns:
    /// it waits for the operations before it on the stream.
    ///
    /// # Errors
    /// What the device reports, also about operations before it; and for a buffer that isn't this
    /// memory's.
    fn download(&self, source: &Part<'_>, bytes: &mut [u8], stream: StreamId) -> Result<()>;

    /// Copies elements between two parts of the same shape and element size, on devices of this
    /// type. The stream is one of the target's device.
    ///
    /// # Errors
    /// What the device reports, and for a buffer that isn't this memory's.
    ///
    /// # Safety
    /// As [`Memory::upload`]. The parts have no byte in common, and neither have two elements of the
    /// target. Where the source is on another device, operations on it are ordered by
    /// [`Memory::wait`].
    unsafe fn copy_strided(
        &self,
        source: &Part<'_>,
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()>;

    /// Writes the same element, of the part's element size, everywhere in a part.
    ///
    /// # Errors
    /// What the device reports, and for a buffer that isn't this memory's.
    ///
    /// # Safety
    /// As [`Memory::upload`].
    unsafe fn fill(&self, target: &Part<'_>, element: &[u8], stream: StreamId) -> Result<()>;

    /// Queues an event, which happens when the operations before it on the stream ran.
    ///
    /// # Errors
    /// What the device reports.
    fn record(&self, device: Device, stream: StreamId) -> Result<Event>;

    /// Makes the operations that come next on a stream wait for an event, which may be of another
    /// stream or of another device of this type. The host doesn't wait.
    ///
    /// # Errors
    /// What the device reports; [`ErrorKind::Device`] for another memory's event.
    fn wait(&self, device: Device, stream: StreamId, event: &Event) -> Result<()>;

    /// Whether an event happened.
    ///
    /// # Errors
    /// As [`Memory::wait`].
    fn is_done(&self, event: &Event) -> Result<bool>;

    /// The nanoseconds from one event to another, for which it waits; negative where the second one
    /// happened first.
    ///
    /// # Errors
    /// As [`Memory::wait`].
    fn elapsed(&self, start: &Event, end: &Event) -> Result<i64>;

    /// Waits for all operations on a device.
    ///
    /// # Errors
    /// What the device reports, also about those operations.
    fn synchronize(&self, device: Device) -> Result<()>;

    /// The memory of a device in numbers.
    ///
    /// # Errors
    /// What the device reports.
    fn statistics(&self, device: Device) -> Result<Statistics>;

    /// Sets the most bytes of free memory that are kept for later allocations on a device, and gives
    /// back what is beyond; `None` for the memory's own default.
    ///
    /// # Errors
    /// What the device reports.
    fn set_limit(&self, device: Device, limit: Option<u64>) -> Result<()>;
}
