//! The memory of the device `meta`, which stores nothing.

use std::sync::Arc;

use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result};

use super::{Content, Event, Memory, Part, Statistics, StreamId, check_stream};
use crate::buffer::{DeviceBuffer, NullBuffer};

/// The memory of the device `meta`: buffers have a size and no bytes. Writes are ignored, and reads
/// fail. Tensors that represent others have its buffers on any device.
#[derive(Debug)]
pub struct MetaMemory;

impl Memory for MetaMemory {
    fn identity(&self) -> usize {
        usize::from(DeviceType::META.index())
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
        _content: Content,
    ) -> Result<Arc<dyn DeviceBuffer>> {
        Ok(Arc::new(NullBuffer::on(device, bytes)))
    }

    unsafe fn upload(&self, bytes: &[u8], target: &Part<'_>, stream: StreamId) -> Result<()> {
        target.check_bytes(bytes.len())?;
        check_stream(self, target.device(), stream)
    }

    fn download(&self, source: &Part<'_>, bytes: &mut [u8], stream: StreamId) -> Result<()> {
        check_stream(self, source.device(), stream)?;
        source.check_bytes(bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NotSupported,
            format!("a tensor on {} has no memory here; there is nothing to read", source.device()),
        ))
    }

    unsafe fn copy_strided(
        &self,
        source: &Part<'_>,
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()> {
        target.check_source(source)?;
        check_stream(self, target.device(), stream)
    }

    unsafe fn fill(&self, target: &Part<'_>, element: &[u8], stream: StreamId) -> Result<()> {
        target.check_element(element.len())?;
        check_stream(self, target.device(), stream)
    }

    fn record(&self, device: Device, stream: StreamId) -> Result<Event> {
        check_stream(self, device, stream)?;
        Ok(Event::new(device, MetaEvent))
    }

    fn wait(&self, device: Device, stream: StreamId, event: &Event) -> Result<()> {
        check_stream(self, device, stream)?;
        event.downcast_ref::<MetaEvent>().map(|_| ())
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        event.downcast_ref::<MetaEvent>().map(|_| true)
    }

    fn elapsed(&self, start: &Event, end: &Event) -> Result<i64> {
        start.downcast_ref::<MetaEvent>()?;
        end.downcast_ref::<MetaEvent>().map(|_| 0)
    }

    fn synchronize(&self, _device: Device) -> Result<()> {
        Ok(())
    }

    fn statistics(&self, _device: Device) -> Result<Statistics> {
        Ok(Statistics::default())
    }

    /// Nothing is kept, so every limit holds.
    fn set_limit(&self, _device: Device, _limit: Option<u64>) -> Result<()> {
        Ok(())
    }
}

/// The event of operations that take no time.
struct MetaEvent;
