//! A device for tests. Its memory is hidden from the host, its operations run as late as its streams
//! allow and on their threads, freed memory is poisoned and used again. Switches plant faults, and any
//! call can be made to fail.

mod block;
mod stream;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result};
use keyfold_tensor::device::{Content, Event, Memory, Part, Statistics, StreamId, check_stream};
use keyfold_tensor::{DeviceBuffer, HostBuffer};

pub(crate) use self::block::Live;
use self::block::{DelayedBuffer, Lease, Shelf};
use self::stream::Stream;

/// A mistake that the memory makes, for tests that find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    None,
    /// A download doesn't wait for the operations before it.
    ReadsEarly,
    /// A buffer's memory is free once the buffer is dropped, whatever is queued.
    FreesEarly,
    /// Streams don't wait for events.
    WaitsTooLittle,
    /// Copies on the device go by way of the host.
    CopiesSilently,
    /// Buffers are in the host's memory.
    GivesHostMemory,
    /// Buffers are one byte too small.
    GivesTooLittle,
}

/// How often something was called.
#[derive(Default)]
pub(crate) struct Counts {
    /// Calls that can fail.
    pub(crate) calls: AtomicUsize,
    pub(crate) uploads: AtomicUsize,
    pub(crate) downloads: AtomicUsize,
    /// The number of the call that fails; 0 for none.
    fails_at: AtomicUsize,
    /// Operations that were queued, and the number of the one that fails when it runs.
    queued: AtomicUsize,
    fails_late_at: AtomicUsize,
}

struct Unit {
    streams: Vec<Arc<Stream>>,
    shelf: Arc<Shelf>,
}

/// What buffers keep of the memory.
struct Inner {
    kind: DeviceType,
    units: Vec<Unit>,
    counts: Counts,
    plant: Mutex<Plant>,
    live: Live,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.units.iter().flat_map(|unit| &unit.streams).for_each(|stream| stream.close());
    }
}

/// The memory.
#[derive(Clone)]
pub(crate) struct Delayed(Arc<Inner>);

impl fmt::Debug for Delayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delayed({})", self.0.kind)
    }
}

struct Happening {
    stream: Arc<Stream>,
    number: u64,
    time: Arc<OnceLock<Instant>>,
}

impl Delayed {
    pub(crate) fn new(kind: DeviceType, devices: usize, streams: usize) -> Delayed {
        let unit = |_| Unit {
            streams: (0..streams).map(|_| Stream::start()).collect(),
            shelf: Arc::new(Shelf::default()),
        };
        let units = (0..devices).map(unit).collect();
        let (counts, plant) = (Counts::default(), Mutex::new(Plant::None));
        Delayed(Arc::new(Inner { kind, units, counts, plant, live: Live::default() }))
    }

