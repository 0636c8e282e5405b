//! The delayed device's memory.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result};
use keyfold_dispatch::call_path;
use keyfold_tensor::device::{Content, Event, Memory, Part, Statistics, StreamId, check_stream};
use keyfold_tensor::{DeviceBuffer, HostBuffer};

use super::block::{DelayedBuffer, FreeList, Lease, LiveCount, Process, while_held};
use super::calls::{Call, Counts};
use super::stream::{OperationFailure, Stream};

/// A deliberate mistake of the device, to test that tests find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// No mistake.
    None,
    /// A download doesn't wait for earlier operations.
    ReadsEarly,
    /// A buffer's memory is freed with the buffer, also if operations are queued.
    FreesEarly,
    /// Streams don't wait for events.
    WaitsTooLittle,
    /// Copies on the device go through the host.
    CopiesSilently,
    /// Buffers are in the host's memory.
    GivesHostMemory,
    /// Buffers are one byte too small.
    GivesTooLittle,
}

impl Mistake {
    /// All mistakes.
    pub const ALL: [Mistake; 6] = [
        Mistake::ReadsEarly,
        Mistake::FreesEarly,
        Mistake::WaitsTooLittle,
        Mistake::CopiesSilently,
        Mistake::GivesHostMemory,
        Mistake::GivesTooLittle,
    ];

    /// Returns its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Mistake::None => "none",
            Mistake::ReadsEarly => "reads_early",
            Mistake::FreesEarly => "frees_early",
            Mistake::WaitsTooLittle => "waits_too_little",
            Mistake::CopiesSilently => "copies_silently",
            Mistake::GivesHostMemory => "gives_host_memory",
            Mistake::GivesTooLittle => "gives_too_little",
        }
    }
}

struct DelayedDevice {
    streams: Vec<Arc<Stream>>,
    shelf: Arc<FreeList>,
}

/// The state shared with the buffers, which may outlive the memory's registration.
struct Inner {
    kind: DeviceType,
    units: Vec<DelayedDevice>,
    counts: Arc<Counts>,
    mistake: Mutex<Mistake>,
    live: LiveCount,
    process: Process,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.process.is_this() {
            self.units.iter().flat_map(|unit| &unit.streams).for_each(|stream| stream.close());
        }
    }
}

/// The memory of a delayed device.
#[derive(Clone)]
pub struct DelayedMemory(Arc<Inner>);

impl fmt::Debug for DelayedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DelayedMemory({})", self.0.kind)
    }
}

struct RecordedEvent {
    stream: Arc<Stream>,
    number: u64,
    /// The completion time by its stream's clock.
    time: Arc<OnceLock<u64>>,
}

/// The duration of an operation in nanoseconds of its stream's clock.
pub const OPERATION_NS: u64 = 1_000;

impl DelayedMemory {
    /// Returns the memory of `devices` devices of a type, with `streams` streams each.
    pub fn new(kind: DeviceType, devices: usize, streams: usize) -> DelayedMemory {
        let unit = |_| DelayedDevice {
            streams: (0..streams).map(|_| Stream::start()).collect(),
            shelf: FreeList::new(),
        };
        DelayedMemory(Arc::new(Inner {
            kind,
            units: (0..devices).map(unit).collect(),
            counts: Arc::default(),
            mistake: Mutex::new(Mistake::None),
            live: LiveCount::default(),
            process: Process::this(),
        }))
    }

    /// Returns the device with that index.
    pub fn device(&self, index: u8) -> Device {
        Device::new(self.0.kind, index)
    }

    /// Returns the counters of calls.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Makes the device make a mistake from now on.
    pub fn plant(&self, mistake: Mistake) {
        *self.0.mistake.lock().unwrap_or_else(PoisonError::into_inner) = mistake;
    }

    pub(super) fn has_mistake(&self, mistake: Mistake) -> bool {
        *self.0.mistake.lock().unwrap_or_else(PoisonError::into_inner) == mistake
    }

