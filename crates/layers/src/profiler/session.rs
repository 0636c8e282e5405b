//! Sessions: what records, from when to when, and where.

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

/// What a session records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether calls that kernels make are recorded too, as children of the call they serve.
    pub nested: bool,
    /// Whether memory is counted: what calls allocate, and how much is in use after each.
    pub memory: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { nested: false, memory: true }
    }
}

/// Records calls while it is open. Clones are handles to the same session, for any thread.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    /// Its number in this process, never 0.
    number: u64,
    options: Options,
    /// Event times are counted from here.
    origin: Instant,
    /// Whether calls are recorded now. Read for every call, so beside the lock.
    open: AtomicBool,
    clock: Mutex<Clock>,
    /// Events are numbered in the order in which they begin, from 1 on.
    next_event: AtomicU64,
    log: Log,
}

/// When it was open.
struct Clock {
    since: Option<Instant>,
    before: Duration,
    counting: Option<memory::Counting>,
    /// Bytes in use when it first opened.
    live_before: Option<i64>,
    /// Whether the profiler's key was excluded where it was opened last.
    excluded: bool,
}

/// What local keys carry for the profiler: who records here, and the innermost range that is open.
pub(crate) struct Scope {
    pub(super) session: Session,
    pub(super) range: Option<RangeMark>,
    /// What applied where this was opened, and does again where this is over.
    outer: Option<Arc<Scope>>,
}

/// A range as its children see it.
pub(super) struct RangeMark {
    pub(super) event: u64,
    pub(super) depth: u32,
    pub(super) closed: AtomicBool,
}

impl Scope {
    /// The innermost scope here whose session and range are open. A copied context may outlive
    /// the block that it was copied in.
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
    /// A session that is not open yet.
    pub fn new(options: Options) -> Session {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let clock = Clock {
            since: None,
            before: Duration::ZERO,
            counting: None,
            live_before: None,
            excluded: false,
        };
        Session(Arc::new(Inner {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            options,
            origin: Instant::now(),
            open: AtomicBool::new(false),
            clock: Mutex::new(clock),
            next_event: AtomicU64::new(1),
            log: Log::default(),
        }))
    }

    /// What it records.
    pub fn options(&self) -> Options {
        self.0.options
    }

    /// Whether it records now.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Relaxed)
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        // Each change under the lock is one assignment or more that don't panic.
        self.0.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the session and gives what local keys must carry for calls to be recorded: for a
    /// binding with contexts of its own. Opened again after it was closed, it goes on.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] when it is open.
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
        clock.since = Some(Instant::now());
        self.0.open.store(true, Ordering::Relaxed);
        drop(clock);
        Ok(Scope::new(self, None))
    }

    /// Ends the recording. Calls that are under way are recorded when they end.
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
    /// [`ErrorKind::Guard`] when it is open.
    pub fn start(&self) -> Result<Recording> {
        let data = self.open()?;
        let guard = Some(include_keys_with(DispatchKey::Profiler.into(), data));
        Ok(Recording { session: self.clone(), guard })
    }

    /// What local keys must carry for another thread's calls to be recorded: for a binding with
    /// contexts of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] when the session isn't open.
    pub fn attached(&self) -> Result<LocalData> {
        self.check_open("attach to it")?;
        Ok(Scope::new(self, None))
    }

    /// Records this thread's calls, too, while the result lives and the session is open.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] when the session isn't open.
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
    /// [`ErrorKind::Guard`] when the session isn't open.
    pub fn range(&self, name: &str) -> Result<RangeGuard> {
        Ok(OpenRange::of(self, name)?.enter())
    }

    /// Gives the calling thread a name in what is recorded.
    pub fn name_thread(&self, name: &str) {
        self.0.log.name_thread(record::thread_number(), name);
    }

    /// How long it was open so far.
    pub fn total(&self) -> Duration {
        let clock = self.clock();
        clock.before + clock.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// How many calls and ranges ended so far.
    pub fn event_count(&self) -> usize {
        self.0.log.len()
    }

    /// What was recorded so far: calls and ranges that ended.
    pub fn profile(&self) -> Profile {
        let clock = self.clock();
        let open = clock.since;
        let total = clock.before + open.map_or(Duration::ZERO, |since| since.elapsed());
        let (live_before, excluded) = (clock.live_before.unwrap_or(0), clock.excluded);
        drop(clock);
        let mut profile = self.0.log.collect(live_before);
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
    pub(super) fn next_event(&self) -> u64 {
        self.0.next_event.fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn origin(&self) -> Instant {
        self.0.origin
    }

    #[inline]
    pub(super) fn log(&self) -> &Log {
        &self.0.log
    }
}

/// A session is open while this lives, for the calls of the thread that started it.
#[must_use = "the session is open only while this lives"]
pub struct Recording {
    session: Session,
    guard: Option<LocalGuard>,
}

impl Recording {
    /// Closes the session and says whether that was in order.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] when a local guard that was opened later is still open.
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

/// A thread takes part in a session while this lives.
#[must_use = "the thread takes part only while this lives"]
pub struct Attachment {
    _guard: LocalGuard,
    _not_send: PhantomData<*const ()>,
}
