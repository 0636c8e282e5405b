//! Allocation by device, and copies between devices.

use std::sync::Arc;

use keyfold_core::{Device, Error, ErrorKind, Result};

use super::{Content, Memory, Part, current_stream, host, memory_of};
use crate::buffer::{DeviceBuffer, HostBuffer};

/// Allocates memory on a device.
///
/// # Errors
/// As [`memory_of`] and [`Memory::allocate`]; [`ErrorKind::Device`] for a memory that returns a
/// wrong buffer.
pub(crate) fn allocate(
    device: Device,
    bytes: usize,
    content: Content,
) -> Result<Arc<dyn DeviceBuffer>> {
    allocate_in(&*memory_of(device)?, device, bytes, content)
}

/// As [`allocate`], in a given memory.
///
/// # Errors
/// As [`allocate`].
pub(crate) fn allocate_in(
    memory: &dyn Memory,
    device: Device,
    bytes: usize,
    content: Content,
) -> Result<Arc<dyn DeviceBuffer>> {
    let buffer = memory.allocate(device, bytes, content)?;
    let fits = buffer.device() == device && buffer.byte_len() >= bytes;
    if fits && (device == Device::CPU || buffer.host_ptr().is_none()) {
        return Ok(buffer);
    }
    let what = match fits {
        true => "memory that has an address on the host".to_owned(),
        false => format!("{} bytes on {}", buffer.byte_len(), buffer.device()),
    };
    Err(Error::new(
        ErrorKind::Device,
        format!(
            "the memory of {} is at fault: {bytes} bytes on {device} were asked for, and it gave {what}",
            device.kind()
        ),
    ))
}

/// Copies a contiguous part to one of the same size on a device of another type, through the host:
/// a download, then an upload. Only explicit copies to another device call it. The source may be
/// written after its return.
///
/// # Errors
/// As [`Memory::download`] and [`Memory::upload`]; [`ErrorKind::Shape`] for parts that aren't
/// contiguous or differ in size; [`ErrorKind::Memory`] if the host can't allocate the intermediate
/// buffer.
///
/// # Safety
/// As [`Memory::upload`] for the target. The source isn't written until this returns.
pub unsafe fn transfer(
    (from, source): (&dyn Memory, &Part<'_>),
    (to, target): (&dyn Memory, &Part<'_>),
) -> Result<()> {
    source.check_bytes(target.byte_len())?;
    target.check_bytes(source.byte_len())?;
    let streams = (current_stream(source.device()), current_stream(target.device()));
    // SAFETY: the caller's contract; both are contiguous.
    unsafe {
        if source.device() == Device::CPU {
            return to.upload(host::bytes(source)?, target, streams.1);
        }
        if target.device() == Device::CPU {
            return from.download(source, host::bytes_mut(target)?, streams.0);
        }
        let mut staging = HostBuffer::recycled(source.byte_len())?;
        from.download(source, staging.as_bytes_mut(), streams.0)?;
        to.upload(staging.as_bytes(), target, streams.1)
    }
}

/// Copies elements between two parts on devices of one type. Events order the streams of different
/// devices: the copy runs after the operations queued for the source, and later operations on the
/// source, which may write it, run after the copy.
///
/// # Errors
/// As [`Memory::copy_strided`], [`Memory::record`] and [`Memory::wait`].
///
/// # Safety
/// As [`Memory::copy_strided`].
pub(crate) unsafe fn copy_within(
    memory: &dyn Memory,
    source: &Part<'_>,
    target: &Part<'_>,
) -> Result<()> {
    let (from, to) = (source.device(), target.device());
    let streams = (current_stream(from), current_stream(to));
    if from == to {
        // SAFETY: the caller's contract.
        return unsafe { memory.copy_strided(source, target, streams.1) };
    }
    memory.wait(to, streams.1, &memory.record(from, streams.0)?)?;
    // SAFETY: the caller's contract, and operations on the source are ordered.
    unsafe { memory.copy_strided(source, target, streams.1)? };
    memory.wait(from, streams.0, &memory.record(to, streams.1)?)
}
