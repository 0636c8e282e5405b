//! Streams: queues of a device's operations, with a current one per thread and device.

use std::cell::RefCell;
use std::fmt;

use keyfold_core::{Device, Error, ErrorKind, Result};

use super::Memory;

/// One of the streams of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StreamId(u32);

impl StreamId {
    /// The stream that every device has, and that threads use by default.
    pub const DEFAULT: StreamId = StreamId(0);

    /// Returns the stream of that number.
    pub const fn new(number: u32) -> Self {
        StreamId(number)
    }

    /// Returns its number among the streams of its device.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamId({})", self.0)
    }
}

thread_local! {
    /// The devices for which this thread has set a stream other than the default.
    static CHOSEN: RefCell<Vec<(Device, StreamId)>> = const { RefCell::new(Vec::new()) };
}

/// Returns the stream on which this thread's operations on a device are queued.
pub fn current_stream(device: Device) -> StreamId {
    // An ending thread has no list any more and uses the default stream.
    let found = CHOSEN.try_with(|chosen| {
        chosen.borrow().iter().find(|(known, _)| *known == device).map(|(_, stream)| *stream)
    });
    found.ok().flatten().unwrap_or_default()
}

/// Sets this thread's stream on a device and returns the previous one. This doesn't order
/// operations on the two: see [`Memory::wait`].
///
/// # Errors
/// [`ErrorKind::Device`] for a device without memory, an index or a stream out of range, and on an
/// ending thread.
pub fn set_current_stream(device: Device, stream: StreamId) -> Result<StreamId> {
    check_stream(&*super::memory_of(device)?, device, stream)?;
    let set = CHOSEN.try_with(|chosen| {
        let mut chosen = chosen.borrow_mut();
        let place = chosen.iter().position(|(known, _)| *known == device);
        match (place, stream) {
            (Some(place), StreamId::DEFAULT) => chosen.swap_remove(place).1,
            (Some(place), _) => std::mem::replace(&mut chosen[place].1, stream),
            (None, StreamId::DEFAULT) => StreamId::DEFAULT,
            (None, _) => {
                chosen.push((device, stream));
                StreamId::DEFAULT
            }
        }
    });
    set.map_err(|_| {
        Error::new(ErrorKind::Device, "a thread that is ending can't choose a stream any more")
    })
}

/// # Errors
/// [`ErrorKind::Device`] for a stream that the device doesn't have, with the number of its streams.
pub fn check_stream(memory: &dyn Memory, device: Device, stream: StreamId) -> Result<()> {
    let count = memory.stream_count(device);
    if (stream.number() as usize) < count {
        return Ok(());
    }
    let plural = if count == 1 { "" } else { "s" };
    Err(Error::new(
        ErrorKind::Device,
        format!("{device} has {count} stream{plural}; there is no stream {}", stream.number()),
    ))
}
