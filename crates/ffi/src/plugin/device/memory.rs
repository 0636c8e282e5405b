//! The memory of a plugin's devices.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_plugin::abi::device::{
    CONTENT_ARBITRARY, CONTENT_ZEROS, DeviceStatistics, LIMIT_DEFAULT,
};
use keyfold_plugin::abi::{DLDataType, DLTensor, HostError};
use keyfold_tensor::device::{
    Content, Event, HostMemory, Memory, Part, Statistics, StreamId, check_stream,
};
use keyfold_tensor::{DeviceBuffer, dlpack};

use super::super::values::from_standard;
use super::PluginDevice;

/// The memory of a plugin's devices.
#[derive(Clone)]
pub(super) struct PluginMemory(pub(super) Arc<PluginDevice>);

impl fmt::Debug for PluginMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of {}", self.0.label())
    }
}

/// Memory that the plugin allocated.
pub(super) struct PluginBuffer {
    memory: PluginMemory,
    handle: NonNull<c_void>,
    device: Device,
    bytes: usize,
    version: AtomicU32,
}

// SAFETY: the ABI requires that any thread may use and release a handle.
unsafe impl Send for PluginBuffer {}
// SAFETY: as above.
unsafe impl Sync for PluginBuffer {}

impl Drop for PluginBuffer {
    fn drop(&mut self) {
        let device = &self.memory.0;
        if let Some(counts) = device.counts.get(usize::from(self.device.index())) {
            counts.in_use.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        }
        if let Some(release) = device.spec.release {
            // SAFETY: a handle of `allocate` that isn't used any more.
            unsafe { release(device.spec.data, self.handle.as_ptr()) }
        }
    }
}

impl fmt::Debug for PluginBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PluginBuffer(device={}, {} bytes)", self.device, self.bytes)
    }
}

// SAFETY: the fields never change, and the host has no address.
unsafe impl DeviceBuffer for PluginBuffer {
    fn device(&self) -> Device {
        self.device
    }

    fn byte_len(&self) -> usize {
        self.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn opaque_handle(&self) -> Option<NonNull<u8>> {
        Some(self.handle.cast())
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(&self.memory)
    }

    fn version(&self) -> Option<&AtomicU32> {
        Some(&self.version)
    }
}

/// An event that the plugin recorded.
struct PluginEvent {
    device: Arc<PluginDevice>,
    event: NonNull<c_void>,
}

// SAFETY: the ABI requires that any thread may use and release an event.
unsafe impl Send for PluginEvent {}
// SAFETY: as above.
unsafe impl Sync for PluginEvent {}

impl Drop for PluginEvent {
    fn drop(&mut self) {
        if let Some(release) = self.device.spec.event_release {
            // SAFETY: an event of `record` that isn't used any more.
            unsafe { release(self.device.spec.data, self.event.as_ptr()) }
        }
    }
}

/// The type of the slots that copy from the host.
type Upload =
    unsafe extern "C" fn(*mut c_void, *const c_void, *const DLTensor, u32) -> *mut HostError;

impl PluginMemory {
    /// Returns the buffer's handle and its device in DLPack's terms, for a struct without shape.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] for another memory's buffer, described as `shown`.
    pub(super) fn described(
        &self,
        own: Option<&PluginBuffer>,
        shown: &dyn fmt::Debug,
    ) -> Result<DLTensor> {
        let own = own.filter(|own| Arc::ptr_eq(&own.memory.0, &self.0)).ok_or_else(|| {
            Error::new(ErrorKind::Device, format!("{self:?} can't reach {shown:?}"))
        })?;
        Ok(DLTensor {
            data: own.handle.as_ptr(),
            device: from_standard(dlpack::exported_device(own.device)?),
            ndim: 0,
            dtype: DLDataType { code: dlpack::DL_UINT, bits: 8, lanes: 1 },
            shape: null_mut(),
            strides: null_mut(),
            byte_offset: 0,
        })
    }

    /// Returns a part as the plugin gets it. It borrows the part's shape and strides.
    fn part(&self, part: &Part<'_>) -> Result<DLTensor> {
        let mut dl = self.described(part.buffer().downcast_ref(), &part.buffer())?;
        let bits = part.element_size() * 8;
        dl.dtype.bits = u8::try_from(bits).map_err(|_| {
            let message = format!("{self:?} has no elements of {} bytes", part.element_size());
            Error::new(ErrorKind::Value, message)
        })?;
        dl.ndim = part.shape().len() as i32;
        // `usize` and `isize` have the width of `i64` (asserted in `abi`).
        dl.shape = part.shape().as_ptr().cast_mut().cast();
        dl.strides = part.strides().as_ptr().cast_mut().cast();
        dl.byte_offset = part.offset() as u64;
        Ok(dl)
    }

