//! Events: markers in a queue, with the device's time.

use std::sync::atomic::Ordering;

use keyfold_plugin::{Error, ErrorKind, Result};

use crate::api::{self, Api, Handle, status_name};
use crate::device::Device;
use crate::loader::check;
use crate::stream::Stream;

/// A recorded event.
pub struct Event {
    api: &'static Api,
    handle: Handle,
    context: Handle,
    /// The queue's device, and the streams whose work comes before the event.
    after: (Handle, u32),
}

// SAFETY: OpenCL's functions on events may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is this event's own.
        unsafe { (self.api.clReleaseEvent)(self.handle) };
    }
}

impl Event {
    /// Records an event, and has the queue's commands started.
    ///
    /// # Errors
    /// The device's.
    pub fn record(device: &Device, stream: &Stream) -> Result<Event> {
        let (api, mut handle) = (device.api, std::ptr::null_mut());
        // SAFETY: a live queue.
        let status = unsafe {
            (api.clEnqueueMarkerWithWaitList)(stream.queue, 0, std::ptr::null(), &raw mut handle)
        };
        check(status, "recording an event")?;
        let after = (device.id, stream.after.load(Ordering::Relaxed));
        let event = Event { api, handle, context: device.context, after };
        // SAFETY: as above.
        check(unsafe { (api.clFlush)(stream.queue) }, "recording an event")?;
        Ok(event)
    }

    /// Makes a queue wait. Contexts don't know each other's events, so the host waits for one of
    /// another platform.
    ///
    /// # Errors
    /// The device's.
    pub fn hold(&self, device: &Device, stream: &Stream) -> Result<()> {
        if self.after.0 == device.id {
            stream.after.fetch_or(self.after.1, Ordering::Relaxed);
        }
        if self.context != device.context {
            return self.wait();
        }
        // SAFETY: a live queue, and an event of its context.
        let status = unsafe {
            (self.api.clEnqueueBarrierWithWaitList)(
                stream.queue,
                1,
                &raw const self.handle,
                std::ptr::null_mut(),
            )
        };
        check(status, "waiting for an event")
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: a live event.
        let status = unsafe { (self.api.clWaitForEvents)(1, &raw const self.handle) };
        check(status, "waiting for an event")
    }

    /// Returns whether it has completed.
    ///
    /// # Errors
    /// The device's.
    pub fn is_done(&self) -> Result<bool> {
        let mut now: i32 = 0;
        // SAFETY: a live event, whose status has 4 bytes.
        let status = unsafe {
            (self.api.clGetEventInfo)(
                self.handle,
                api::EVENT_COMMAND_EXECUTION_STATUS,
                4,
                (&raw mut now).cast(),
                std::ptr::null_mut(),
            )
        };
        check(status, "asking for an event")?;
        if now < 0 {
            let text = format!("an operation before the event failed: {}", status_name(now));
            return Err(Error::new(ErrorKind::KernelFailed, text).late("opencl"));
        }
        Ok(now == 0)
    }

    /// Waits, and returns the device's time in nanoseconds.
    ///
    /// # Errors
    /// The device's.
    pub fn time(&self) -> Result<i64> {
        self.wait()?;
        let mut time: u64 = 0;
        // SAFETY: a completed event of a queue with times, each of 8 bytes.
        let status = unsafe {
            (self.api.clGetEventProfilingInfo)(
                self.handle,
                api::PROFILING_COMMAND_END,
                8,
                (&raw mut time).cast(),
                std::ptr::null_mut(),
            )
        };
        check(status, "asking for an event's time")?;
        Ok(time.cast_signed())
    }
}