    /// Makes the nth call of a kind fail, counted from now on; without a kind, the nth of any but
    /// [`Call::Run`]. Nothing fails for 0.
    pub fn fail_at(&self, call: Option<Call>, nth: usize) {
        self.0.counts.fail_at(call, nth);
    }

    /// Returns the number of blocks in use, by buffers or by queued operations.
    pub fn live(&self) -> usize {
        self.0.live.count()
    }

    /// Runs all queued operations, on every device.
    ///
    /// # Errors
    /// The error of the first failed operation that wasn't reported yet.
    pub fn drain(&self) -> Result<()> {
        let streams = self.0.units.iter().flat_map(|unit| &unit.streams);
        let ends: Vec<_> = streams.map(|stream| stream.finish()).collect();
        ends.into_iter().collect()
    }

    /// Queues an operation that reads blocks and writes others, and holds their locks while it runs.
    /// If the content of one is invalid, the operation is skipped and its targets become invalid,
    /// too.
    pub(super) fn queue(
        &self,
        on: (Device, StreamId),
        mut leases: Vec<Arc<Lease>>,
        targets: Vec<Arc<Lease>>,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let counts = Arc::clone(&self.0.counts);
        // Errors name the operator, which has returned when the operation runs.
        let operator = call_path().pop().map(|(name, _)| name);
        leases.extend(targets.iter().cloned());
        let stream = self.stream(on.0, on.1)?;
        let clock = Arc::clone(&stream.clock);
        stream.push(move || {
            clock.fetch_add(OPERATION_NS, Ordering::Relaxed);
            let invalidated_by = leases.iter().find_map(|lease| lease.invalidated_by());
            let (done, is_told) = match invalidated_by {
                Some(failure) => (Err(failure.into()), true),
                None => (counts.note(Call::Run).and_then(|()| while_held(&leases, work)), false),
            };
            let done = done.map_err(|error| match &operator {
                Some(name) => error.at(without_overload(name)),
                None => error,
            });
            let Err(error) = done else { return Ok(()) };
            targets.iter().for_each(|target| target.invalidate(OperationFailure::from(&error)));
            if is_told && !targets.is_empty() { Ok(()) } else { Err(error) }
        });
        Ok(())
    }

    /// Queues the write of bytes to a block.
    pub(super) fn write(
        &self,
        on: (Device, StreamId),
        target: Arc<Lease>,
        offset: usize,
        bytes: Vec<u8>,
    ) -> Result<()> {
        let block = Arc::clone(&target);
        self.queue(on, Vec::new(), vec![target], move || {
            let start = block.start().wrapping_add(offset);
            // SAFETY: the bytes are inside the block, whose lock is held.
            unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            Ok(())
        })
    }