    pub(crate) fn device(&self, index: u8) -> Device {
        Device::new(self.0.kind, index)
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    pub(crate) fn plant(&self, plant: Plant) {
        *self.0.plant.lock().unwrap_or_else(PoisonError::into_inner) = plant;
    }

    fn has(&self, plant: Plant) -> bool {
        *self.0.plant.lock().unwrap_or_else(PoisonError::into_inner) == plant
    }

    /// Makes the nth call from now on fail; none for 0.
    pub(crate) fn fail_at(&self, nth: usize) {
        self.0.counts.calls.store(0, Ordering::SeqCst);
        self.0.counts.fails_at.store(nth, Ordering::SeqCst);
    }

    /// Makes the nth operation that is queued from now on fail when it runs; none for 0.
    pub(crate) fn fail_late_at(&self, nth: usize) {
        self.0.counts.queued.store(0, Ordering::SeqCst);
        self.0.counts.fails_late_at.store(nth, Ordering::SeqCst);
    }

    /// How many blocks are in use, by buffers or by operations that are queued.
    pub(crate) fn live(&self) -> usize {
        self.0.live.count()
    }

    /// Runs everything that is queued. Afterwards the device works again, whatever failed.
    pub(crate) fn drain(&self) -> Result<()> {
        let streams = self.0.units.iter().flat_map(|unit| &unit.streams);
        let ends: Vec<_> = streams.map(|stream| stream.drain()).collect();
        ends.into_iter().collect()
    }

    /// Queues an operation that can fail.
    fn queue(
        &self,
        on: &Part<'_>,
        stream: StreamId,
        job: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let number = self.0.counts.queued.fetch_add(1, Ordering::SeqCst) + 1;
        let fails = number == self.0.counts.fails_late_at.load(Ordering::SeqCst);
        self.stream(on.device(), stream)?.push(move || {
            if fails {
                let message = format!("injected: operation {number} failed");
                return Err(Error::new(ErrorKind::KernelFailed, message));
            }
            job();
            Ok(())
        });
        Ok(())
    }

    fn call(&self, what: &str, kind: ErrorKind) -> Result<()> {
        let number = self.0.counts.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if number == self.0.counts.fails_at.load(Ordering::SeqCst) {
            return Err(Error::new(kind, format!("injected: {what} failed at call {number}")));
        }
        Ok(())
    }

    fn unit(&self, device: Device) -> Result<&Unit> {
        let unit = self.0.units.get(usize::from(device.index()));
        unit.filter(|_| device.kind() == self.0.kind)
            .ok_or_else(|| Error::new(ErrorKind::Device, format!("{self:?} has no {device}")))
    }

    fn stream(&self, device: Device, stream: StreamId) -> Result<&Arc<Stream>> {
        let unit = self.unit(device)?;
        check_stream(self, device, stream)?;
        Ok(&unit.streams[stream.number() as usize])
    }

    fn lease(&self, part: &Part<'_>) -> Result<Arc<Lease>> {
        let own = part.buffer().downcast_ref::<DelayedBuffer>();
        own.filter(|own| Arc::ptr_eq(&own.memory.0, &self.0))
            .map(|own| Arc::clone(&own.lease))
            .ok_or_else(|| {
                Error::new(ErrorKind::Device, format!("{self:?} can't reach {:?}", part.buffer()))
            })
    }
}

/// The byte that each element of a part begins at, in row-major order.
fn places(part: &Part<'_>) -> Vec<usize> {
    let mut places = vec![part.offset() as isize];
    for (size, stride) in part.shape().iter().zip(part.strides()) {
        let step = stride * part.element_size() as isize;
        places =
            places.iter().flat_map(|p| (0..*size as isize).map(move |i| p + i * step)).collect();
    }
    places.into_iter().map(|place| place as usize).collect()
}

impl Memory for Delayed {
    fn device_count(&self) -> usize {
        self.0.units.len()
    }

    fn stream_count(&self, device: Device) -> usize {
        self.unit(device).map_or(0, |unit| unit.streams.len())
    }

    fn allocate(
        &self,
        device: Device,
        bytes: usize,
        content: Content,
    ) -> Result<Arc<dyn DeviceBuffer>> {
        self.call("allocate", ErrorKind::Memory)?;
        if self.has(Plant::GivesHostMemory) {
            return Ok(Arc::new(HostBuffer::zeroed(bytes)?));
        }
        let len = if self.has(Plant::GivesTooLittle) { bytes.saturating_sub(1) } else { bytes };
        let lease = Lease::take(&self.unit(device)?.shelf, &self.0.live, len);
        if content == Content::Zeros {
            // On every stream the first operation, so it runs at once.
            lease.bytes().fill(0);
        }
        let frees_early = self.has(Plant::FreesEarly);
        Ok(Arc::new(DelayedBuffer::new(self.clone(), lease, device, len, frees_early)))
    }

    unsafe fn upload(&self, bytes: &[u8], target: &Part<'_>, stream: StreamId) -> Result<()> {
        self.call("upload", ErrorKind::KernelFailed)?;
        target.check_bytes(bytes.len())?;
        self.0.counts.uploads.fetch_add(1, Ordering::SeqCst);
        let (lease, offset, bytes) = (self.lease(target)?, target.offset(), bytes.to_vec());
        self.queue(target, stream, move || {
            lease.bytes()[offset..offset + bytes.len()].copy_from_slice(&bytes);
        })
    }

