//! Checks of a device's memory: round trips, copies of every layout, zeros, fills, leaks.

use std::sync::Arc;

use keyfold_core::{Device, ErrorKind};
use keyfold_tensor::DeviceBuffer;
use keyfold_tensor::device::{Content, Memory, Part, StreamId};

use crate::array::Layout;
use crate::block::{byte_offsets, download, upload};
use crate::checks::Checks;
use crate::elements::Generator;
use crate::report::Symptom;
use crate::run::{Fault, Target};

const STREAM: StreamId = StreamId::DEFAULT;

/// The sizes in bytes: empty, around the lengths of vectors, around pages.
const SIZES: [usize; 16] = [0, 1, 2, 3, 7, 8, 15, 16, 63, 64, 65, 255, 256, 4095, 4097, 65_537];

/// Returns different bytes.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Generator::new(seed);
    (0..len).map(|_| random.bits() as u8).collect()
}

/// Compares bytes of a device with those that it should have.
pub(crate) fn expect(symptom: Symptom, what: &str, got: &[u8], wanted: &[u8]) -> Result<(), Fault> {
    let Some(at) = (0..wanted.len()).find(|at| got.get(*at) != wanted.get(*at)) else {
        return Ok(());
    };
    let found = got.get(at).map_or("missing".to_owned(), u8::to_string);
    let message =
        format!("{what}: byte {at} of {} is {found} and should be {}", wanted.len(), wanted[at]);
    Err(Fault::new(symptom, message))
}

/// Returns all bytes of a buffer as a part.
pub(crate) fn whole<'a>(
    buffer: &'a dyn DeviceBuffer,
    shape: &'a [usize; 1],
) -> keyfold_core::Result<Part<'a>> {
    Part::new(buffer, 0, shape, &[1], 1)
}

fn new(target: &Target, bytes: &[u8]) -> keyfold_core::Result<Arc<dyn DeviceBuffer>> {
    upload(&*target.memory, target.device, bytes, STREAM)
}

/// Runs all checks of the group.
pub(crate) fn check(checks: &mut Checks<'_>) {
    let target = checks.target;
    let (memory, device) = (&*target.memory, target.device);
    for size in SIZES {
        checks.case("upload and download", &size.to_string(), &mut || round_trip(target, size));
        checks.case("allocate", &size.to_string(), &mut || allocated(target, size));
        checks.case("zeros", &size.to_string(), &mut || zeros(target, size));
    }
    for (at, len) in [(0, 5), (3, 1), (16, 64), (63, 2), (1, 99)] {
        checks.case("parts", &format!("{at}+{len}"), &mut || part(target, at, len));
    }
    const LAYOUTS: [Layout; 5] = [
        Layout::Contiguous,
        Layout::Transposed,
        Layout::Sliced,
        Layout::Broadcast,
        Layout::Negative,
    ];
    const SHAPES: [&[usize]; 5] = [&[], &[0, 3], &[67], &[7, 13], &[3, 4, 5]];
    for (number, from) in LAYOUTS.into_iter().enumerate() {
        for to in LAYOUTS.into_iter().filter(|layout| *layout != Layout::Broadcast) {
            for (at, shape) in SHAPES.into_iter().enumerate() {
                let size = [1, 2, 4, 8, 16][(number + at) % 5];
                let case = format!("{shape:?}x{size} {} to {}", from.name(), to.name());
                checks.case("copy_strided", &case, &mut || copy(target, shape, size, (from, to)));
            }
        }
    }
    for size in [1, 4, 16] {
        checks.case("copy within a buffer", &size.to_string(), &mut || interleaved(target, size));
    }
    for (layout, size) in LAYOUTS.into_iter().zip([1, 2, 4, 8, 16]) {
        let layout = if layout == Layout::Broadcast { Layout::Offset } else { layout };
        let case = format!("{size} {}", layout.name());
        checks.case("fill", &case, &mut || fill(target, layout, size));
    }
    for index in 1..memory.device_count().min(3) {
        let other = Device::new(device.kind(), index as u8);
        checks.case("copy between devices", &index.to_string(), &mut || between(target, other));
    }
    checks.case("statistics", "leak", &mut || leak(target));
    if !device.kind().is_host() {
        checks.case("statistics", "limit", &mut || limit(target));
        checks.case("errors", "unknown device", &mut || unknown(target));
    }
    checks.case("errors", "wrong sizes", &mut || mismatched(target));
}