    /// Waits for a stream's queued operations.
    ///
    /// # Errors
    /// The error of an operation that failed since the last wait, or of one that should have
    /// written one of the blocks.
    pub(super) fn finish(&self, on: (Device, StreamId), leases: &[Arc<Lease>]) -> Result<()> {
        self.stream(on.0, on.1)?.finish()?;
        let failure = leases.iter().find_map(|lease| lease.invalidated_by());
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    fn unit(&self, device: Device) -> Result<&DelayedDevice> {
        let unit = self.0.units.get(usize::from(device.index()));
        unit.filter(|_| device.kind() == self.0.kind)
            .ok_or_else(|| Error::new(ErrorKind::Device, format!("{self:?} has no {device}")))
    }

    fn stream(&self, device: Device, stream: StreamId) -> Result<&Arc<Stream>> {
        self.check_process()?;
        let unit = self.unit(device)?;
        check_stream(self, device, stream)?;
        Ok(&unit.streams[stream.number() as usize])
    }

    /// Checks that the device's threads exist, which a child of fork lacks.
    fn check_process(&self) -> Result<()> {
        if self.0.process.is_this() {
            return Ok(());
        }
        let kind = self.0.kind;
        let message = format!("{kind} was opened before a fork, and can't be used in the child");
        Err(Error::new(ErrorKind::Device, message))
    }

    /// Returns the block of a buffer, described as `shown` in errors.
    pub(super) fn lease(
        &self,
        own: Option<&DelayedBuffer>,
        shown: &dyn fmt::Debug,
    ) -> Result<Arc<Lease>> {
        let own = own.filter(|own| Arc::ptr_eq(&own.memory.0, &self.0));
        own.map(|own| Arc::clone(&own.lease))
            .ok_or_else(|| Error::new(ErrorKind::Device, format!("{self:?} can't reach {shown:?}")))
    }

    fn lease_of(&self, part: &Part<'_>) -> Result<Arc<Lease>> {
        self.lease(part.buffer().downcast_ref(), &part.buffer())
    }

    /// Counts a call.
    ///
    /// # Errors
    /// If a fault is injected, and in a child of fork.
    pub(super) fn call(&self, call: Call) -> Result<()> {
        self.check_process()?;
        self.0.counts.note(call)
    }
}

/// Returns an operator's name for messages: `aten::index` for `aten::index.Tensor`.
fn without_overload(name: &str) -> &str {
    name.split_once('.').map_or(name, |(name, _)| name)
}

/// Returns the byte offset of each element of a part, in row-major order.
fn byte_offsets(part: &Part<'_>) -> Vec<usize> {
    let mut byte_offsets = vec![part.offset() as isize];
    for (size, stride) in part.shape().iter().zip(part.strides()) {
        let step = stride * part.element_size() as isize;
        byte_offsets = byte_offsets
            .iter()
            .flat_map(|p| (0..*size as isize).map(move |i| p + i * step))
            .collect();
    }
    byte_offsets.into_iter().map(|place| place as usize).collect()
}

impl Memory for DelayedMemory {
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

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
        self.call(Call::Allocate)?;
        if self.has_mistake(Mistake::GivesHostMemory) {
            return Ok(Arc::new(HostBuffer::zeroed(bytes)?));
        }
        let len =
            if self.has_mistake(Mistake::GivesTooLittle) { bytes.saturating_sub(1) } else { bytes };
        let lease = Lease::take(&self.unit(device)?.shelf, &self.0.live, len);
        if content == Content::Zeros {
            // The block's first operation, which needs no order and runs at once.
            let start = lease.start();
            // SAFETY: the block has that many bytes, and its lock is held.
            while_held(&[Arc::clone(&lease)], || unsafe { start.write_bytes(0, len) });
        }
        let frees_early = self.has_mistake(Mistake::FreesEarly);
        Ok(Arc::new(DelayedBuffer::new(self.clone(), lease, device, len, frees_early)))
    }

    unsafe fn upload(&self, bytes: &[u8], target: &Part<'_>, stream: StreamId) -> Result<()> {
        self.call(Call::Upload)?;
        target.check_bytes(bytes.len())?;
        let on = (target.device(), stream);
        self.write(on, self.lease_of(target)?, target.offset(), bytes.to_vec())
    }

