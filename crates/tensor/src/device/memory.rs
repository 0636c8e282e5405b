//! The trait of a device's memory, and the parts of buffers that it works on.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use keyfold_core::{Device, Error, ErrorKind, Result, layout};

use super::{Event, Statistics, StreamId};
use crate::buffer::DeviceBuffer;

/// The required content of new memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Any initialised bytes: the caller writes them all before they are read.
    Arbitrary,
    /// Zeros.
    Zeros,
}

/// Strided elements of one size in a buffer. Every element lies inside the buffer.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    buffer: &'a dyn DeviceBuffer,
    offset: usize,
    shape: &'a [usize],
    strides: &'a [isize],
    element_size: usize,
}

impl<'a> Part<'a> {
    /// Returns a part. The element at index zero is `offset` bytes after the buffer's start;
    /// strides count elements.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if shape and strides differ in length, or an element would lie outside
    /// the buffer.
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

    /// As [`Part::new`], for a view whose bounds were checked.
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

    /// Returns the buffer.
    pub fn buffer(&self) -> &'a dyn DeviceBuffer {
        self.buffer
    }

    /// Returns the device that the buffer is on.
    pub fn device(&self) -> Device {
        self.buffer.device()
    }

    /// Returns the distance from the buffer's start to the element at index zero, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the size of each dimension.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// Returns the step along each dimension, in elements.
    pub fn strides(&self) -> &'a [isize] {
        self.strides
    }

    /// Returns the size of an element in bytes.
    pub fn element_size(&self) -> usize {
        self.element_size
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the total size of the elements in bytes, without gaps.
    pub fn byte_len(&self) -> usize {
        self.numel() * self.element_size
    }

    /// Checks that the part can be uploaded from, or downloaded to, `len` bytes: it is contiguous
    /// and has that size.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if it isn't so.
    pub fn check_bytes(&self, len: usize) -> Result<()> {
        if self.is_contiguous() && self.byte_len() == len {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Shape,
            format!("{len} bytes of the host aren't those of a contiguous part of {self:?}"),
        ))
    }

    /// Checks that another part can be copied to this one: shape and element size are equal.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if they differ.
    pub fn check_source(&self, source: &Part<'_>) -> Result<()> {
        if self.shape == source.shape && self.element_size == source.element_size {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Shape,
            format!("{source:?} can't be copied to {self:?}: shape or element size differ"),
        ))
    }

    /// Checks that this part's elements have `len` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if they don't.
    pub fn check_element(&self, len: usize) -> Result<()> {
        if self.element_size == len {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Shape,
            format!("a value of {len} bytes isn't an element of {self:?}"),
        ))
    }

    /// Returns whether the elements lie in row-major order without gaps.
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
/// Operations are queued on a stream of the device and may run after the call returns. Operations
/// on one stream run in the order of the calls; operations on different streams run in any order,
/// unless [`Memory::wait`] orders them. The memory that a queued operation uses stays allocated
/// until it has run, also if the buffer is dropped.
///
/// A method returns [`ErrorKind::Device`] for an unknown device or stream and for a buffer that
/// this memory can't access, and [`ErrorKind::Shape`] for parts that don't fit
/// ([`Part::check_bytes`], [`Part::check_source`], [`Part::check_element`], [`check_stream`]). A
/// method that fails queues no operation.
///
/// [`check_stream`]: super::check_stream
pub trait Memory: Any + Send + Sync + fmt::Debug {
    /// Returns a number that identifies this memory among all that exist, such as the address of
    /// its shared state. It distinguishes tensors of a removed memory from those of its successor.
    fn identity(&self) -> usize;

    /// Returns the number of devices; their indices are below it.
    fn device_count(&self) -> usize;

    /// Returns the number of a device's streams, at least 1; their numbers are below it.
    fn stream_count(&self, device: Device) -> usize;

    /// Returns whether operations may run after their calls return. If not, a call's time on the
    /// host includes the device's, and events need not be [recorded](Memory::record).
    fn is_asynchronous(&self) -> bool {
        true
    }

