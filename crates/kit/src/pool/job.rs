//! One call of `parallel_for`: what caller and helpers share, and how the caller knows that the
//! others are done.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::LocalContext;

use super::share::Shares;
use super::wake::Watch;
use super::workers::Offers;
use super::{Schedule, Workers, workers};

/// The work itself.
type Body<'a> = dyn Fn(Range<usize>) -> Result<()> + Sync + 'a;

/// In [`Counted`]: the caller sleeps, or is about to.
const WAITING: usize = 1 << (usize::BITS - 1);
/// In [`Counted`]: the last helper has woken the caller, and looks at the job no more.
const RELEASED: usize = 1 << (usize::BITS - 2);

/// How long the caller looks whether the helpers are done before it sleeps. Being woken takes up to a
/// quarter as long, and a helper has one piece left at most.
const PATIENCE: Duration = Duration::from_micros(200);

/// How often the caller looks before it reads the clock.
const LOOKS: usize = 64;

/// Why a job ends early.
enum Failure {
    Error(Error),
    Panic(Box<dyn Any + Send>),
}

/// A job. It lies in its caller's frame: workers that are counted use it, and nobody else.
#[repr(C, align(128))]
pub(super) struct Job {
    // What a helper needs to begin, in one cache line.
    /// Borrowed by the caller's frame.
    body: *const Body<'static>,
    range: Range<usize>,
    /// Indices per part that is shared out: the grain, or more.
    unit: usize,
    /// The number of the next thread to take part, and of the next part where each thread has one.
    next: AtomicUsize,
    grain: usize,
    threads: usize,
    /// What applies on the caller's thread; null if nothing does.
    context: *const LocalContext,
    /// The first failure; null until then.
    failure: AtomicPtr<Failure>,
    schedule: Schedule,
    /// The number of parts.
    parts: u32,
    counted: Counted,
    /// What is left where threads share parts.
    shares: Shares,
}

/// The workers that may use a job, in cache lines of their own.
#[repr(align(128))]
struct Counted {
    /// How many, [`WAITING`] and [`RELEASED`].
    workers: AtomicUsize,
    /// Set before the caller waits.
    caller: UnsafeCell<Option<Thread>>,
}

/// The address of a job.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct JobRef(pub *const Job);

// SAFETY: jobs are `Sync`; who uses the address says why the job is still there.
unsafe impl Send for JobRef {}

// SAFETY: the body and the context are `Sync`, and used while their owner waits only; the failure is owned by
// the job and `Send`; `caller` is written before, and read after, a change of `workers` that says so.
unsafe impl Sync for Job {}

/// Calls `f` with the pieces of a range, one after the other.
pub(super) fn pieces(
    range: Range<usize>,
    grain: usize,
    mut f: impl FnMut(Range<usize>) -> Result<()>,
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
    // Workers that must be woken come late, and a thread's whole part would end as late.
    let late = schedule == Schedule::Uniform && !workers.are_all_spinning();
    let schedule = if late { Schedule::Adaptive } else { schedule };
    let (unit, parts) = cut(schedule, range.len(), grain, workers.threads());
    let threads = workers.threads().min(parts as usize);
    let generation = workers::generation();
    let body = std::ptr::from_ref(body);
    // SAFETY: only the lifetime changes; `help` says why nobody uses the body after this call.
    let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
    let context = local_context();
    let shares = match schedule {
        Schedule::Uniform => Shares::new(0, 0),
        Schedule::Adaptive => Shares::new(parts, threads),
    };
    let job = Job {
        body,
        range,
        unit,
        next: AtomicUsize::new(1),
        grain,
        threads,
        context: context.as_ref().map_or(null(), std::ptr::from_ref),
        failure: AtomicPtr::new(null_mut()),
        schedule,
        parts,
        counted: Counted { workers: AtomicUsize::new(0), caller: UnsafeCell::new(None) },
        shares,
    };
    // From here to the end of `finish` nothing unwinds: helpers may be at work.
    let mut offers = workers.offer(&job, threads - 1);
    let mut watch = None;
    if offers.wanted > 0 {
        watch = Watch::new(workers.row(), job.range.len().div_ceil(grain), threads);
        if watch.is_none() {
            workers.offer_to_all(&job, &mut offers);
        }
    }
    job.work(0, || {
        // A child of fork may find a lock taken, by a thread that it doesn't have.
        if watch.as_mut().is_some_and(Watch::count) && workers::generation() == generation {
            watch = None;
            workers.offer_to_all(&job, &mut offers);
        }
    });
    if let Some(watch) = watch {
        watch.end(workers.row());
    }
    job.finish(&workers, &offers, generation)
}