fn round_trip(target: &Target, size: usize) -> Result<(), Fault> {
    let memory = &*target.memory;
    for (pinned, seed) in [(false, 1), (true, 2)] {
        let data = bytes(size, seed);
        let buffer = memory.allocate(target.device, size, Content::Arbitrary)?;
        let shape = [size];
        let part = whole(&*buffer, &shape)?;
        match pinned {
            // SAFETY: nothing else refers to the new buffer.
            true => unsafe { memory.upload_pinned(&data, &part, STREAM)? },
            // SAFETY: as above.
            false => unsafe { memory.upload(&data, &part, STREAM)? },
        }
        let what = if pinned { "after upload_pinned" } else { "after upload" };
        expect(Symptom::WrongBytes, what, &download(memory, &*buffer)?, &data)?;
    }
    Ok(())
}

fn allocated(target: &Target, size: usize) -> Result<(), Fault> {
    let buffer = target.memory.allocate(target.device, size, Content::Arbitrary)?;
    let wrong = |message: String| Err(Fault::new(Symptom::WrongForm, message));
    if buffer.device() != target.device {
        return wrong(format!("the buffer is on {}, not on {}", buffer.device(), target.device));
    }
    if buffer.byte_len() < size {
        return wrong(format!("the buffer has {} bytes of {size}", buffer.byte_len()));
    }
    if buffer.host_ptr().is_some() && !target.device.kind().is_host() {
        return wrong("the buffer has an address of the host".to_owned());
    }
    Ok(())
}

/// Zeros in memory that had other bytes before.
fn zeros(target: &Target, size: usize) -> Result<(), Fault> {
    let memory = &*target.memory;
    drop(new(target, &bytes(size, 3))?);
    let buffer = memory.allocate(target.device, size, Content::Zeros)?;
    expect(Symptom::WrongBytes, "new zeros", &download(memory, &*buffer)?, &vec![0; size])
}

/// A part of a buffer is written and read; the rest stays.
fn part(target: &Target, at: usize, len: usize) -> Result<(), Fault> {
    let memory = &*target.memory;
    let mut data = bytes(100.max(at + len), 4);
    let buffer = new(target, &data)?;
    let inside = bytes(len, 5);
    let shape = [len];
    let target_part = Part::new(&*buffer, at, &shape, &[1], 1)?;
    // SAFETY: nothing else refers to the buffer.
    unsafe { memory.upload(&inside, &target_part, STREAM)? };
    data[at..at + len].copy_from_slice(&inside);
    let mut read = vec![0; len];
    memory.download(&target_part, &mut read, STREAM)?;
    expect(Symptom::WrongBytes, "a part", &read, &inside)?;
    expect(Symptom::WrongBytes, "around a part", &download(memory, &*buffer)?, &data)
}

