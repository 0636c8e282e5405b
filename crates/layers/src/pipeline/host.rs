//! The host language's part in a pipeline: the line of a call in the program, the language's lock,
//! and its interrupts.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result};

/// A place in a program of the host language, resolved when it is shown.
pub trait ProgramPlace: Send + Sync {
    /// Returns the place as `file:line`; `None` if the host language has ended.
    fn resolve(&self) -> Option<String>;
}

/// The line that recorded an operation.
#[derive(Clone)]
pub struct Site(Arc<dyn ProgramPlace>);

impl Site {
    /// Makes a site of a place.
    pub fn new(place: impl ProgramPlace + 'static) -> Site {
        Site(Arc::new(place))
    }

    /// Returns it as `file:line`; `None` if the host language has ended.
    pub fn resolve(&self) -> Option<String> {
        self.0.resolve()
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Site")
    }
}

/// The host language's part; see [`set_host`].
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Returns the line of the running call.
    pub site: fn() -> Option<Site>,
    /// Runs a function without the host language's lock, since it computes, or waits for a thread
    /// that needs the lock.
    pub without_lock: fn(&mut dyn FnMut()),
    /// Runs the host language's signal handlers, and returns the error that one of them raises, as Ctrl-C's
    /// does. Called between operations, and between tiles.
    pub interrupted: fn() -> Result<()>,
    /// Returns whether an error isn't an operation's own, but stops the program.
    pub is_interrupt: fn(&Error) -> bool,
    /// Adds a note to the exception of the host language in an error.
    pub annotate: fn(&Error, &str),
}

static HOST: OnceLock<Host> = OnceLock::new();

/// Sets the host language's functions. Returns false, without effect, if they are set already.
pub fn set_host(host: Host) -> bool {
    HOST.set(host).is_ok()
}

pub(super) fn site() -> Option<Site> {
    HOST.get().and_then(|host| (host.site)())
}

pub(super) fn interrupted() -> Result<()> {
    HOST.get().map_or(Ok(()), |host| (host.interrupted)())
}

/// The time between two looks for an interrupt.
pub(super) const INTERRUPT_CHECK: Duration = Duration::from_millis(20);

/// A look for interrupts, now and then, while a thread computes.
pub(super) struct Watch {
    /// The thread that computes. Others that help don't look.
    thread: ThreadId,
    looked: Mutex<Instant>,
    /// The error of a look inside a computation.
    stop: Mutex<Option<Error>>,
}

impl Watch {
    /// Begins to look on this thread.
    pub(super) fn new() -> Watch {
        let (thread, looked) = (std::thread::current().id(), Mutex::new(Instant::now()));
        Watch { thread, looked, stop: Mutex::default() }
    }

    /// Looks for an interrupt, if the last look was a while ago.
    ///
    /// # Errors
    /// An interrupt.
    pub(super) fn look(&self) -> Result<()> {
        if std::thread::current().id() != self.thread {
            return Ok(());
        }
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.elapsed() >= INTERRUPT_CHECK {
            interrupted()?;
            *looked = Instant::now();
        }
        Ok(())
    }

    /// As [`Watch::look`], inside a computation whose own errors mean that its operations are tried one by
    /// one: the error is kept for [`Watch::take_stop`].
    ///
    /// # Errors
    /// If the computation has to stop.
    pub(super) fn look_inside(&self) -> Result<()> {
        self.look().map_err(|error| {
            *self.stop.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            Error::new(ErrorKind::Pipeline, "the computation was stopped")
        })
    }

    /// Takes the error that stopped a computation.
    pub(super) fn take_stop(&self) -> Option<Error> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

pub(super) fn is_interrupt(error: &Error) -> bool {
    HOST.get().is_some_and(|host| (host.is_interrupt)(error))
}

pub(super) fn annotate(error: &Error, note: &str) {
    if let Some(host) = HOST.get() {
        (host.annotate)(error, note);
    }
}

/// Runs `f` without the host language's lock.
pub(super) fn without_lock<R>(f: impl FnOnce() -> R) -> R {
    let Some(host) = HOST.get() else { return f() };
    let (mut f, mut result) = (Some(f), None);
    (host.without_lock)(&mut || {
        if let Some(f) = f.take() {
            result = Some(f());
        }
    });
    match result {
        Some(result) => result,
        None => unreachable!("the host runs the function once"),
    }
}
