//! A pipeline's record: what waits, and what became of what ran.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result, SharedError};
use keyfold_dispatch::schema::Argument;
use keyfold_dispatch::{
    DispatchKey, DispatchKeySet, LocalContext, LocalGuard, Operator, include_keys_with, local_data,
};
use keyfold_tensor::{PendingBuffer, PendingSource, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::check::Check;
use super::copies::Copies;
use super::failure::Failure;
use super::host;
use super::operation::{Operation, Slot};
use super::recording::Program;
use super::sequence::Matched;
use super::waiting::Waiting;
use super::{recording, settle, timer};

/// The limits of a pipeline, and its check. A recording that reaches one runs what waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The most operations that wait.
    pub max_ops: usize,
    /// The most bytes that wait: results of operations, and copies of other libraries' arrays. Pointwise
    /// results that nobody but waiting operations holds, as inside of a chain, aren't counted while all others
    /// are at most half of the limit; arguments that only waiting operations keep in memory are then counted in
    /// their place.
    pub max_pending_bytes: u64,
    /// The longest time that an operation waits; a thread of its own runs what waits then.
    pub max_wait: Option<Duration>,
    /// Whether a backward pass runs what waits when it is done.
    pub flush_on_backward: bool,
    /// Whether each flush also runs its operations in another way and compares the results.
    pub check: Option<Check>,
}

impl Statistics {
    /// Returns counters that `f` makes of two.
    pub(super) fn combine(self, other: Statistics, f: impl Fn(u64, u64) -> u64) -> Statistics {
        Statistics {
            recorded: f(self.recorded, other.recorded),
            ran: f(self.ran, other.ran),
            at_once: f(self.at_once, other.at_once),
            dead: f(self.dead, other.dead),
            merged: f(self.merged, other.merged),
            failed: f(self.failed, other.failed),
            skipped: f(self.skipped, other.skipped),
            flushes: f(self.flushes, other.flushes),
            groups: f(self.groups, other.groups),
            fused: f(self.fused, other.fused),
            concurrent: f(self.concurrent, other.concurrent),
            planned: f(self.planned, other.planned),
            recognised: f(self.recognised, other.recognised),
            checked: f(self.checked, other.checked),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_ops: 10_000,
            max_pending_bytes: 1 << 30,
            max_wait: None,
            flush_on_backward: false,
            check: None,
        }
    }
}

impl Options {
    /// # Errors
    /// [`ErrorKind::Value`] for a limit of 0.
    fn check(&self) -> Result<()> {
        let zero = [
            ("max_ops", self.max_ops == 0),
            ("max_pending_bytes", self.max_pending_bytes == 0),
            ("max_wait", self.max_wait == Some(Duration::ZERO)),
        ];
        let Some((name, _)) = zero.into_iter().find(|(_, zero)| *zero) else { return Ok(()) };
        Err(Error::new(
            ErrorKind::Value,
            format!(
                "{name} of a pipeline is 0, so nothing could wait: give at least 1, or no pipeline"
            ),
        ))
    }
}

/// The counters of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Operations recorded.
    pub recorded: u64,
    /// Operations that ran, those that failed included.
    pub ran: u64,
    /// Calls that ran at once.
    pub at_once: u64,
    /// Operations left out, since nobody held a result.
    pub dead: u64,
    /// Operations that computed the same as an earlier one, whose results were read instead; they count
    /// as [`Statistics::dead`], too.
    pub merged: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Operations that didn't run, since one before them failed.
    pub skipped: u64,
    /// Times that something waiting was run.
    pub flushes: u64,
    /// Groups of operations that were computed in one pass, or tile by tile.
    pub groups: u64,
    /// Operations that were computed in groups; [`Statistics::ran`] counts them, too.
    pub fused: u64,
    /// Operations that were computed concurrently with others; [`Statistics::ran`] counts them, too.
    pub concurrent: u64,
    /// Flushes whose groups were chosen and compiled, because no flush before had the same operations.
    pub planned: u64,
    /// Flushes whose calls were those of an earlier flush, which were recognised one by one and computed without a
    /// plan of their own.
    pub recognised: u64,
    /// Operations whose results were compared with those of an eager call, by `Options::check`.
    pub checked: u64,
}

/// Calls of one operator that ran at once, for one reason.
#[derive(Clone, Debug)]
pub struct AtOnce {
    /// The operator's name.
    pub operator: String,
    /// The reason.
    pub reason: &'static str,
    /// The number of such calls.
    pub count: u64,
}

