//! Memory whose content is computed later.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use keyfold_core::{Device, Error, ErrorKind, Result, SharedError};

use super::DeviceBuffer;
use crate::device::Memory;

/// The record of operations that pending buffers wait for.
pub trait PendingSource: Any + Send + Sync + fmt::Debug {
    /// Runs what a buffer waits for. On success the buffer was [filled](PendingBuffer::fill) or
    /// [failed](PendingBuffer::fail).
    ///
    /// # Errors
    /// If the operations can't be run now, as for a kernel that reads its own result.
    fn run_for(&self, buffer: &PendingBuffer) -> Result<()>;

    /// Notes that a reader got the error of a buffer that failed.
    fn was_told(&self, error: &SharedError);
}

/// Memory that an operation will fill: of a known size and device, and without an address.
///
/// A buffer goes through these states, never back: it is pending; the record's operations have
/// [computed](PendingBuffer::stage) it, and may still write to it; it is filled, or it failed. All
/// readers see the first two as pending, and [`DeviceBuffer::locate`], which they call first, asks
/// the source to run what is missing. The address is never fixed
/// ([`DeviceBuffer::host_ptr`] stays `None`), so that a tensor is the same before and after.
pub struct PendingBuffer {
    device: Device,
    bytes: usize,
    /// The number of in-place writes, as the caller sees them; the staged buffer's after the fill.
    version: AtomicU32,
    source: Weak<dyn PendingSource>,
    /// The number of the operation that writes to it last; [`NO_WRITER`] before there is one.
    writer: AtomicUsize,
    staged: OnceLock<Arc<dyn DeviceBuffer>>,
    outcome: OnceLock<Result<(), SharedError>>,
}

const NO_WRITER: usize = usize::MAX;

impl PendingBuffer {
    /// Makes a buffer that operations of `source` will fill.
    pub fn new(device: Device, bytes: usize, source: Weak<dyn PendingSource>) -> Self {
        PendingBuffer {
            device,
            bytes,
            version: AtomicU32::new(0),
            source,
            writer: AtomicUsize::new(NO_WRITER),
            staged: OnceLock::new(),
            outcome: OnceLock::new(),
        }
    }

    /// Returns whether operations of `source` fill it.
    #[inline]
    pub fn is_of(&self, source: &impl PendingSource) -> bool {
        std::ptr::addr_eq(self.source.as_ptr(), std::ptr::from_ref(source))
    }

    /// Returns the number that its source gave the last operation that writes to it.
    #[inline]
    pub fn writer(&self) -> Option<usize> {
        // The source reads and sets it under its own lock.
        Some(self.writer.load(Ordering::Relaxed)).filter(|number| *number != NO_WRITER)
    }

    /// Notes that an operation of its source writes to it, after all those that did before.
    #[inline]
    pub fn set_writer(&self, number: usize) {
        self.writer.store(number, Ordering::Relaxed);
    }

    /// Returns whether it is neither filled nor failed.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.outcome.get().is_none()
    }

    /// Returns why it will never be filled, if it failed.
    pub fn failure(&self) -> Option<&SharedError> {
        self.outcome.get()?.as_ref().err()
    }

    /// Stores the computed memory, for the source's own operations.
    ///
    /// # Errors
    /// [`ErrorKind::Return`] for memory on another device, of another size, read-only, movable or
    /// shared with others.
    pub fn stage(&self, mut memory: Arc<dyn DeviceBuffer>) -> Result<()> {
        let fits = memory.device() == self.device && memory.byte_len() >= self.bytes;
        let own = Arc::get_mut(&mut memory).is_some()
            && memory.external_owner().is_none()
            && !memory.is_read_only()
            && !memory.moves();
        if !fits || !own {
            let message = format!(
                "a pending buffer of {} bytes on {} needs memory of its own, not {memory:?}",
                self.bytes, self.device
            );
            return Err(Error::new(ErrorKind::Return, message));
        }
        self.staged.set(memory).map_err(|_| {
            Error::new(ErrorKind::Return, "a pending buffer was computed twice".to_owned())
        })
    }

    /// Fills it with memory that exists, and that others hold as well: it stood for that memory while operations
    /// were recorded. The memory's count of writes is as it was.
    pub fn stand_for(&self, memory: Arc<dyn DeviceBuffer>) {
        if self.staged.set(memory).is_ok() {
            let _ = self.outcome.set(Ok(()));
        }
    }

    /// Returns the computed memory, which the source's operations may still write to.
    pub fn staged(&self) -> Option<&Arc<dyn DeviceBuffer>> {
        self.staged.get()
    }

    /// Makes the staged memory visible to all readers. Without effect after the first time.
    ///
    /// # Panics
    /// If nothing was staged.
    pub fn fill(&self) {
        let Some(memory) = self.staged.get() else { unreachable!("filled before it was staged") };
        if self.filled().is_some() {
            return;
        }
        if let Some(version) = memory.version() {
            // The record counted the writes of its operations when they were recorded.
            version.store(self.version.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // A buffer that failed stays so.
        let _ = self.outcome.set(Ok(()));
    }

    /// Gives it up: all readers get this error. Without effect after [`PendingBuffer::fill`].
    pub fn fail(&self, error: SharedError) {
        let _ = self.outcome.set(Err(error));
    }

    /// Returns the filled memory; `None` while it is pending, and if it failed.
    #[inline]
    pub fn filled(&self) -> Option<&Arc<dyn DeviceBuffer>> {
        match self.outcome.get() {
            Some(Ok(())) => self.staged.get(),
            _ => None,
        }
    }

    /// Returns the memory, after running what it waits for.
    ///
    /// # Errors
    /// The error of the operation that failed; [`ErrorKind::Pipeline`] if the source is gone.
    pub fn wait(&self) -> Result<&Arc<dyn DeviceBuffer>> {
        if self.is_pending() {
            match self.source.upgrade() {
                Some(source) => source.run_for(self)?,
                None => self.fail(SharedError::new(Error::new(
                    ErrorKind::Pipeline,
                    "the pipeline that this tensor waited for is gone, and its operations weren't run",
                ))),
            }
        }
        match (self.filled(), self.failure()) {
            (Some(memory), _) => Ok(memory),
            (None, Some(error)) => {
                if let Some(source) = self.source.upgrade() {
                    source.was_told(error);
                }
                Err(error.again())
            }
            (None, None) => Err(Error::new(
                ErrorKind::Pipeline,
                "a pipeline ran without filling a tensor that waited for it",
            )),
        }
    }
}

impl fmt::Debug for PendingBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.is_pending(), self.failure()) {
            (true, _) => "pending",
            (false, None) => "filled",
            (false, Some(_)) => "failed",
        };
        write!(f, "PendingBuffer(device={}, {} bytes, {state})", self.device, self.bytes)
    }
}