    /// Returns whether [`Memory::upload_pinned`] uses pinned memory. If not, it is a plain upload.
    fn pins_uploads(&self) -> bool {
        false
    }

    /// Allocates memory of that many bytes, aligned for every dtype. Operations on any stream may
    /// use it at once.
    ///
    /// The buffer keeps the parts of this memory alive that it needs, also after its removal from
    /// the registry, and returns the memory from [`DeviceBuffer::memory`]. Its drop, on any thread,
    /// frees it. Its [`DeviceBuffer::host_ptr`] is `None`, unless the device is the CPU.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] with the requested size, if there is none left.
    fn allocate(
        &self,
        device: Device,
        bytes: usize,
        content: Content,
    ) -> Result<Arc<dyn DeviceBuffer>>;

    /// Copies host bytes into a contiguous part of that size. The host's bytes aren't used after
    /// the return.
    ///
    /// # Errors
    /// The device's errors, and an error for a buffer that isn't this memory's.
    ///
    /// # Safety
    /// Until the operation has run, nothing else accesses the target, except for later operations
    /// on the same stream.
    unsafe fn upload(&self, bytes: &[u8], target: &Part<'_>, stream: StreamId) -> Result<()>;

    /// As [`Memory::upload`], through pinned memory if [`Memory::pins_uploads`]. The result is the
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
        // SAFETY: the caller's contract is the same.
        unsafe { self.upload(bytes, target, stream) }
    }

    /// Copies a contiguous part to host bytes of that size. Waits for earlier operations on the
    /// stream, and returns after the copy.
    ///
    /// # Errors
    /// The device's errors, also of earlier operations, and an error for a buffer that isn't this
    /// memory's.
    fn download(&self, source: &Part<'_>, bytes: &mut [u8], stream: StreamId) -> Result<()>;

    /// Copies elements between two parts of the same shape and element size, on devices of this
    /// type. The stream is the target device's.
    ///
    /// # Errors
    /// The device's errors, and an error for a buffer that isn't this memory's.
    ///
    /// # Safety
    /// As [`Memory::upload`]. The parts share no bytes, and neither do two elements of the target.
    /// If the source is on another device, [`Memory::wait`] orders operations on it.
    unsafe fn copy_strided(
        &self,
        source: &Part<'_>,
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()>;

    /// Fills a part with one element, of the part's element size.
    ///
    /// # Errors
    /// The device's errors, and an error for a buffer that isn't this memory's.
    ///
    /// # Safety
    /// As [`Memory::upload`].
    unsafe fn fill(&self, target: &Part<'_>, element: &[u8], stream: StreamId) -> Result<()>;

    /// Records an event, which completes after the earlier operations on the stream.
    ///
    /// # Errors
    /// The device's errors.
    fn record(&self, device: Device, stream: StreamId) -> Result<Event>;

    /// Makes later operations on a stream wait for an event, which may be another stream's or
    /// another device's of this type. The host doesn't wait.
    ///
    /// # Errors
    /// The device's errors; [`ErrorKind::Device`] for another memory's event.
    fn wait(&self, device: Device, stream: StreamId, event: &Event) -> Result<()>;

    /// Returns whether an event has completed.
    ///
    /// # Errors
    /// As [`Memory::wait`].
    fn is_done(&self, event: &Event) -> Result<bool>;

    /// Waits for two events and returns the nanoseconds from `start` to `end`; negative if `end`
    /// completed first.
    ///
    /// # Errors
    /// As [`Memory::wait`].
    fn elapsed(&self, start: &Event, end: &Event) -> Result<i64>;

    /// Waits for all operations on a device.
    ///
    /// # Errors
    /// The device's errors, also of those operations.
    fn synchronize(&self, device: Device) -> Result<()>;

    /// Returns statistics of a device's memory.
    ///
    /// # Errors
    /// The device's errors.
    fn statistics(&self, device: Device) -> Result<Statistics>;

    /// Sets the limit in bytes of free memory kept for later allocations on a device, and frees the
    /// excess; `None` for the memory's own default.
    ///
    /// # Errors
    /// The device's errors.
    fn set_limit(&self, device: Device, limit: Option<u64>) -> Result<()>;
}