    fn download(&self, source: &Part<'_>, bytes: &mut [u8], stream: StreamId) -> Result<()> {
        self.call("download", ErrorKind::KernelFailed)?;
        source.check_bytes(bytes.len())?;
        self.0.counts.downloads.fetch_add(1, Ordering::SeqCst);
        let (lease, offset) = (self.lease(source)?, source.offset());
        let stream = self.stream(source.device(), stream)?;
        if !self.has(Plant::ReadsEarly) {
            stream.wait(stream.last())?;
        }
        bytes.copy_from_slice(&lease.bytes()[offset..offset + bytes.len()]);
        Ok(())
    }

    unsafe fn copy_strided(
        &self,
        source: &Part<'_>,
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()> {
        self.call("copy_strided", ErrorKind::KernelFailed)?;
        target.check_source(source)?;
        if self.has(Plant::CopiesSilently) && source.is_contiguous() && target.is_contiguous() {
            let mut bytes = vec![0; source.byte_len()];
            self.download(source, &mut bytes, stream)?;
            // SAFETY: the caller's promise.
            return unsafe { self.upload(&bytes, target, stream) };
        }
        let (from, to) = (self.lease(source)?, self.lease(target)?);
        let (froms, tos, size) = (places(source), places(target), source.element_size());
        self.queue(target, stream, move || {
            // One by one and from the end: a device may copy in any order.
            for (source, target) in froms.iter().zip(&tos).rev() {
                let element = from.bytes()[*source..source + size].to_vec();
                to.bytes()[*target..target + size].copy_from_slice(&element);
            }
        })
    }

    unsafe fn fill(&self, target: &Part<'_>, element: &[u8], stream: StreamId) -> Result<()> {
        self.call("fill", ErrorKind::KernelFailed)?;
        target.check_element(element.len())?;
        let (lease, places, element) = (self.lease(target)?, places(target), element.to_vec());
        self.queue(target, stream, move || {
            let mut bytes = lease.bytes();
            for place in places {
                bytes[place..place + element.len()].copy_from_slice(&element);
            }
        })
    }

    fn record(&self, device: Device, stream: StreamId) -> Result<Event> {
        self.call("record", ErrorKind::KernelFailed)?;
        let stream = Arc::clone(self.stream(device, stream)?);
        let time = Arc::new(OnceLock::new());
        let set = Arc::clone(&time);
        let number = stream.push(move || {
            set.get_or_init(Instant::now);
            Ok(())
        });
        Ok(Event::new(device, Happening { stream, number, time }))
    }

    fn wait(&self, device: Device, stream: StreamId, event: &Event) -> Result<()> {
        self.call("wait", ErrorKind::KernelFailed)?;
        let happening = event.downcast_ref::<Happening>()?;
        let (other, number) = (Arc::clone(&happening.stream), happening.number);
        let stream = self.stream(device, stream)?;
        if !self.has(Plant::WaitsTooLittle) && !Arc::ptr_eq(stream, &other) {
            stream.push(move || other.wait(number));
        }
        Ok(())
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        let happening = event.downcast_ref::<Happening>()?;
        Ok(happening.stream.is_done(happening.number))
    }

    fn elapsed(&self, start: &Event, end: &Event) -> Result<i64> {
        let time = |event: &Event| {
            let happening = event.downcast_ref::<Happening>()?;
            happening.stream.wait(happening.number)?;
            happening
                .time
                .get()
                .copied()
                .ok_or_else(|| Error::new(ErrorKind::KernelFailed, "no time"))
        };
        let (start, end) = (time(start)?, time(end)?);
        let forwards = end.saturating_duration_since(start).as_nanos() as i64;
        Ok(forwards - start.saturating_duration_since(end).as_nanos() as i64)
    }

    fn synchronize(&self, device: Device) -> Result<()> {
        self.call("synchronize", ErrorKind::KernelFailed)?;
        self.unit(device)?.streams.iter().try_for_each(|stream| stream.wait(stream.last()))
    }

    fn statistics(&self, device: Device) -> Result<Statistics> {
        Ok(self.unit(device)?.shelf.statistics())
    }

    fn set_limit(&self, device: Device, limit: Option<u64>) -> Result<()> {
        self.unit(device)?.shelf.set_limit(limit);
        Ok(())
    }
}
