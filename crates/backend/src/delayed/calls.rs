//! Calls of the device: how often each was made, and which one fails.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};

/// A call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Memory is allocated.
    Allocate,
    /// Bytes of the host are copied to the device.
    Upload,
    /// Bytes are copied to the host.
    Download,
    /// Elements are copied on the device.
    Copy,
    /// Memory is filled.
    Fill,
    /// A kernel is launched.
    Launch,
    /// An event is recorded.
    Record,
    /// A stream waits for an event.
    Wait,
    /// The host waits for the device.
    Synchronize,
    /// An operation that was queued runs.
    Run,
}

impl Call {
    /// All of them.
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

    /// Its name, in lower case.
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

/// A call that is to fail.
struct Fault {
    /// Any but [`Call::Run`] where there is none.
    call: Option<Call>,
    /// How many of them are made until then, with the one that fails.
    left: usize,
}

/// How often each call was made, and which one is to fail.
#[derive(Default)]
pub struct Counts {
    made: [AtomicUsize; Call::ALL.len()],
    fault: Mutex<Option<Fault>>,
}

impl Counts {
    /// How often a call was made.
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
    /// Where it is the one that is to fail.
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
