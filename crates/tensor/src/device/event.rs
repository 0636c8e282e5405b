//! Events: points in the order of a stream's operations.

use std::any::Any;
use std::fmt;

use keyfold_core::{Device, Error, ErrorKind, Result};

/// A point in the order of a stream's operations, recorded by
/// [`Memory::record`](super::Memory::record).
pub struct Event {
    device: Device,
    object: Box<dyn Any + Send + Sync>,
}

impl Event {
    /// Returns an event on a device, with the memory's own object.
    pub fn new(device: Device, object: impl Any + Send + Sync) -> Self {
        Event { device, object: Box::new(object) }
    }

    /// Returns the device it was recorded on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the memory's own object.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if it isn't a `T`, since another memory made it then.
    pub fn downcast_ref<T: Any>(&self) -> Result<&T> {
        self.object.downcast_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::Device,
                format!(
                    "this event was recorded on {}; only the memory of that device can use it",
                    self.device
                ),
            )
        })
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event(device={})", self.device)
    }
}