    /// Checks where an operation is to run, and returns the device's index and the stream's number.
    fn place(&self, device: Device, stream: StreamId) -> Result<(u32, u32)> {
        let index = self.0.index(device)?;
        check_stream(self, device, stream)?;
        Ok((index, stream.number()))
    }

    /// # Safety
    /// As [`Memory::upload`].
    unsafe fn upload_by(
        &self,
        (name, slot): (&str, Upload),
        bytes: &[u8],
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()> {
        let (_, stream) = self.place(target.device(), stream)?;
        target.check_bytes(bytes.len())?;
        let dl = self.part(target)?;
        // SAFETY: a slot of the plugin with its data; the part lies inside the buffer.
        unsafe {
            let error = slot(self.0.spec.data, bytes.as_ptr().cast(), &raw const dl, stream);
            self.0.outcome(error, || format!("{name} of {} bytes", bytes.len()))
        }
    }

    /// Returns the plugin's event; `None` for one of the host's clock.
    fn event<'a>(&self, event: &'a Event) -> Result<Option<&'a PluginEvent>> {
        self.0.index(event.device())?;
        if self.0.spec.record.is_none() {
            return event.downcast_ref::<Instant>().map(|_| None);
        }
        let own = event.downcast_ref::<PluginEvent>()?;
        if Arc::ptr_eq(&own.device, &self.0) {
            return Ok(Some(own));
        }
        let message = format!("{self:?} can't use an event of a removed device of its name");
        Err(Error::new(ErrorKind::Device, message))
    }
}

impl Memory for PluginMemory {
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn device_count(&self) -> usize {
        self.0.spec.device_count as usize
    }

    fn stream_count(&self, _device: Device) -> usize {
        self.0.spec.stream_count as usize
    }

    fn is_asynchronous(&self) -> bool {
        self.0.is_asynchronous()
    }

    fn pins_uploads(&self) -> bool {
        self.0.spec.upload_pinned.is_some()
    }

    fn allocate(
        &self,
        device: Device,
        bytes: usize,
        content: Content,
    ) -> Result<Arc<dyn DeviceBuffer>> {
        let own = &*self.0;
        let index = own.index(device)?;
        let slot = own.slot("allocate", own.spec.allocate)?;
        let content = match content {
            Content::Arbitrary => CONTENT_ARBITRARY,
            Content::Zeros => CONTENT_ZEROS,
        };
        let mut handle = null_mut();
        // SAFETY: a slot of the plugin with its data.
        unsafe {
            let size = bytes.max(1) as u64;
            let error = slot(own.spec.data, index, size, content, &raw mut handle);
            own.outcome(error, || format!("allocate of {bytes} bytes"))?;
        }
        let handle = own.not_null(handle, "allocate", "the handle")?;
        let counts = &own.counts[index as usize];
        let in_use = counts.in_use.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        counts.peak.fetch_max(in_use, Ordering::Relaxed);
        counts.allocations.fetch_add(1, Ordering::Relaxed);
        let (memory, version) = (self.clone(), AtomicU32::new(0));
        Ok(Arc::new(PluginBuffer { memory, handle, device, bytes, version }))
    }

    unsafe fn upload(&self, bytes: &[u8], target: &Part<'_>, stream: StreamId) -> Result<()> {
        let slot = self.0.slot("upload", self.0.spec.upload)?;
        // SAFETY: the caller's contract.
        unsafe { self.upload_by(("upload", slot), bytes, target, stream) }
    }

    unsafe fn upload_pinned(
        &self,
        bytes: &[u8],
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe {
            match self.0.spec.upload_pinned {
                Some(slot) => self.upload_by(("upload_pinned", slot), bytes, target, stream),
                None => self.upload(bytes, target, stream),
            }
        }
    }

    fn download(&self, source: &Part<'_>, bytes: &mut [u8], stream: StreamId) -> Result<()> {
        let (_, stream) = self.place(source.device(), stream)?;
        source.check_bytes(bytes.len())?;
        let (dl, slot) = (self.part(source)?, self.0.slot("download", self.0.spec.download)?);
        // SAFETY: a slot of the plugin with its data; the part lies inside the buffer.
        unsafe {
            let to = bytes.as_mut_ptr().cast();
            let error = slot(self.0.spec.data, &raw const dl, to, stream);
            self.0.outcome(error, || format!("download of {} bytes", bytes.len()))
        }
    }