fn copy(
    target: &Target,
    shape: &[usize],
    size: usize,
    (from, to): (Layout, Layout),
) -> Result<(), Fault> {
    let memory = &*target.memory;
    let place = |layout: Layout| {
        let (strides, first, span) = layout.place(shape);
        let offset = 64 / size + first;
        (strides, offset, (128 / size + span) * size)
    };
    let ((strides, offset, len), (out_strides, out_offset, out_len)) = (place(from), place(to));
    let (data, mut wanted) = (bytes(len, 6), bytes(out_len, 7));
    let (source, copied) = (new(target, &data)?, new(target, &wanted)?);
    let places = byte_offsets(shape, &out_strides, out_offset, size);
    for (read, write) in byte_offsets(shape, &strides, offset, size).into_iter().zip(&places) {
        wanted[*write..write + size].copy_from_slice(&data[read..read + size]);
    }
    let read = Part::new(&*source, offset * size, shape, &strides, size)?;
    let write = Part::new(&*copied, out_offset * size, shape, &out_strides, size)?;
    // SAFETY: the parts are of two buffers, and the target's elements share nothing.
    unsafe { memory.copy_strided(&read, &write, STREAM)? };
    let got = download(memory, &*copied)?;
    let ours = places.iter().flat_map(|place| *place..place + size);
    let outside = (0..wanted.len()).find(|at| got[*at] != wanted[*at]);
    let symptom = match outside {
        Some(at) if !ours.collect::<Vec<_>>().contains(&at) => Symptom::OutOfBounds,
        _ => Symptom::WrongStride,
    };
    expect(symptom, "the copy", &got, &wanted)?;
    expect(Symptom::InputChanged, "the source", &download(memory, &*source)?, &data)
}

/// Copies the even elements of a buffer to the odd ones, and the first half to the second: the parts
/// share no bytes, though one may span the other.
fn interleaved(target: &Target, size: usize) -> Result<(), Fault> {
    let memory = &*target.memory;
    for (step, second) in [(2, size), (1, 32 * size)] {
        let mut wanted = bytes(64 * size, 8);
        let buffer = new(target, &wanted)?;
        let (shape, strides) = ([32], [step]);
        let from = Part::new(&*buffer, 0, &shape, &strides, size)?;
        let to = Part::new(&*buffer, second, &shape, &strides, size)?;
        // SAFETY: the parts share no bytes, and nothing else refers to the buffer.
        unsafe { memory.copy_strided(&from, &to, STREAM)? };
        for i in 0..32 {
            let at = i * step as usize * size;
            wanted.copy_within(at..at + size, at + second);
        }
        let what = if step == 2 { "even to odd elements" } else { "first half to second" };
        expect(Symptom::Overlap, what, &download(memory, &*buffer)?, &wanted)?;
    }
    Ok(())
}

fn fill(target: &Target, layout: Layout, size: usize) -> Result<(), Fault> {
    let memory = &*target.memory;
    let shape = [5, 7];
    let (strides, first, span) = layout.place(&shape);
    let offset = 64 / size + first;
    let mut wanted = bytes((128 / size + span) * size, 9);
    let buffer = new(target, &wanted)?;
    let element = bytes(size, 10);
    let part = Part::new(&*buffer, offset * size, &shape, &strides, size)?;
    // SAFETY: nothing else refers to the buffer.
    unsafe { memory.fill(&part, &element, STREAM)? };
    for place in byte_offsets(&shape, &strides, offset, size) {
        wanted[place..place + size].copy_from_slice(&element);
    }
    expect(Symptom::WrongStride, "the filled buffer", &download(memory, &*buffer)?, &wanted)
}

fn between(target: &Target, other: Device) -> Result<(), Fault> {
    let memory = &*target.memory;
    let data = bytes(513, 11);
    let (from, shape) = (new(target, &data)?, [513]);
    let to = memory.allocate(other, 513, Content::Zeros)?;
    let written = memory.record(target.device, STREAM)?;
    memory.wait(other, STREAM, &written)?;
    // SAFETY: the event orders the upload before, and nothing else refers to the buffers.
    unsafe { memory.copy_strided(&whole(&*from, &shape)?, &whole(&*to, &shape)?, STREAM)? };
    expect(Symptom::WrongBytes, "on the other device", &download(memory, &*to)?, &data)
}

