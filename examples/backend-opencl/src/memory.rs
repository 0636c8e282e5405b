//! Copies and fills.

use keyfold_plugin::{DeviceTensor, Result};

use crate::device::{Buffer, Device};
use crate::layout::Loop;
use crate::loader::check;
use crate::stream::Stream;
use crate::strided;
use crate::tensor::Place;
use crate::types::Type;

/// Returns the greatest unit of at most 8 bytes that divides all numbers, and its type.
fn unit(numbers: &[usize]) -> (usize, Type) {
    let all = numbers.iter().fold(8, |bits, number| bits | number);
    match all.trailing_zeros() {
        0 => (1, Type::U8),
        1 => (2, Type::U16),
        2 => (4, Type::U32),
        _ => (8, Type::U64),
    }
}

fn numel(tensor: &DeviceTensor<'_, Buffer>) -> usize {
    tensor.shape().iter().product::<i64>() as usize
}

/// Returns where the bytes of a part begin, and their number to the last of them.
pub fn span(part: &DeviceTensor<'_, Buffer>) -> (usize, usize) {
    let size = part.element_size();
    let (mut low, mut high) = (part.byte_offset() as i64, part.byte_offset() as i64);
    for (count, step) in part.shape().iter().zip(part.strides()) {
        let reach = (count - 1) * step * size as i64;
        *if reach < 0 { &mut low } else { &mut high } += reach;
    }
    match numel(part) {
        0 => (0, 0),
        _ => (low.cast_unsigned() as usize, (high - low).cast_unsigned() as usize + size),
    }
}

/// Copies between parts of equal shape and element size. `memory` has the source's bytes from
/// `start` on.
///
/// # Errors
/// The device's.
pub fn copy(
    (device, stream): (&Device, &Stream),
    source: &DeviceTensor<'_, Buffer>,
    memory: &Buffer,
    start: usize,
    target: &DeviceTensor<'_, Buffer>,
) -> Result<()> {
    if numel(target) == 0 {
        return Ok(());
    }
    let size = source.element_size();
    // Parts of elements, if elements don't lie at multiples of their size.
    let (from_at, to_at) = (source.byte_offset() - start, target.byte_offset());
    let (unit, dtype) = unit(&[size, from_at, to_at]);
    let parts = (size / unit) as i64;
    let (from, to) = (source.strides(), target.strides());
    let mut over = Loop::<2>::new();
    for (dim, size) in source.shape().iter().enumerate() {
        over.push(*size, [to[dim] * parts, from[dim] * parts])?;
    }
    over.push(parts, [1, 1])?;
    let place =
        |buffer: &Buffer, at: usize| Place { memory: buffer.handle, at: (at / unit) as i64, dtype };
    let (from, to) = (place(memory, from_at), place(target.buffer(), to_at));
    if copy_whole(device, stream, &over, (from, to), unit)? {
        return Ok(());
    }
    strided::copy((device, stream), &over, from, to)
}

/// Copies by the queue's own commands if they fit: one row, or rows at equal distances, of which
/// each begins and ends between two multiples of the distance.
fn copy_whole(
    device: &Device,
    stream: &Stream,
    over: &Loop<2>,
    (from, to): (Place, Place),
    unit: usize,
) -> Result<bool> {
    let api = device.api;
    let byte = |elements: i64| elements.cast_unsigned() as usize * unit;
    if over.is_contiguous() {
        // SAFETY: parts inside the buffers, as the host has checked.
        let status = unsafe {
            (api.clEnqueueCopyBuffer)(
                stream.queue,
                from.memory,
                to.memory,
                byte(from.at),
                byte(to.at),
                over.numel() as usize * unit,
                0,
                std::ptr::null(),
                std::ptr::null_mut(),
            )
        };
        check(status, "copying")?;
        return Ok(true);
    }
    let [to_steps, from_steps] = &over.steps;
    let row = byte(over.shape[1]);
    let fits = |place: Place, steps: &[i64]| {
        steps[1] == 1 && steps[0] > 0 && byte(place.at) % byte(steps[0]) + row <= byte(steps[0])
    };
    let apart = from.memory != to.memory;
    if over.rank != 2 || !apart || !fits(from, from_steps) || !fits(to, to_steps) {
        return Ok(false);
    }
    let corner = |place: Place, pitch: usize| [byte(place.at) % pitch, byte(place.at) / pitch, 0];
    let (from_pitch, to_pitch) = (byte(from_steps[0]), byte(to_steps[0]));
    let region = [row, over.shape[0].cast_unsigned() as usize, 1];
    // SAFETY: as above.
    let status = unsafe {
        (api.clEnqueueCopyBufferRect)(
            stream.queue,
            from.memory,
            to.memory,
            corner(from, from_pitch).as_ptr(),
            corner(to, to_pitch).as_ptr(),
            region.as_ptr(),
            from_pitch,
            0,
            to_pitch,
            0,
            0,
            std::ptr::null(),
            std::ptr::null_mut(),
        )
    };
    check(status, "copying rows")?;
    Ok(true)
}

/// Fills a part with one element.
///
/// # Errors
/// The device's.
pub fn fill(
    device: &Device,
    stream: &Stream,
    target: &DeviceTensor<'_, Buffer>,
    element: &[u8],
) -> Result<()> {
    let (count, size) = (numel(target), element.len());
    if count == 0 {
        return Ok(());
    }
    let (at, handle) = (target.byte_offset(), target.buffer().handle);
    if target.is_contiguous() && size.is_power_of_two() && at % size == 0 {
        return fill_bytes(device, stream, target.buffer(), (at, count * size), element);
    }
    let (unit, dtype) = unit(&[size, at]);
    let parts = (size / unit) as i64;
    for (part, bytes) in element.chunks(unit).enumerate() {
        let mut over = Loop::<2>::new();
        for (size, step) in target.shape().iter().zip(target.strides()) {
            over.push(*size, [step * parts; 2])?;
        }
        let mut number = [0; 8];
        number[..unit].copy_from_slice(bytes);
        let to = Place { memory: handle, at: (at / unit + part) as i64, dtype };
        strided::fill((device, stream), &over, to, u64::from_le_bytes(number))?;
    }
    Ok(())
}

/// Fills bytes of a buffer with a pattern, whose size is a power of two.
///
/// # Errors
/// The device's.
pub fn fill_bytes(
    device: &Device,
    stream: &Stream,
    buffer: &Buffer,
    (at, len): (usize, usize),
    pattern: &[u8],
) -> Result<()> {
    // SAFETY: a part inside the buffer, as the host has checked.
    let status = unsafe {
        (device.api.clEnqueueFillBuffer)(
            stream.queue,
            buffer.handle,
            pattern.as_ptr().cast(),
            pattern.len(),
            at,
            len,
            0,
            std::ptr::null(),
            std::ptr::null_mut(),
        )
    };
    check(status, "filling")
}