    unsafe fn copy_strided(
        &self,
        source: &Part<'_>,
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()> {
        let (_, stream) = self.place(target.device(), stream)?;
        self.0.index(source.device())?;
        target.check_source(source)?;
        let (from, to) = (self.part(source)?, self.part(target)?);
        let slot = self.0.slot("copy", self.0.spec.copy)?;
        // SAFETY: a slot of the plugin with its data; the parts lie inside their buffers.
        unsafe {
            let error = slot(self.0.spec.data, &raw const from, &raw const to, stream);
            self.0.outcome(error, || "copy".to_owned())
        }
    }

    unsafe fn fill(&self, target: &Part<'_>, element: &[u8], stream: StreamId) -> Result<()> {
        let (_, stream) = self.place(target.device(), stream)?;
        target.check_element(element.len())?;
        let (dl, slot) = (self.part(target)?, self.0.slot("fill", self.0.spec.fill)?);
        // SAFETY: a slot of the plugin with its data; the part lies inside the buffer.
        unsafe {
            let error = slot(self.0.spec.data, &raw const dl, element.as_ptr().cast(), stream);
            self.0.outcome(error, || "fill".to_owned())
        }
    }

    fn record(&self, device: Device, stream: StreamId) -> Result<Event> {
        let (index, stream) = self.place(device, stream)?;
        let Some(slot) = self.0.spec.record else {
            return Ok(Event::new(device, Instant::now()));
        };
        let mut event = null_mut();
        // SAFETY: a slot of the plugin with its data.
        unsafe {
            let error = slot(self.0.spec.data, index, stream, &raw mut event);
            self.0.outcome(error, || "record".to_owned())?;
        }
        let event = self.0.not_null(event, "record", "the event")?;
        Ok(Event::new(device, PluginEvent { device: Arc::clone(&self.0), event }))
    }

    fn wait(&self, device: Device, stream: StreamId, event: &Event) -> Result<()> {
        let (index, stream) = self.place(device, stream)?;
        let Some(own) = self.event(event)? else { return Ok(()) };
        let slot = self.0.slot("wait", self.0.spec.wait)?;
        // SAFETY: a slot of the plugin with its data, and its live event.
        unsafe {
            let error = slot(self.0.spec.data, index, stream, own.event.as_ptr());
            self.0.outcome(error, || "wait".to_owned())
        }
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        let Some(own) = self.event(event)? else { return Ok(true) };
        let (slot, mut done) = (self.0.slot("is_done", self.0.spec.is_done)?, 0);
        // SAFETY: as in `wait`.
        unsafe {
            let error = slot(self.0.spec.data, own.event.as_ptr(), &raw mut done);
            self.0.outcome(error, || "is_done".to_owned())?;
        }
        Ok(done != 0)
    }

    fn elapsed(&self, start: &Event, end: &Event) -> Result<i64> {
        let (Some(from), Some(to)) = (self.event(start)?, self.event(end)?) else {
            return HostMemory.elapsed(start, end);
        };
        let (slot, mut nanoseconds) = (self.0.slot("elapsed", self.0.spec.elapsed)?, 0);
        // SAFETY: as in `wait`.
        unsafe {
            let (from, to) = (from.event.as_ptr(), to.event.as_ptr());
            let error = slot(self.0.spec.data, from, to, &raw mut nanoseconds);
            self.0.outcome(error, || "elapsed".to_owned())?;
        }
        Ok(nanoseconds)
    }

    fn synchronize(&self, device: Device) -> Result<()> {
        let index = self.0.index(device)?;
        let slot = self.0.slot("synchronize", self.0.spec.synchronize)?;
        // SAFETY: a slot of the plugin with its data.
        unsafe {
            let error = slot(self.0.spec.data, index);
            self.0.outcome(error, || "synchronize".to_owned())
        }
    }

    fn statistics(&self, device: Device) -> Result<Statistics> {
        let index = self.0.index(device)?;
        let counts = &self.0.counts[index as usize];
        let mut known = DeviceStatistics {
            size: size_of::<DeviceStatistics>() as u32,
            in_use: counts.in_use.load(Ordering::Relaxed),
            peak: counts.peak.load(Ordering::Relaxed),
            allocations: counts.allocations.load(Ordering::Relaxed),
            limit: counts.limit.load(Ordering::Relaxed),
            ..DeviceStatistics::default()
        };
        if let Some(slot) = self.0.spec.statistics {
            // SAFETY: a slot of the plugin with its data.
            unsafe {
                let error = slot(self.0.spec.data, index, &raw mut known);
                self.0.outcome(error, || "statistics".to_owned())?;
            }
        }
        let DeviceStatistics { in_use, cached, peak, allocations, limit, .. } = known;
        Ok(Statistics { in_use, cached, peak, allocations, limit })
    }

    fn set_limit(&self, device: Device, limit: Option<u64>) -> Result<()> {
        let index = self.0.index(device)?;
        if let Some(slot) = self.0.spec.set_limit {
            // SAFETY: a slot of the plugin with its data.
            unsafe {
                let error = slot(self.0.spec.data, index, limit.unwrap_or(LIMIT_DEFAULT));
                self.0.outcome(error, || "set_limit".to_owned())?;
            }
        }
        self.0.counts[index as usize].limit.store(limit.unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }
}
