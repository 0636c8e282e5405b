//! The host's memory.

use std::sync::Arc;
use std::time::Instant;

use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result};

use super::copy::{copy_bytes, copy_elements};
use super::{Content, Event, Memory, Part, Statistics, StreamId, check_stream};
use crate::buffer::{DeviceBuffer, HostBuffer, cache};
use crate::strided::Walk;

/// The host's memory: one device with one stream, whose operations complete before their calls
/// return. [`cache`] keeps free blocks and counts them; blocks below 4 KiB are the C library's and
/// aren't counted.
#[derive(Debug)]
pub struct HostMemory;

/// Returns the address of a part's element at index zero; null only for a part without elements.
///
/// # Errors
/// [`ErrorKind::Device`] for a buffer that the host can't access; as [`DeviceBuffer::locate`].
pub(super) fn address(part: &Part<'_>) -> Result<*mut u8> {
    let buffer = part.buffer();
    if buffer.device() == Device::CPU {
        let start = buffer.locate()?;
        if !start.is_null() || part.numel() == 0 {
            return Ok(start.wrapping_add(part.offset()));
        }
    }
    Err(Error::new(
        ErrorKind::Device,
        format!("the host can't reach the memory of {buffer:?} on {}", buffer.device()),
    ))
}

/// Returns the host's bytes of a contiguous part.
///
/// # Errors
/// As [`address`].
///
/// # Safety
/// The bytes aren't written while the result is used.
pub(super) unsafe fn bytes<'a>(part: &Part<'a>) -> Result<&'a [u8]> {
    let (start, len) = (address(part)?, part.byte_len());
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the elements are inside the buffer, whose bytes are initialised and, by the caller's
    // contract, not written.
    Ok(unsafe { std::slice::from_raw_parts(start, len) })
}

/// Returns the host's bytes of a contiguous part, mutably.
///
/// # Errors
/// As [`address`].
///
/// # Safety
/// The bytes aren't accessed otherwise while the result is used.
pub(super) unsafe fn bytes_mut<'a>(part: &Part<'a>) -> Result<&'a mut [u8]> {
    let (start, len) = (address(part)?, part.byte_len());
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the elements are inside the buffer, whose bytes are initialised and, by the caller's
    // contract, not accessed otherwise.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, len) })
}

/// Checks that a device is the host.
fn check_device(device: Device) -> Result<()> {
    match device {
        Device::CPU => Ok(()),
        _ => {
            Err(Error::new(ErrorKind::Device, format!("the host's memory isn't that of {device}")))
        }
    }
}

impl Memory for HostMemory {
    fn identity(&self) -> usize {
        usize::from(DeviceType::CPU.index())
    }

    fn is_asynchronous(&self) -> bool {
        false
    }

    fn device_count(&self) -> usize {
        1
    }

    fn stream_count(&self, _device: Device) -> usize {
        1
    }

    fn allocate(
        &self,
        device: Device,
        bytes: usize,
        content: Content,
    ) -> Result<Arc<dyn DeviceBuffer>> {
        check_device(device)?;
        Ok(Arc::new(HostBuffer::new(bytes, content)?))
    }

    unsafe fn upload(&self, given: &[u8], target: &Part<'_>, stream: StreamId) -> Result<()> {
        check_stream(self, Device::CPU, stream)?;
        target.check_bytes(given.len())?;
        // SAFETY: the caller's contract; the bytes are the part's.
        unsafe { copy_bytes(given, address(target)?) }
    }

    fn download(&self, source: &Part<'_>, into: &mut [u8], stream: StreamId) -> Result<()> {
        check_stream(self, Device::CPU, stream)?;
        source.check_bytes(into.len())?;
        // SAFETY: writers of shared memory guarantee that it isn't read meanwhile; `into` has the
        // part's size.
        unsafe { copy_bytes(bytes(source)?, into.as_mut_ptr()) }
    }

    unsafe fn copy_strided(
        &self,
        source: &Part<'_>,
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()> {
        check_stream(self, Device::CPU, stream)?;
        target.check_source(source)?;
        let (from, to) = (address(source)?, address(target)?);
        let (from, to) = ((from.cast_const(), source.strides()), (to, target.strides()));
        let elements = (target.numel(), target.element_size());
        // SAFETY: both parts are inside their buffers; the rest is the caller's contract.
        unsafe { copy_elements(from, to, target.shape(), elements) }
    }

    unsafe fn fill(&self, target: &Part<'_>, element: &[u8], stream: StreamId) -> Result<()> {
        check_stream(self, Device::CPU, stream)?;
        target.check_element(element.len())?;
        let (to, size) = (address(target)?, element.len());
        let walk = Walk::new(target.shape(), [target.strides()])?;
        let (len, [step]) = (walk.run_len() as isize, walk.run_steps());
        walk.runs(|[start]| {
            for i in 0..len {
                let place = to.wrapping_offset((start + i * step) * size as isize);
                // SAFETY: the walk stays inside the part, which nothing else accesses.
                unsafe { place.copy_from_nonoverlapping(element.as_ptr(), size) };
            }
        });
        Ok(())
    }

    fn record(&self, device: Device, stream: StreamId) -> Result<Event> {
        check_device(device)?;
        check_stream(self, device, stream)?;
        Ok(Event::new(device, Instant::now()))
    }

    fn wait(&self, device: Device, stream: StreamId, event: &Event) -> Result<()> {
        check_device(device)?;
        check_stream(self, device, stream)?;
        event.downcast_ref::<Instant>().map(|_| ())
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        event.downcast_ref::<Instant>().map(|_| true)
    }

    fn elapsed(&self, start: &Event, end: &Event) -> Result<i64> {
        let (start, end) = (*start.downcast_ref::<Instant>()?, *end.downcast_ref::<Instant>()?);
        let nanoseconds = |to: Instant, from: Instant| {
            i64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(i64::MAX)
        };
        Ok(nanoseconds(end, start) - nanoseconds(start, end))
    }

    fn synchronize(&self, device: Device) -> Result<()> {
        check_device(device)
    }

    fn statistics(&self, device: Device) -> Result<Statistics> {
        check_device(device)?;
        let stats = cache::stats()?;
        Ok(Statistics {
            in_use: stats.live,
            cached: stats.cached,
            peak: stats.peak,
            allocations: stats.hits + stats.misses,
            limit: stats.limit,
        })
    }

    fn set_limit(&self, device: Device, limit: Option<u64>) -> Result<()> {
        check_device(device)?;
        match limit {
            Some(bytes) => cache::set_limit(usize::try_from(bytes).unwrap_or(usize::MAX)),
            None => cache::reset_limit()?,
        }
        Ok(())
    }
}
