//! One call of `parallel_for`: what caller and helpers share, and how the caller knows that the
//! others are done.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::LocalContext;

use super::share::Shares;
use super::{Schedule, workers};

/// The work itself.
type Body<'a> = dyn Fn(Range<usize>) -> Result<()> + Sync + 'a;

/// In [`Job::state`]: no helper may begin any more.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// In [`Job::state`]: the caller sleeps, and the last helper wakes it.
const WAITING: usize = 1 << (usize::BITS - 2);
/// In [`Job::state`]: helpers at work.
const AT_WORK: usize = WAITING - 1;

/// How long the caller looks whether the helpers are done before it sleeps. Being woken takes as long,
/// and a helper has one piece left at most.
const PATIENCE: Duration = Duration::from_micros(50);

/// Why a job ends early.
enum Failure {
    Error(Error),
    Panic(Box<dyn Any + Send>),
}

pub(super) struct Job {
    /// Borrowed by the caller's frame: to be used by helpers that are counted in `state` only.
    body: *const Body<'static>,
    range: Range<usize>,
    grain: usize,
    /// Indices per part that is shared out: the grain, or more.
    unit: usize,
    shares: Shares,
    /// Helpers so far: their numbers.
    helpers: AtomicUsize,
    state: AtomicUsize,
    /// The first failure; null until then.
    failure: AtomicPtr<Failure>,
    caller: Thread,
    /// What applies on the caller's thread; null if nothing does. The caller's, as the body is: what
    /// it carries isn't kept by helpers that come late.
    context: *const LocalContext,
}

// SAFETY: the body and the context are `Sync`, and used while their owner waits only (see `help`); the
// failure is owned by the job and `Send`.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

/// Calls `f` with the pieces of a range, one after the other.
pub(super) fn pieces(
    range: Range<usize>,
    grain: usize,
    f: impl Fn(Range<usize>) -> Result<()>,
) -> Result<()> {
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min(start.saturating_add(grain));
        f(start..end)?;
        start = end;
    }
    Ok(())
}

/// How a range is cut for sharing: indices per part, and the number of parts.
fn cut(schedule: Schedule, len: usize, grain: usize, threads: usize) -> (usize, u32) {
    let unit = match schedule {
        Schedule::Uniform => len.div_ceil(threads),
        // As many grains as make the number of parts fit 32 bits.
        Schedule::Adaptive => {
            let grains = len.div_ceil(grain).div_ceil(u32::MAX as usize);
            grain.saturating_mul(grains.max(1))
        }
    };
    (unit, len.div_ceil(unit) as u32)
}

/// Runs a job of more than one piece with the help of workers.
pub(super) fn run(
    schedule: Schedule,
    range: Range<usize>,
    grain: usize,
    body: &Body<'_>,
) -> Result<()> {
    let Some(workers) = workers::current()? else {
        return pieces(range, grain, body);
    };
    let (unit, parts) = cut(schedule, range.len(), grain, workers.threads());
    let threads = workers.threads().min(parts as usize);
    let generation = workers::generation();
    let body = std::ptr::from_ref(body);
    // SAFETY: only the lifetime changes; `help` says why nobody uses the body after this call.
    let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
    let context = local_context();
    let job = Arc::new(Job {
        body,
        range,
        grain,
        unit,
        shares: Shares::new(schedule, parts, threads),
        helpers: AtomicUsize::new(0),
        state: AtomicUsize::new(0),
        failure: AtomicPtr::new(null_mut()),
        caller: std::thread::current(),
        context: context.as_ref().map_or(null(), std::ptr::from_ref),
    });
    let ticket = workers.invite(&job, threads - 1);
    // From here to `finish` nothing unwinds: helpers may be at work.
    job.work(0);
    if workers::generation() == generation {
        workers.take_back(ticket);
    }
    job.finish(generation)
}

/// This thread's local keys and objects, if there are any.
fn local_context() -> Option<LocalContext> {
    let context = LocalContext::current();
    (!context.is_empty()).then_some(context)
}