    fn download(&self, source: &Part<'_>, bytes: &mut [u8], stream: StreamId) -> Result<()> {
        self.call(Call::Download)?;
        source.check_bytes(bytes.len())?;
        let leases = [self.lease_of(source)?];
        if !self.has_mistake(Mistake::ReadsEarly) {
            self.finish((source.device(), stream), &leases)?;
        }
        let start = leases[0].start().wrapping_add(source.offset());
        // SAFETY: the part is inside the block, whose lock is held.
        while_held(&leases, || unsafe {
            start.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len());
        });
        Ok(())
    }

    unsafe fn copy_strided(
        &self,
        source: &Part<'_>,
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()> {
        self.call(Call::Copy)?;
        target.check_source(source)?;
        if self.has_mistake(Mistake::CopiesSilently)
            && source.is_contiguous()
            && target.is_contiguous()
        {
            let mut bytes = vec![0; source.byte_len()];
            self.download(source, &mut bytes, stream)?;
            // SAFETY: the caller's contract.
            return unsafe { self.upload(&bytes, target, stream) };
        }
        let (from, to) = (self.lease_of(source)?, self.lease_of(target)?);
        let (froms, tos, size) =
            (byte_offsets(source), byte_offsets(target), source.element_size());
        let (reads, writes) = (vec![Arc::clone(&from)], vec![Arc::clone(&to)]);
        self.queue((target.device(), stream), reads, writes, move || {
            let (from, to) = (from.start(), to.start());
            // One by one and backwards, since a device may copy in any order.
            for (source, target) in froms.iter().zip(&tos).rev() {
                // SAFETY: both parts are inside their blocks, whose locks are held.
                unsafe { to.add(*target).copy_from(from.add(*source), size) };
            }
            Ok(())
        })
    }

    unsafe fn fill(&self, target: &Part<'_>, element: &[u8], stream: StreamId) -> Result<()> {
        self.call(Call::Fill)?;
        target.check_element(element.len())?;
        let (lease, byte_offsets, element) =
            (self.lease_of(target)?, byte_offsets(target), element.to_vec());
        let block = Arc::clone(&lease);
        self.queue((target.device(), stream), Vec::new(), vec![lease], move || {
            for place in byte_offsets {
                // SAFETY: the part is inside the block, whose lock is held.
                unsafe {
                    let start = block.start().add(place);
                    start.copy_from_nonoverlapping(element.as_ptr(), element.len());
                }
            }
            Ok(())
        })
    }

    fn record(&self, device: Device, stream: StreamId) -> Result<Event> {
        self.call(Call::Record)?;
        let stream = Arc::clone(self.stream(device, stream)?);
        let time = Arc::new(OnceLock::new());
        let (set, clock) = (Arc::clone(&time), Arc::clone(&stream.clock));
        let number = stream.push(move || {
            set.get_or_init(|| clock.load(Ordering::Relaxed));
            Ok(())
        });
        Ok(Event::new(device, RecordedEvent { stream, number, time }))
    }

    fn wait(&self, device: Device, stream: StreamId, event: &Event) -> Result<()> {
        self.call(Call::Wait)?;
        let happening = event.downcast_ref::<RecordedEvent>()?;
        let (other, number) = (Arc::clone(&happening.stream), happening.number);
        let time = Arc::clone(&happening.time);
        let stream = self.stream(device, stream)?;
        let clock = Arc::clone(&stream.clock);
        if !self.has_mistake(Mistake::WaitsTooLittle) && !Arc::ptr_eq(stream, &other) {
            stream.push(move || {
                other.run_until(number);
                clock.fetch_max(time.get().copied().unwrap_or(0), Ordering::Relaxed);
                Ok(())
            });
        }
        Ok(())
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        let happening = event.downcast_ref::<RecordedEvent>()?;
        Ok(happening.stream.is_done(happening.number))
    }

    fn elapsed(&self, start: &Event, end: &Event) -> Result<i64> {
        let time = |event: &Event| {
            let happening = event.downcast_ref::<RecordedEvent>()?;
            happening.stream.run_until(happening.number);
            happening
                .time
                .get()
                .copied()
                .ok_or_else(|| Error::new(ErrorKind::KernelFailed, "no time"))
        };
        let (start, end): (u64, u64) = (time(start)?, time(end)?);
        Ok(end.wrapping_sub(start).cast_signed())
    }

    fn synchronize(&self, device: Device) -> Result<()> {
        self.call(Call::Synchronize)?;
        let ends: Vec<_> =
            self.unit(device)?.streams.iter().map(|stream| stream.finish()).collect();
        ends.into_iter().collect()
    }

    fn statistics(&self, device: Device) -> Result<Statistics> {
        Ok(self.unit(device)?.shelf.statistics())
    }

    fn set_limit(&self, device: Device, limit: Option<u64>) -> Result<()> {
        self.unit(device)?.shelf.set_limit(limit);
        Ok(())
    }
}