// SAFETY: device and size never change, and the staged memory is of that device and at least that
// size; it has no fixed address, and its present one is that of memory that this value keeps.
unsafe impl DeviceBuffer for PendingBuffer {
    fn device(&self) -> Device {
        self.device
    }

    fn byte_len(&self) -> usize {
        self.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn locate(&self) -> Result<*mut u8> {
        self.wait()?.locate()
    }

    fn opaque_handle(&self) -> Option<NonNull<u8>> {
        self.filled()?.opaque_handle()
    }

    fn memory(&self) -> Option<&dyn Memory> {
        self.filled()?.memory()
    }

    fn is_exclusive(&self) -> bool {
        let own = |memory: &Arc<dyn DeviceBuffer>| {
            Arc::strong_count(memory) == 1 && memory.is_exclusive()
        };
        self.filled().is_some_and(own)
    }

    fn version(&self) -> Option<&AtomicU32> {
        match self.filled() {
            Some(memory) => memory.version(),
            None => Some(&self.version),
        }
    }

    fn lend(&self) {
        if let Some(memory) = self.filled() {
            memory.lend();
        }
    }

    fn is_lent(&self) -> bool {
        self.filled().is_some_and(|memory| memory.is_lent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BufferHandle, HostBuffer};
    use keyfold_core::DType;

    /// A source that fills a buffer with a number, or fails.
    #[derive(Debug)]
    struct Source(Option<f64>);

    impl PendingSource for Source {
        fn run_for(&self, buffer: &PendingBuffer) -> Result<()> {
            match self.0 {
                Some(number) => {
                    buffer.stage(Arc::new(HostBuffer::from_vec(vec![number; 3])))?;
                    buffer.fill();
                }
                None => buffer.fail(SharedError::new(Error::new(ErrorKind::Value, "no number"))),
            }
            Ok(())
        }

        fn was_told(&self, error: &SharedError) {
            assert_eq!(error.error().message(), "no number");
        }
    }

    fn pending(source: &Arc<Source>) -> PendingBuffer {
        let weak: Weak<dyn PendingSource> = Arc::downgrade(source) as Weak<Source>;
        PendingBuffer::new(Device::CPU, 24, weak)
    }

    #[test]
    fn locating_runs_the_source_once() {
        let source = Arc::new(Source(Some(2.0)));
        let buffer = pending(&source);
        assert!(buffer.is_pending() && buffer.staged().is_none());
        let address = buffer.locate().unwrap();
        assert!(!address.is_null() && buffer.locate().unwrap() == address);
        assert!(!buffer.is_pending() && buffer.host_ptr().is_none());
    }

    #[test]
    fn a_failure_is_the_same_error_for_every_reader() {
        let source = Arc::new(Source(None));
        let buffer = pending(&source);
        for _ in 0..2 {
            let error = buffer.locate().unwrap_err();
            assert_eq!((error.kind(), error.message()), (ErrorKind::Value, "no number"));
        }
        assert!(!buffer.is_pending());
    }

    #[test]
    fn without_its_source_it_fails_and_waits_for_nothing() {
        let source = Arc::new(Source(Some(1.0)));
        let buffer = pending(&source);
        drop(source);
        assert_eq!(buffer.locate().unwrap_err().kind(), ErrorKind::Pipeline);
        assert!(!buffer.is_pending());
    }

    #[test]
    fn memory_that_others_share_or_that_is_too_small_isn_t_taken() {
        let source = Arc::new(Source(None));
        let buffer = pending(&source);
        let shared: Arc<dyn DeviceBuffer> = Arc::new(HostBuffer::zeroed(24).unwrap());
        let other = Arc::clone(&shared);
        assert!(buffer.stage(shared).is_err());
        drop(other);
        assert!(buffer.stage(Arc::new(HostBuffer::zeroed(16).unwrap())).is_err());
    }

    #[test]
    fn writes_counted_while_it_was_pending_stay_counted() {
        let source = Arc::new(Source(Some(1.0)));
        let buffer = Arc::new(pending(&source));
        let handle = BufferHandle::new(buffer.clone(), DType::F64).unwrap();
        buffer.note_write();
        assert_eq!(handle.version(), 1);
        buffer.locate().unwrap();
        assert_eq!(handle.version(), 1);
        buffer.note_write();
        assert_eq!(
            (handle.version(), buffer.filled().unwrap().version().unwrap().load(Ordering::Relaxed)),
            (2, 2)
        );
    }
}
