//! Device times of calls, by events before and after each on its stream.
//!
//! A call only queues the events. The time between them is read with the profile, which waits until
//! the call has run.

use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::Device;
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Value as _};
use keyfold_tensor::device::{Event, Memory, MemoryRef, StreamId, current_stream, memory_of};
use keyfold_tensor::{Value, ValueRef};

/// The backends whose memory may be asynchronous: all but the host's and meta's.
pub(super) const DEVICES: DispatchKeySet =
    DispatchKeySet::BACKENDS.remove(DispatchKey::CPU).remove(DispatchKey::Meta);

/// A call that is being timed.
pub(super) struct Timer {
    memory: Arc<dyn Memory>,
    device: Device,
    stream: StreamId,
    start: Event,
}

impl Timer {
    /// Queues the first event; `None` if no argument is on an asynchronous device, or if the device
    /// can't record, which doesn't make the call fail.
    pub(super) fn start(args: &[ValueRef<'_>]) -> Option<Timer> {
        let devices = args.iter().filter_map(|arg| match arg {
            ValueRef::Device(device) => Some(*device),
            arg => Value::tag(*arg).device(),
        });
        let (device, memory) = devices.filter_map(asynchronous).next()?;
        let stream = current_stream(device);
        let start = memory.record(device, stream).ok()?;
        Some(Timer { memory, device, stream, start })
    }

    /// Queues the second event, for the profiler's event of that number.
    pub(super) fn stop(self, call: u64) -> Option<DeviceTime> {
        let Timer { memory, device, stream, start } = self;
        let end = memory.record(device, stream).ok()?;
        Some(DeviceTime { call, state: Mutex::new(TimeState::Queued { memory, start, end }) })
    }
}

/// Returns a device with its memory, if that is asynchronous.
fn asynchronous(device: Device) -> Option<(Device, Arc<dyn Memory>)> {
    match memory_of(device).ok()? {
        MemoryRef::Shared(memory) if memory.is_asynchronous() => Some((device, memory)),
        _ => None,
    }
}

/// The device's time of a call.
pub(super) struct DeviceTime {
    call: u64,
    state: Mutex<TimeState>,
}

enum TimeState {
    Queued {
        memory: Arc<dyn Memory>,
        start: Event,
        end: Event,
    },
    /// In nanoseconds; `None` if the device reported an error.
    Known(Option<u64>),
}

impl DeviceTime {
    /// Returns the call's number and its time; the first read waits for the call.
    pub(super) fn read(&self) -> Option<(u64, u64)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let TimeState::Queued { memory, start, end } = &*state {
            let time = memory.elapsed(start, end).ok();
            *state = TimeState::Known(time.map(|time| u64::try_from(time).unwrap_or(0)));
        }
        match &*state {
            TimeState::Known(Some(time)) => Some((self.call, *time)),
            _ => None,
        }
    }
}
