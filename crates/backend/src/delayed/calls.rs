//! Counters of the device's calls, and injected faults.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};

/// A call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Allocates memory.
    Allocate,
    /// Copies bytes of the host to the device.
    Upload,
    /// Copies bytes to the host.
    Download,
    /// Copies elements on the device.
    Copy,
    /// Fills memory.
    Fill,
    /// Launches a kernel.
    Launch,
    /// Records an event.
    Record,
    /// Makes a stream wait for an event.
    Wait,
    /// Makes the host wait for the device.
    Synchronize,
    /// Runs a queued operation.
    Run,
}

impl Call {
    /// All calls.
    pub const ALL: [Call; 10] = [
        Call::Allocate,
        Call::Upload,
        Call::Download,
        Call::Copy,
        Call::Fill,
        Call::Launch,
        Call::Record,
        Call::Wait,
        Call::Synchronize,
        Call::Run,
    ];

    /// Returns its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Call::Allocate => "allocate",
            Call::Upload => "upload",
            Call::Download => "download",
            Call::Copy => "copy",
            Call::Fill => "fill",
            Call::Launch => "launch",
            Call::Record => "record",
            Call::Wait => "wait",
            Call::Synchronize => "synchronize",
            Call::Run => "run",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An injected fault.
struct Fault {
    /// The call that fails; `None` for any but [`Call::Run`].
    call: Option<Call>,
    /// The number of such calls until the fault, including the one that fails.
    left: usize,
}

/// Counters of the calls, and the injected fault.
#[derive(Default)]
pub struct Counts {
    made: [AtomicUsize; Call::ALL.len()],
    fault: Mutex<Option<Fault>>,
}

impl Counts {
    /// Returns the number of times a call was made.
    pub fn of(&self, call: Call) -> usize {
        self.made[call as usize].load(Ordering::SeqCst)
    }

    pub(super) fn fail_at(&self, call: Option<Call>, nth: usize) {
        let fault = (nth > 0).then_some(Fault { call, left: nth });
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Counts a call.
    ///
    /// # Errors
    /// If the call is the one that fails.
    pub(super) fn note(&self, call: Call) -> Result<()> {
        let number = self.made[call as usize].fetch_add(1, Ordering::SeqCst) + 1;
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(planned) = &mut *fault else { return Ok(()) };
        if planned.call.map_or(call == Call::Run, |wanted| wanted != call) {
            return Ok(());
        }
        planned.left -= 1;
        if planned.left > 0 {
            return Ok(());
        }
        *fault = None;
        let kind = if call == Call::Allocate { ErrorKind::Memory } else { ErrorKind::KernelFailed };
        Err(Error::new(kind, format!("injected: {call} number {number} failed")))
    }
}
