//! Streams: queues of a device's operations, and the one that a thread uses.

use std::cell::RefCell;
use std::fmt;

use keyfold_core::{Device, Error, ErrorKind, Result};

use super::Memory;

/// One of the streams of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StreamId(u32);

impl StreamId {
    /// The stream that every device has, and that a thread uses unless it chose another.
    pub const DEFAULT: StreamId = StreamId(0);

    /// The stream with that number.
    pub const fn new(number: u32) -> Self {
        StreamId(number)
    }

    /// Its number among the streams of its device.
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
    /// The devices where this thread chose a stream other than the default one.
    static CHOSEN: RefCell<Vec<(Device, StreamId)>> = const { RefCell::new(Vec::new()) };
}

/// The stream that this thread's operations on a device are queued on.
pub fn current_stream(device: Device) -> StreamId {
    // A thread that is ending has no list any more, and uses the default stream.
    let found = CHOSEN.try_with(|chosen| {
        chosen.borrow().iter().find(|(known, _)| *known == device).map(|(_, stream)| *stream)
    });
    found.ok().flatten().unwrap_or_default()
}

/// Makes another stream this thread's on a device, and returns the one before. Operations on the two
/// aren't ordered by this: see [`Memory::wait`].
///
/// # Errors
/// [`ErrorKind::Device`] for a device without memory, an index or a stream that isn't there, and on a
/// thread that is ending.
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
/// [`ErrorKind::Device`] for a stream that the device doesn't have, with the number of those it has.
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