/// A sequence or a context that a program has left. It is dropped without the state's lock, since destructors of its
/// kernels and objects may run any code.
pub(super) type Outdated = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
pub(super) struct State {
    /// The number of blocks that it is open in; those inside the first join it.
    blocks: usize,
    /// Whether [`settle`] knows it: it was opened before.
    is_known: bool,
    pub(super) waiting: Waiting,
    /// The calls that are in a known sequence so far; nothing waits then. [`Session::lock`] makes them operations.
    pub(super) matched: Option<Matched>,
    /// The calls that are replayed now. They become operations again if that fails, so what is recorded meanwhile
    /// runs after them.
    pub(super) replayed: Option<Arc<Matched>>,
    pub(super) outdated: Vec<Outdated>,
    pub(super) pending_bytes: u64,
    /// The part of them that doesn't count against the limit, as of the last time that it was determined.
    pub(super) spared_bytes: u64,
    /// The number of operations that waited then.
    pub(super) counted: usize,
    /// The waiting operations that read a memory, by its identity: those below `noted`, since most
    /// programs never ask.
    pub(super) readers: FxHashMap<usize, SmallVec<[usize; 2]>>,
    pub(super) noted: usize,
    /// For each merged call, the call whose results are read instead, by their indices: operations that run after
    /// the one run after the other.
    pub(super) merged: FxHashMap<usize, usize>,
    /// The last recorded operation that draws random numbers.
    pub(super) last_random: Option<usize>,
    /// When the oldest operation was recorded, if there is a limit of time.
    pub(super) oldest: Option<Instant>,
    /// The thread and process that run operations now, and the operations that it is in.
    pub(super) runner: Option<(ThreadId, u32)>,
    pub(super) running: Vec<usize>,
    /// Those of them whose kernel is a user's, and may give its arguments' memory away.
    pub(super) lending: Vec<usize>,
    /// Whether a part of what waits runs.
    pub(super) is_part: bool,
    /// Whether the thread that runs operations gives up what waits when it ends.
    pub(super) gives_up: bool,
    pub(super) turns: usize,
    /// The threads that wait for the one that runs operations.
    pub(super) awaiting: usize,
    /// Failures that nobody was told yet.
    pub(super) unreported: Vec<Arc<Failure>>,
    pub(super) last_failure: Option<Arc<Failure>>,
    pub(super) statistics: Statistics,
    pub(super) at_once: Vec<AtOnce>,
    pub(super) program: Program,
    /// The context of the last recorded operation, which most share.
    pub(super) context: Option<Arc<LocalContext>>,
    /// Those that no waiting operation reads are dropped at the end of a run.
    pub(super) copies: Copies,
}

/// An open pipeline: the local data of the keys Pipeline and Deferred.
pub struct Session {
    this: Weak<Session>,
    pub(super) options: Options,
    /// How the calls of its program run: a [`Manner`].
    manner: AtomicU8,
    /// Whether calls are recorded.
    pub(super) open: AtomicBool,
    /// Whether a thread runs operations: the state says which.
    pub(super) runs: AtomicBool,
    /// Whether the next call is compared with a sequence's: calls match so far, or nothing waits since the block
    /// began or operations ran.
    pub(super) matches: AtomicBool,
    state: Mutex<State>,
    pub(super) freed: Condvar,
}

/// How the calls of a program run.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// When something is read, or the block ends.
    Deferred,
    /// Not at all: they are recorded for a [`Recording`](super::Recording).
    Recorded,
    /// As they are made, since a program that was to be recorded can't be.
    AtOnce,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?})", self.options)
    }
}

/// How a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Normally, or by an error: what waits runs, as it would have without a pipeline.
    Run,
    /// By an interrupt: what waits is given up, and its readers get an error.
    GiveUp,
}

impl Session {
    /// Makes a pipeline that isn't open yet.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a limit of 0.
    pub fn new(options: Options) -> Result<Arc<Session>> {
        options.check()?;
        Ok(Session::of(options, Manner::Deferred))
    }

    pub(super) fn of(options: Options, manner: Manner) -> Arc<Session> {
        Arc::new_cyclic(|this| Session {
            this: Weak::clone(this),
            options,
            manner: AtomicU8::new(manner as u8),
            open: AtomicBool::new(false),
            runs: AtomicBool::new(false),
            matches: AtomicBool::new(false),
            state: Mutex::default(),
            freed: Condvar::new(),
        })
    }

    /// Returns the pipeline that is open here, whose record a new block joins.
    pub fn current() -> Option<Arc<Session>> {
        local_data::<Session>().filter(|session| session.is_open())
    }

    /// Returns the keys that bring calls to a pipeline, for a host language's own guard with the
    /// session as its data.
    pub fn keys() -> DispatchKeySet {
        DispatchKeySet::from([DispatchKey::Pipeline, DispatchKey::Deferred])
    }