impl Job {
    /// Takes part as a helper, unless the caller is done.
    pub(super) fn help(&self) {
        // Acquire: the caller's closing, or the body as the caller made it.
        let state = self.state.fetch_add(1, Ordering::Acquire);
        if state & CLOSED == 0 {
            let number = 1 + self.helpers.fetch_add(1, Ordering::Relaxed);
            // SAFETY: null, or the caller's, who waits for this helper, now that `state` counts it.
            let context = unsafe { self.context.as_ref() };
            match context {
                None if local_context().is_none() => self.work(number),
                // A worker may be inside other work, which waits for this one.
                None => LocalContext::default().replace(|| self.work(number)),
                Some(context) => context.replace(|| self.work(number)),
            }
        }
        // Release: what this helper wrote, to the caller. `self` is a share of our own.
        let state = self.state.fetch_sub(1, Ordering::Release);
        if state & WAITING != 0 && state & AT_WORK == 1 {
            self.caller.unpark();
        }
    }

    /// Takes parts until none is left, or one has failed. Doesn't unwind.
    fn work(&self, thread: usize) {
        let run = || {
            while let Some(part) = self.shares.take(thread) {
                if !self.failure.load(Ordering::Relaxed).is_null() {
                    return Ok(());
                }
                let start = self.range.start + part as usize * self.unit;
                let end = self.range.end.min(start.saturating_add(self.unit));
                // SAFETY: the caller works itself, or waits for this helper, which `state` counts:
                // what the body borrows is still there.
                let body = unsafe { &*self.body };
                pieces(start..end, self.grain, |piece| {
                    if self.failure.load(Ordering::Relaxed).is_null() {
                        body(piece)
                    } else {
                        Ok(())
                    }
                })?;
            }
            Ok(())
        };
        let failure = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => Failure::Error(error),
            Err(panic) => Failure::Panic(panic),
        };
        self.fail(failure);
    }

    #[cold]
    fn fail(&self, failure: Failure) {
        let failure = Box::into_raw(Box::new(failure));
        let first =
            self.failure.compare_exchange(null_mut(), failure, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_err() {
            // SAFETY: made above, and nobody else has seen it. A payload whose destructor panics
            // too must not end the process.
            let failure = unsafe { Box::from_raw(failure) };
            let _ = catch_unwind(AssertUnwindSafe(|| drop(failure)));
        }
    }

    /// Waits for the helpers at work, and gives the job's result.
    fn finish(&self, generation: u32) -> Result<()> {
        // Acquire, here and below: what helpers wrote.
        let mut state = self.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut since = None;
        while state & AT_WORK != 0 {
            if workers::generation() != generation {
                return Err(forked());
            }
            if state & WAITING != 0 {
                std::thread::park();
            } else if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                self.state.fetch_or(WAITING, Ordering::Relaxed);
            } else {
                (0..8).for_each(|_| std::hint::spin_loop());
            }
            state = self.state.load(Ordering::Acquire);
        }
        let failure = self.failure.swap(null_mut(), Ordering::Acquire);
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: `fail` made it by `Box::into_raw`, and the swap makes it ours.
        match *unsafe { Box::from_raw(failure) } {
            Failure::Error(error) => Err(error),
            Failure::Panic(payload) => resume_unwind(payload),
        }
    }
}

#[cold]
fn forked() -> Error {
    Error::new(
        ErrorKind::KernelFailed,
        "parallel_for: the process forked inside the work that it ran; the child has no threads to \
         finish it: end the child, or fork before or after",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_covers_the_range_in_parts_that_fit() {
        for schedule in [Schedule::Uniform, Schedule::Adaptive] {
            for len in [1, 2, 3, 100, 101, 1 << 40, usize::MAX] {
                for grain in [1, 2, 64, 1 << 33, usize::MAX] {
                    for threads in [2, 3, 7] {
                        let (unit, parts) = cut(schedule, len, grain, threads);
                        let parts = parts as usize;
                        assert!(parts >= 1 && unit.checked_mul(parts - 1).unwrap() < len);
                        assert!(unit.saturating_mul(parts) >= len);
                        if schedule == Schedule::Uniform {
                            assert!(parts <= threads);
                        }
                    }
                }
            }
        }
    }
}
