//! Sessions: recordings with their options and time spans.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{
    DispatchKey, LocalData, LocalGuard, LocalKeys, include_keys_with, local_data,
};
use keyfold_tensor::memory;

use super::event::Profile;
use super::log::Log;
use super::range::{OpenRange, RangeGuard};
use super::record;

/// The options of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether calls inside kernels are recorded too, as children of the kernel's call.
    pub nested: bool,
    /// Whether memory is counted: allocations of each call, and the memory in use after it.
    pub memory: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { nested: false, memory: true }
    }
}

/// A recorder of calls. Clones are handles to the same session, for any thread.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    /// Its number in this process, never 0.
    number: u64,
    options: Options,
    /// Whether calls are recorded. Outside the lock, since every call reads it.
    open: AtomicBool,
    clock: Mutex<Clock>,
    log: Log,
}

/// The times at which it was open.
struct Clock {
    /// The first opening: the zero of event times.
    origin: Option<Instant>,
    since: Option<Instant>,
    before: Duration,
    counting: Option<memory::Counting>,
    /// The bytes in use at the first opening.
    live_before: Option<i64>,
    /// Whether the profiler's key was excluded at the last opening.
    excluded: bool,
}

/// The profiler's local data: the recording session, and the innermost open range.
pub(crate) struct Scope {
    pub(super) session: Session,
    pub(super) range: Option<RangeMark>,
    /// The enclosing scope, which applies again after this one.
    outer: Option<Arc<Scope>>,
}

/// A range, as its children refer to it.
pub(super) struct RangeMark {
    pub(super) event: u64,
    pub(super) depth: u32,
    pub(super) closed: AtomicBool,
}

impl Scope {
    /// Returns the innermost scope here whose session and range are open. A copied context may
    /// outlive the block it was copied in.
    pub(super) fn current() -> Option<Arc<Scope>> {
        let mut scope = local_data::<Scope>()?;
        loop {
            let over = match &scope.range {
                Some(range) => range.closed.load(Ordering::Relaxed),
                None => false,
            };
            if scope.session.is_open() && !over {
                return Some(scope);
            }
            let outer = scope.outer.clone()?;
            scope = outer;
        }
    }

    pub(super) fn new(session: &Session, range: Option<RangeMark>) -> Arc<Scope> {
        Arc::new(Scope { session: session.clone(), range, outer: local_data::<Scope>() })
    }
}

impl Session {
    /// Returns a session that isn't open yet.
    pub fn new(options: Options) -> Session {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let clock = Clock {
            origin: None,
            since: None,
            before: Duration::ZERO,
            counting: None,
            live_before: None,
            excluded: false,
        };
        Session(Arc::new(Inner {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            options,
            open: AtomicBool::new(false),
            clock: Mutex::new(clock),
            log: Log::default(),
        }))
    }

    /// Returns the options.
    pub fn options(&self) -> Options {
        self.0.options
    }

    /// Returns whether it is recording.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Relaxed)
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        // Changes under the lock are assignments, which don't panic.
        self.0.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the session and returns the local data with which calls are recorded, for a binding
    /// with contexts of its own. A closed session can be opened again and continues.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] if it is open.
    pub fn open(&self) -> Result<LocalData> {
        let mut clock = self.clock();
        if clock.since.is_some() {
            return Err(Error::new(
                ErrorKind::Guard,
                "this profile is open already; in another thread, attach to it instead \
                 (profile.attach()), and for a profile of its own make another one",
            ));
        }
        if self.0.options.memory {
            clock.counting = Some(memory::count());
            clock.live_before.get_or_insert_with(memory::live);
        }
        clock.excluded = LocalKeys::current().excluded().contains(DispatchKey::Profiler);
        let now = Instant::now();
        clock.origin.get_or_insert(now);
        clock.since = Some(now);
        self.0.open.store(true, Ordering::Relaxed);
        drop(clock);
        Ok(Scope::new(self, None))
    }

    /// Ends the recording. Running calls are recorded when they end.
    pub fn close(&self) {
        let mut clock = self.clock();
        self.0.open.store(false, Ordering::Relaxed);
        if let Some(since) = clock.since.take() {
            clock.before += since.elapsed();
        }
        clock.counting = None;
        drop(clock);
        self.0.log.forget_operators();
    }

    /// Opens the session for this thread's calls until [`Recording::stop`], or the drop.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] if it is open.
    pub fn start(&self) -> Result<Recording> {
        let data = self.open()?;
        let guard = Some(include_keys_with(DispatchKey::Profiler.into(), data));
        Ok(Recording { session: self.clone(), guard })
    }

    /// Returns the local data with which another thread's calls are recorded, for a binding with
    /// contexts of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] if the session isn't open.
    pub fn attached(&self) -> Result<LocalData> {
        self.check_open("attach to it")?;
        Ok(Scope::new(self, None))
    }

    /// Records this thread's calls, too, while the result lives and the session is open.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] if the session isn't open.
    pub fn attach(&self) -> Result<Attachment> {
        let data = self.attached()?;
        let _guard = include_keys_with(DispatchKey::Profiler.into(), data);
        Ok(Attachment { _guard, _not_send: PhantomData })
    }

    pub(super) fn check_open(&self, to: &str) -> Result<()> {
        if self.is_open() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Guard,
            format!("this profile isn't open, so nothing can {to}; do that inside its block"),
        ))
    }

    /// Opens a named range, an event around the calls made while the result lives.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] if the session isn't open.
    pub fn range(&self, name: &str) -> Result<RangeGuard> {
        Ok(OpenRange::of(self, name)?.enter())
    }

    /// Names the calling thread in the recording.
    pub fn name_thread(&self, name: &str) {
        self.0.log.name_thread(record::thread_number(), name);
    }

    /// Returns the time for which it was open so far.
    pub fn total(&self) -> Duration {
        let clock = self.clock();
        clock.before + clock.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the number of calls and ranges completed so far.
    pub fn event_count(&self) -> usize {
        self.0.log.len()
    }

    /// Returns the recording so far: completed calls and ranges.
    pub fn profile(&self) -> Profile {
        let clock = self.clock();
        let open = clock.since;
        let total = clock.before + open.map_or(Duration::ZERO, |since| since.elapsed());
        let origin = clock.origin.unwrap_or_else(Instant::now);
        let (live_before, excluded) = (clock.live_before.unwrap_or(0), clock.excluded);
        drop(clock);
        let mut profile = self.0.log.collect(origin, live_before);
        profile.total = total;
        profile.is_open = open.is_some();
        profile.excluded = excluded;
        profile.options = self.0.options;
        profile
    }

    #[inline]
    pub(super) fn number(&self) -> u64 {
        self.0.number
    }

    #[inline]
    pub(super) fn log(&self) -> &Log {
        &self.0.log
    }
}

/// An open session for the calls of the thread that started it, closed when this is dropped.
#[must_use = "the session is open only while this lives"]
pub struct Recording {
    session: Session,
    guard: Option<LocalGuard>,
}

impl Recording {
    /// Closes the session.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] if a local guard opened later is still open.
    pub fn stop(mut self) -> Result<()> {
        match self.guard.take() {
            Some(guard) => guard.close(),
            None => Ok(()),
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.session.close();
    }
}

/// The participation of a thread in a session, ended when this is dropped.
#[must_use = "the thread takes part only while this lives"]
pub struct Attachment {
    _guard: LocalGuard,
    _not_send: PhantomData<*const ()>,
}