/// This thread's local keys and objects, if there are any.
fn local_context() -> Option<LocalContext> {
    let context = LocalContext::current();
    (!context.is_empty()).then_some(context)
}

impl Job {
    /// Counts a worker that may use the job from now on.
    pub(super) fn enter(&self) {
        self.counted.workers.fetch_add(1, Ordering::Relaxed);
    }

    /// For the caller: a worker that was counted doesn't use the job.
    pub(super) fn withdraw(&self) {
        self.counted.workers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes part as a helper, which `workers` counts. `free` runs before the caller can know that it is done.
    pub(super) fn help(&self, free: impl FnOnce()) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // More may come than are needed, where some were handed the job and found it in the queue too.
        if number < self.threads {
            // SAFETY: null, or the caller's, who waits for this helper.
            let context = unsafe { self.context.as_ref() };
            match context {
                None if local_context().is_none() => self.work(number, || ()),
                // A worker may be inside other work, which waits for this one.
                None => LocalContext::default().replace(|| self.work(number, || ())),
                Some(context) => context.replace(|| self.work(number, || ())),
            }
        }
        free();
        // Release: what this helper wrote, to the caller.
        let workers = self.counted.workers.fetch_sub(1, Ordering::AcqRel);
        if workers == WAITING | 1 {
            // SAFETY: the caller set it before it said that it waits, and waits until it is released.
            let caller = unsafe { (*self.counted.caller.get()).clone() };
            self.counted.workers.store(RELEASED, Ordering::Release);
            if let Some(caller) = caller {
                caller.unpark();
            }
        }
    }

    /// The next part for a thread that has done its first.
    fn take(&self, thread: usize) -> Option<u32> {
        match self.schedule {
            Schedule::Adaptive => self.shares.take(thread),
            // What absent threads would have done.
            Schedule::Uniform => {
                let part = self.next.fetch_add(1, Ordering::Relaxed);
                u32::try_from(part).ok().filter(|part| *part < self.parts)
            }
        }
    }

    /// Takes parts until none is left, or one has failed. Doesn't unwind.
    /// `after` is called after each piece.
    fn work(&self, thread: usize, mut after: impl FnMut()) {
        let mut run = || {
            let mut part = match self.schedule {
                Schedule::Uniform => Some(thread as u32),
                Schedule::Adaptive => self.take(thread),
            };
            while let Some(at) = part {
                let start = self.range.start + at as usize * self.unit;
                let end = self.range.end.min(start.saturating_add(self.unit));
                // SAFETY: the caller works itself, or waits for this helper, which `workers` counts:
                // what the body borrows is still there.
                let body = unsafe { &*self.body };
                pieces(start..end, self.grain, |piece| {
                    if self.failure.load(Ordering::Relaxed).is_null() {
                        body(piece)?;
                        after();
                    }
                    Ok(())
                })?;
                if !self.failure.load(Ordering::Relaxed).is_null() {
                    return Ok(());
                }
                part = self.take(thread);
            }
            Ok(())
        };
        let failure = match catch_unwind(AssertUnwindSafe(&mut run)) {
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
    fn finish(&self, workers: &Workers, offers: &Offers, generation: u32) -> Result<()> {
        // As in `run`.
        if workers::generation() == generation {
            workers.leave_queue(self, offers);
        }
        // Acquire, here and below: what helpers wrote.
        if self.counted.workers.load(Ordering::Acquire) != 0 {
            workers.take_back(self, offers);
            self.wait(generation)?;
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

    /// Waits until no worker is counted.
    fn wait(&self, generation: u32) -> Result<()> {
        let workers = &self.counted.workers;
        let mut since = None;
        loop {
            for _ in 0..LOOKS {
                if workers.load(Ordering::Acquire) == 0 {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if workers::generation() != generation {
                return Err(forked());
            }
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                break;
            }
        }
        // SAFETY: helpers look at it once `workers` says that the caller waits.
        unsafe { *self.counted.caller.get() = Some(std::thread::current()) };
        if workers.fetch_or(WAITING, Ordering::AcqRel) == 0 {
            return Ok(());
        }
        while workers.load(Ordering::Acquire) != RELEASED {
            std::thread::park();
        }
        Ok(())
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