    /// Returns the limits and the check.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Checks that a block with these options may join it: its own are kept, and a check that the block
    /// asks for is one of them.
    ///
    /// # Errors
    /// [`ErrorKind::Pipeline`] if this pipeline doesn't check, and the block would.
    pub fn check_join(&self, options: Options) -> Result<()> {
        match options.check {
            Some(check) if self.options.check.is_none() && !self.runs_at_once() => Err(Error::new(
                ErrorKind::Pipeline,
                format!(
                    "a pipeline with check={:?} would join the one around it, which checks nothing: \
                     give the check to that one",
                    check.name()
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Opens it, or opens one block more.
    pub fn open(&self) {
        let was_known = {
            let mut state = self.lock_as_is();
            state.blocks += 1;
            self.open.store(true, Ordering::Relaxed);
            if state.is_idle() {
                self.matches.store(true, Ordering::Relaxed);
            }
            std::mem::replace(&mut state.is_known, true)
        };
        if !was_known {
            settle::note(&self.this);
        }
    }

    /// Records the calls on this thread while the guard lives.
    pub fn enter(&self) -> LocalGuard {
        include_keys_with(Session::keys(), self.share())
    }

    /// Ends a block. The last one's end closes the pipeline, after which calls run at once again.
    ///
    /// # Errors
    /// The first failure that nobody was told yet.
    pub fn close(&self, ending: Ending) -> Result<()> {
        let is_last = {
            let mut state = self.lock_as_is();
            state.blocks = state.blocks.saturating_sub(1);
            state.blocks == 0
        };
        if !is_last {
            return match ending {
                Ending::Run => self.flush(),
                // The block around it decides.
                Ending::GiveUp => Ok(()),
            };
        }
        let mut flushed = match ending {
            Ending::Run => self.flush(),
            Ending::GiveUp => Ok(()),
        };
        self.stop_recording();
        let is_interrupt = flushed.as_ref().err().is_some_and(host::is_interrupt);
        if ending == Ending::Run && !is_interrupt {
            // Calls that other threads recorded between the flush and the end of recording.
            flushed = flushed.and(self.flush());
        }
        // After an interrupt calls still wait; otherwise none does.
        self.give_up();
        self.fill_placeholders();
        flushed
    }

    /// Has calls run at once, unless another block has begun. A call that is recorded now, on another thread, is
    /// recorded before or runs at once: both look under the lock.
    fn stop_recording(&self) {
        let state = self.lock_as_is();
        if state.blocks == 0 {
            self.open.store(false, Ordering::Relaxed);
        }
    }

    /// Gives up what waits, unless another block has begun: its readers get an error. While a thread runs operations,
    /// it does so when it ends.
    pub(super) fn give_up(&self) {
        let error = || {
            SharedError::new(Error::new(
                ErrorKind::Pipeline,
                "the pipeline's block was left before this tensor was computed",
            ))
        };
        let left = {
            let mut state = self.lock();
            if state.blocks > 0 {
                return;
            }
            state.gives_up = state.runner.is_some();
            if state.gives_up {
                return;
            }
            state.take_waiting()
        };
        left.fail(error);
    }

    /// Gives up what waits, whose readers get the error of an operation before it.
    pub(super) fn give_up_after(&self, error: &SharedError) {
        let left = self.lock().take_waiting();
        left.fail(|| error.clone());
    }

    fn runs(&self, manner: Manner) -> bool {
        self.manner.load(Ordering::Relaxed) == manner as u8
    }

    /// Returns whether it only records: nothing runs.
    pub(super) fn only_records(&self) -> bool {
        self.runs(Manner::Recorded)
    }

    /// Returns whether it only recorded, and runs each call at once now.
    pub(super) fn runs_at_once(&self) -> bool {
        self.runs(Manner::AtOnce)
    }

    /// Returns whether it was made for a recording.
    pub(super) fn is_recorder(&self) -> bool {
        !self.runs(Manner::Deferred)
    }

    /// Has calls run at once. Returns whether it only recorded before.
    pub(super) fn begin_to_run(&self) -> bool {
        let (from, to) = (Manner::Recorded as u8, Manner::AtOnce as u8);
        self.manner.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Returns whether calls are recorded.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of operations that wait.
    pub fn pending_count(&self) -> usize {
        let state = self.lock_as_is();
        state.waiting.len() + state.matched.as_ref().map_or(0, Matched::len)
    }

    /// Returns the bytes that wait.
    pub fn pending_bytes(&self) -> u64 {
        self.lock_as_is().pending_bytes
    }

    /// Returns what it has done.
    pub fn statistics(&self) -> Statistics {
        self.lock_as_is().statistics
    }

    /// Returns the last operation that failed.
    pub fn last_failure(&self) -> Option<Arc<Failure>> {
        self.lock_as_is().last_failure.clone()
    }

    pub(super) fn share(&self) -> Arc<Session> {
        self.this.upgrade().unwrap_or_else(|| unreachable!("sessions live in an Arc"))
    }

    /// Returns the pipeline as the source of its pending buffers.
    pub(super) fn as_source(&self) -> Weak<dyn PendingSource> {
        let this: Weak<Session> = Weak::clone(&self.this);
        this
    }

    /// Returns the state, in which all that was recorded and hasn't run waits as operations.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock_as_is();
        self.leave_sequence(&mut state);
        state
    }

    /// As [`Session::lock`], with matched calls as they are, for what doesn't look at operations.
    pub(super) fn lock_as_is(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether no thread has the state's lock.
    pub(super) fn is_unlocked(&self) -> bool {
        !matches!(self.state.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Notes a call that runs at once.
    pub(super) fn note_at_once(&self, operator: &Operator<Value>, reason: &'static str) {
        let writes = |argument: &Argument| argument.alias.as_ref().is_some_and(|a| a.write);
        let (writes, operator) = (operator.schema().arguments.iter().any(writes), operator.name());
        let mut state = self.lock_as_is();
        state.statistics.at_once += 1;
        state.program.has_written |= writes;
        let known = state.at_once.iter_mut().find(|c| c.operator == operator && c.reason == reason);
        match known {
            Some(known) => known.count += 1,
            None => {
                state.at_once.push(AtOnce { operator: operator.to_owned(), reason, count: 1 });
            }
        }
    }

    /// Starts the clock of the limit of time, if that is the first operation that waits.
    pub(super) fn start_clock(&self, state: &mut State) {
        let Some(limit) = self.options.max_wait else { return };
        if state.oldest.is_none() || !timer::is_of_this_process() {
            let oldest = *state.oldest.get_or_insert_with(Instant::now);
            self.watch(oldest + limit);
        }
    }

    /// Has the timer look at it then.
    pub(super) fn watch(&self, due: Instant) {
        timer::watch(Weak::clone(&self.this), due);
    }
}

/// The operations that waited when they were given up.
struct Left {
    operations: Vec<Arc<Operation>>,
    /// Dropped without the state's lock, since they may be the last references to any objects.
    _copies: Copies,
    _outdated: Vec<Outdated>,
}

impl State {
    fn take_waiting(&mut self) -> Left {
        let left = std::mem::take(&mut self.waiting);
        let (first, list) = (left.next(), left.list);
        self.waiting.first = first;
        self.pending_bytes = 0;
        (self.spared_bytes, self.counted) = (0, 0);
        self.readers.clear();
        self.merged.clear();
        self.oldest = None;
        self.set_context(None);
        Left {
            operations: list.into_iter().flatten().collect(),
            _copies: std::mem::take(&mut self.copies),
            _outdated: std::mem::take(&mut self.outdated),
        }
    }
}

impl Left {
    /// Gives the error to the readers of what operations would have written.
    fn fail(self, error: impl FnOnce() -> SharedError) {
        if self.operations.is_empty() {
            return;
        }
        let error = error();
        for operation in &self.operations {
            for memory in operation.results.iter().flatten().filter_map(Slot::held) {
                memory.fail(error.clone());
            }
            let args = operation.take_args();
            for at in &operation.written {
                if let Some(Value::Tensor(tensor)) = args.get(*at)
                    && let Some(memory) = tensor.pending_buffer()
                {
                    memory.fail(error.clone());
                }
            }
        }
    }
}

impl PendingSource for Session {
    fn run_for(&self, buffer: &PendingBuffer) -> Result<()> {
        self.run_reading(buffer)
    }

    fn was_told(&self, error: &SharedError) {
        let is_told = |failure: &mut Arc<Failure>| failure.error.is(error);
        let told: Vec<_> = self.lock_as_is().unreported.extract_if(.., is_told).collect();
        // Without the lock, since a failure keeps its operations' arguments.
        drop(told);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Nobody waits any more who could be told otherwise.
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).blocks = 0;
        self.give_up();
        self.fill_placeholders();
        if self.options.max_wait.is_some() {
            timer::forget(&self.this);
        }
        if self.is_recorder() {
            recording::note_dropped();
        }
    }
}

impl Slot {
    /// Returns the memory, if somebody holds it.
    pub(super) fn held(&self) -> Option<Arc<PendingBuffer>> {
        self.memory.upgrade()
    }
}

/// Returns a session as local data, to compare with [`local_data`]'s.
pub fn as_data(session: &Arc<Session>) -> Arc<dyn Any + Send + Sync> {
    let session: Arc<Session> = Arc::clone(session);
    session
}
