//! Checks of a device's streams: the order of operations, events, memory in use by queued work.

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_tensor::DeviceBuffer;
use keyfold_tensor::device::{Content, Memory, Part, StreamId};

use crate::block::{download, upload};
use crate::checks::Checks;
use crate::memory::{bytes, expect, whole};
use crate::report::Symptom;
use crate::run::{Fault, Target};

/// The number of repetitions of what a race would show by chance only.
const TIMES: u64 = 8;

/// Runs all checks of the group.
pub(crate) fn check(checks: &mut Checks<'_>) {
    let target = checks.target;
    let streams = target.memory.stream_count(target.device) as u32;
    let last = StreamId::new(streams.saturating_sub(1).min(7));
    for time in 0..TIMES {
        let size = [64, 1 << 10, 1 << 14, 1 << 17][time as usize % 4];
        let case = format!("{time}");
        for stream in [StreamId::DEFAULT, last] {
            let case = format!("stream {} {case}", stream.number());
            checks.case("order on a stream", &case, &mut || ordered(target, stream, size, time));
            checks.case("memory of queued work", &case, &mut || {
                freed_early(target, stream, size, time)
            });
        }
        checks.case("order by an event", &case, &mut || {
            by_event(target, (StreamId::DEFAULT, last), size, time)
        });
        checks.case("order by an event", &format!("{case} back"), &mut || {
            by_event(target, (last, StreamId::DEFAULT), size, time)
        });
    }
    checks.case("events", "time and state", &mut || events(target, last));
    checks.case("synchronize", "all streams", &mut || synchronized(target, last));
}

fn new(target: &Target, bytes: &[u8], stream: StreamId) -> Result<Arc<dyn DeviceBuffer>> {
    upload(&*target.memory, target.device, bytes, stream)
}

/// Copies all bytes of a buffer to another one on a stream.
fn copy(
    memory: &dyn Memory,
    from: &dyn DeviceBuffer,
    to: &dyn DeviceBuffer,
    stream: StreamId,
) -> Result<()> {
    let (shape, other) = ([from.byte_len()], [to.byte_len()]);
    // SAFETY: the checks use buffers of their own, on one stream or ordered by events.
    unsafe { memory.copy_strided(&whole(from, &shape)?, &whole(to, &other)?, stream) }
}

fn fill(memory: &dyn Memory, buffer: &dyn DeviceBuffer, byte: u8, stream: StreamId) -> Result<()> {
    let shape = [buffer.byte_len()];
    // SAFETY: as for `copy`.
    unsafe { memory.fill(&whole(buffer, &shape)?, &[byte], stream) }
}

/// Returns the bytes of a buffer, read on a stream.
fn read(memory: &dyn Memory, buffer: &dyn DeviceBuffer, stream: StreamId) -> Result<Vec<u8>> {
    let mut bytes = vec![0; buffer.byte_len()];
    let shape = [bytes.len()];
    memory.download(&Part::new(buffer, 0, &shape, &[1], 1)?, &mut bytes, stream)?;
    Ok(bytes)
}

/// Operations on one stream run in the order of the calls.
fn ordered(target: &Target, stream: StreamId, size: usize, seed: u64) -> Result<(), Fault> {
    let memory = &*target.memory;
    let data = bytes(size, seed);
    let a = new(target, &data, stream)?;
    let b = memory.allocate(target.device, size, Content::Zeros)?;
    copy(memory, &*a, &*b, stream)?;
    fill(memory, &*a, 7, stream)?;
    let c = memory.allocate(target.device, size, Content::Arbitrary)?;
    copy(memory, &*b, &*c, stream)?;
    fill(memory, &*b, 9, stream)?;
    expect(Symptom::Race, "the last of three copies", &read(memory, &*c, stream)?, &data)?;
    expect(Symptom::Race, "filled after it was copied", &read(memory, &*a, stream)?, &vec![7; size])
}

/// A stream that waits for an event of another reads what was written before the event.
fn by_event(
    target: &Target,
    (first, second): (StreamId, StreamId),
    size: usize,
    seed: u64,
) -> Result<(), Fault> {
    let memory = &*target.memory;
    let data = bytes(size, seed);
    let a = memory.allocate(target.device, size, Content::Zeros)?;
    let b = memory.allocate(target.device, size, Content::Zeros)?;
    let source = new(target, &data, first)?;
    for _ in 0..4 {
        fill(memory, &*a, 1, first)?;
    }
    copy(memory, &*source, &*a, first)?;
    let written = memory.record(target.device, first)?;
    memory.wait(target.device, second, &written)?;
    copy(memory, &*a, &*b, second)?;
    let got = read(memory, &*b, second)?;
    expect(Symptom::Race, "copied behind the event of another stream", &got, &data)
}

/// Memory that queued work uses isn't given to others when its buffer is dropped.
fn freed_early(target: &Target, stream: StreamId, size: usize, seed: u64) -> Result<(), Fault> {
    let memory = &*target.memory;
    let data = bytes(size, seed);
    let a = new(target, &data, stream)?;
    let b = memory.allocate(target.device, size, Content::Zeros)?;
    // The upload has run before the copy is queued.
    expect(Symptom::WrongBytes, "the source", &read(memory, &*a, stream)?, &data)?;
    copy(memory, &*a, &*b, stream)?;
    drop(a);
    let others: Vec<_> = (0..3)
        .map(|_| {
            let other = memory.allocate(target.device, size, Content::Zeros)?;
            fill(memory, &*other, 0xee, StreamId::DEFAULT)?;
            // The fill of another stream has run before the copy must.
            read(memory, &*other, StreamId::DEFAULT)?;
            Ok(other)
        })
        .collect::<Result<_>>()?;
    let got = read(memory, &*b, stream)?;
    drop(others);
    expect(Symptom::Race, "copied from a buffer that was dropped", &got, &data)
}

fn events(target: &Target, stream: StreamId) -> Result<(), Fault> {
    let memory = &*target.memory;
    let buffer = memory.allocate(target.device, 1 << 12, Content::Zeros)?;
    let start = memory.record(target.device, stream)?;
    fill(memory, &*buffer, 1, stream)?;
    let end = memory.record(target.device, stream)?;
    let elapsed = memory.elapsed(&start, &end)?;
    let wrong = |message: String| Err(Fault::new(Symptom::Race, message));
    if elapsed < 0 {
        return wrong(format!("a fill took {elapsed} ns"));
    }
    memory.synchronize(target.device)?;
    match (memory.is_done(&start)?, memory.is_done(&end)?) {
        (true, true) => Ok(()),
        done => wrong(format!("after a synchronization the events are done: {done:?}")),
    }
}

fn synchronized(target: &Target, stream: StreamId) -> Result<(), Fault> {
    let memory = &*target.memory;
    let a = memory.allocate(target.device, 1 << 12, Content::Zeros)?;
    fill(memory, &*a, 5, stream)?;
    memory.synchronize(target.device)?;
    // On another stream, without an event.
    expect(Symptom::Race, "after a synchronization", &download(memory, &*a)?, &[5; 1 << 12])
}
