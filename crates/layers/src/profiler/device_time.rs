//! The device's time of a call: events before and after it, on the stream that it is queued on.
//!
//! A call only queues the events. How far apart they are is asked when the profile is read, which waits
//! for the call to have run.

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
    /// Queues the first event; `None` where the arguments are on no device that works late, or the device
    /// can't record: that isn't the call's failure.
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

    /// Queues the second one, for the profiler's event of that number.
    pub(super) fn stop(self, call: u64) -> Option<DeviceTime> {
        let Timer { memory, device, stream, start } = self;
        let end = memory.record(device, stream).ok()?;
        Some(DeviceTime { call, state: Mutex::new(State::Queued { memory, start, end }) })
    }
}

/// A device with the memory that it has, if that works late.
fn asynchronous(device: Device) -> Option<(Device, Arc<dyn Memory>)> {
    match memory_of(device).ok()? {
        MemoryRef::Shared(memory) if memory.is_asynchronous() => Some((device, memory)),
        _ => None,
    }
}

/// The device's time of a call.
pub(super) struct DeviceTime {
    call: u64,
    state: Mutex<State>,
}

enum State {
    Queued {
        memory: Arc<dyn Memory>,
        start: Event,
        end: Event,
    },
    /// In nanoseconds; `None` where the device couldn't tell.
    Known(Option<u64>),
}

impl DeviceTime {
    /// The call's number and its time, for which this waits the first time.
    pub(super) fn read(&self) -> Option<(u64, u64)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Queued { memory, start, end } = &*state {
            let time = memory.elapsed(start, end).ok();
            *state = State::Known(time.map(|time| u64::try_from(time).unwrap_or(0)));
        }
        match &*state {
            State::Known(Some(time)) => Some((self.call, *time)),
            _ => None,
        }
    }
}