/// The bytes in use are those from before, once all buffers are gone.
fn leak(target: &Target) -> Result<(), Fault> {
    let memory = &*target.memory;
    memory.synchronize(target.device)?;
    let before = memory.statistics(target.device)?;
    for size in SIZES {
        let buffer = new(target, &bytes(size, 12))?;
        download(memory, &*buffer)?;
        let shape = [size];
        let copy = memory.allocate(target.device, size, Content::Zeros)?;
        // SAFETY: nothing else refers to the buffers.
        unsafe { memory.copy_strided(&whole(&*buffer, &shape)?, &whole(&*copy, &shape)?, STREAM)? };
    }
    memory.synchronize(target.device)?;
    let after = memory.statistics(target.device)?;
    if after.in_use > before.in_use {
        let message = format!(
            "{} bytes were in use before, and {} after all buffers were dropped",
            before.in_use, after.in_use
        );
        return Err(Fault::new(Symptom::Leak, message));
    }
    Ok(())
}

fn limit(target: &Target) -> Result<(), Fault> {
    let memory = &*target.memory;
    drop(new(target, &bytes(4096, 13))?);
    memory.synchronize(target.device)?;
    memory.set_limit(target.device, Some(0))?;
    let cached = memory.statistics(target.device)?.cached;
    memory.set_limit(target.device, None)?;
    match cached {
        0 => Ok(()),
        more => {
            let message = format!("{more} free bytes are kept with a limit of 0");
            Err(Fault::new(Symptom::Leak, message))
        }
    }
}

/// Returns a fault unless a call failed with that kind of error.
pub(crate) fn must_fail<T>(
    what: &str,
    result: keyfold_core::Result<T>,
    kind: ErrorKind,
) -> Result<(), Fault> {
    let message = match result {
        Err(error) if error.kind() == kind => return Ok(()),
        Err(error) => format!("{what}: the error is {}: {error}", error.kind().name()),
        Ok(_) => format!("{what}: there is no error"),
    };
    let message = format!("{message}; expected an error of kind {}", kind.name());
    Err(Fault::new(Symptom::WrongError, message))
}

fn unknown(target: &Target) -> Result<(), Fault> {
    let memory = &*target.memory;
    let count = memory.device_count();
    if let Ok(index) = u8::try_from(count) {
        let beyond = Device::new(target.device.kind(), index);
        let allocated = memory.allocate(beyond, 16, Content::Arbitrary);
        must_fail("memory of a device that isn't there", allocated, ErrorKind::Device)?;
    }
    let stream = StreamId::new(memory.stream_count(target.device) as u32);
    must_fail(
        "an event of a stream that isn't there",
        memory.record(target.device, stream),
        ErrorKind::Device,
    )
}

fn mismatched(target: &Target) -> Result<(), Fault> {
    let memory: &dyn Memory = &*target.memory;
    let buffer = new(target, &bytes(64, 14))?;
    let (shape, other) = ([32], [16]);
    let part = Part::new(&*buffer, 0, &shape, &[1], 1)?;
    let rest = Part::new(&*buffer, 32, &other, &[1], 1)?;
    let strided = Part::new(&*buffer, 0, &other, &[2], 1)?;
    // SAFETY: the parts share no bytes, and nothing else refers to the buffer.
    let copied = unsafe { memory.copy_strided(&part, &rest, STREAM) };
    must_fail("a copy between two shapes", copied, ErrorKind::Shape)?;
    // SAFETY: as above.
    let uploaded = unsafe { memory.upload(&[0; 31], &part, STREAM) };
    must_fail("an upload of another size", uploaded, ErrorKind::Shape)?;
    let downloaded = memory.download(&strided, &mut [0; 16], STREAM);
    must_fail("a download of a strided part", downloaded, ErrorKind::Shape)?;
    // SAFETY: as above.
    let filled = unsafe { memory.fill(&part, &[0; 2], STREAM) };
    must_fail("a fill with an element of another size", filled, ErrorKind::Shape)
}
