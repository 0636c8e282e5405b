//! A job, one call of `parallel_for`: the state that the caller and its helpers share, and the caller's
//! wait for the helpers.

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

use super::wake_policy::WakeEstimate;
use super::work_stealing::WorkShares;
use super::workers::Offers;
use super::{Schedule, Workers, workers};

/// The caller's function.
type Body<'a> = dyn Fn(Range<usize>) -> Result<()> + Sync + 'a;

/// In [`HelperCount`]: the caller sleeps, or is about to sleep.
const WAITING: usize = 1 << (usize::BITS - 1);
/// In [`HelperCount`]: the last helper has woken the caller, and doesn't access the job any more.
const RELEASED: usize = 1 << (usize::BITS - 2);

/// The time that the caller spins for its helpers before it sleeps. Waking takes up to a quarter of
/// that, and a helper has at most one piece left.
const CALLER_SPIN_TIME: Duration = Duration::from_micros(200);

/// The number of spins between two readings of the clock.
const SPINS_PER_CHECK: usize = 64;

/// The reason why a job ends early.
enum Failure {
    Error(Error),
    Panic(Box<dyn Any + Send>),
}

/// A job. It lies in its caller's stack frame: only workers that are counted access it.
#[repr(C, align(128))]
pub(super) struct Job {
    // The fields that a helper needs to begin, in one cache line.
    /// Borrowed by the caller's stack frame.
    body: *const Body<'static>,
    range: Range<usize>,
    /// Indices per part: the grain, or a multiple.
    unit: usize,
    /// The number of the next thread to take part, and of the next part in a uniform schedule.
    next: AtomicUsize,
    grain: usize,
    threads: usize,
    /// The local keys and data of the caller's thread; null if it has none.
    context: *const LocalContext,
    /// The first failure; null until then.
    failure: AtomicPtr<Failure>,
    schedule: Schedule,
    /// The number of parts.
    parts: u32,
    helper_count: HelperCount,
    /// The parts that no thread has taken yet, in an adaptive schedule.
    shares: WorkShares,
}

/// The count of workers that may access a job, in cache lines of its own.
#[repr(align(128))]
struct HelperCount {
    /// The number of workers, with the flags [`WAITING`] and [`RELEASED`].
    workers: AtomicUsize,
    /// The caller's thread; set before the caller waits.
    caller: UnsafeCell<Option<Thread>>,
}

/// The address of a job.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct JobRef(pub *const Job);

// SAFETY: jobs are `Sync`; each user of the address says why the job still exists.
unsafe impl Send for JobRef {}

// SAFETY: the body and the context are `Sync`, and accessed only while their owner waits; the failure is
// owned by the job and `Send`; `caller` is written before, and read after, a change of `workers` that
// publishes it.
unsafe impl Sync for Job {}

/// Calls `f` with pieces of a range, in order.
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

/// Divides a range into parts: returns the indices per part and the number of parts.
fn cut_into_parts(schedule: Schedule, len: usize, grain: usize, threads: usize) -> (usize, u32) {
    let unit = match schedule {
        Schedule::Uniform => len.div_ceil(threads),
        // A part is as many grains as keep the number of parts within 32 bits.
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
    // Workers that must be woken start late. A thread's part of a uniform schedule would end as late, so
    // the schedule becomes adaptive.
    let late = schedule == Schedule::Uniform && !workers.are_all_spinning();
    let schedule = if late { Schedule::Adaptive } else { schedule };
    let (unit, parts) = cut_into_parts(schedule, range.len(), grain, workers.threads());
    let threads = workers.threads().min(parts as usize);
    let generation = workers::generation();
    let body = std::ptr::from_ref(body);
    // SAFETY: only the lifetime changes; `work` says why no thread accesses the body after this call.
    let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
    let context = local_context();
    let shares = match schedule {
        Schedule::Uniform => WorkShares::new(0, 0),
        Schedule::Adaptive => WorkShares::new(parts, threads),
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
        helper_count: HelperCount { workers: AtomicUsize::new(0), caller: UnsafeCell::new(None) },
        shares,
    };
    // From here to the end of `finish` this function must not unwind: helpers may be accessing the job.
    let mut offers = workers.offer(&job, threads - 1);
    let mut estimate = None;
    if offers.wanted > 0 {
        estimate =
            WakeEstimate::new(workers.alone_series(), job.range.len().div_ceil(grain), threads);
        if estimate.is_none() {
            workers.offer_to_all(&job, &mut offers);
        }
    }
    job.work(0, || {
        // In a child of fork, a lock may be held by a thread that the child doesn't have.
        if estimate.as_mut().is_some_and(WakeEstimate::count) && workers::generation() == generation
        {
            estimate = None;
            workers.offer_to_all(&job, &mut offers);
        }
    });
    if let Some(estimate) = estimate {
        estimate.end(workers.alone_series());
    }
    job.finish(&workers, &offers, generation)
}

/// Returns this thread's local keys and data, or `None` if it has none.
fn local_context() -> Option<LocalContext> {
    let context = LocalContext::current();
    (!context.is_empty()).then_some(context)
}

impl Job {
    /// Counts a worker that may access the job from now on.
    pub(super) fn count_helper(&self) {
        self.helper_count.workers.fetch_add(1, Ordering::Relaxed);
    }

    /// Called by the caller: uncounts a worker that didn't take the job.
    pub(super) fn uncount_helper(&self) {
        self.helper_count.workers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes part as a helper, which `workers` counts. `free` runs before the caller can see that the
    /// helper is done.
    pub(super) fn help(&self, free: impl FnOnce()) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // More helpers may come than are needed: a worker that was handed the job may also find it in
        // the queue.
        if number < self.threads {
            // SAFETY: null, or borrowed from the caller, which waits for this helper.
            let context = unsafe { self.context.as_ref() };
            match context {
                None if local_context().is_none() => self.work(number, || ()),
                // The worker may be inside another kernel, which waits for this job; that kernel's local
                // keys don't apply.
                None => LocalContext::default().replace(|| self.work(number, || ())),
                Some(context) => context.replace(|| self.work(number, || ())),
            }
        }
        free();
        // Release: publishes this helper's writes to the caller.
        let workers = self.helper_count.workers.fetch_sub(1, Ordering::AcqRel);
        if workers == WAITING | 1 {
            // SAFETY: the caller set the field before the flag `WAITING`, and waits until it is
            // released.
            let caller = unsafe { (*self.helper_count.caller.get()).clone() };
            self.helper_count.workers.store(RELEASED, Ordering::Release);
            if let Some(caller) = caller {
                caller.unpark();
            }
        }
    }

    /// Returns the next part for a thread that has run its first part.
    fn take(&self, thread: usize) -> Option<u32> {
        match self.schedule {
            Schedule::Adaptive => self.shares.take(thread),
            // Parts of threads that didn't come.
            Schedule::Uniform => {
                let part = self.next.fetch_add(1, Ordering::Relaxed);
                u32::try_from(part).ok().filter(|part| *part < self.parts)
            }
        }
    }

    /// Takes parts until none is left or one has failed, and calls `after` after each piece. Doesn't
    /// unwind.
    fn work(&self, thread: usize, mut after: impl FnMut()) {
        let mut run = || {
            let mut part = match self.schedule {
                Schedule::Uniform => Some(thread as u32),
                Schedule::Adaptive => self.take(thread),
            };
            while let Some(at) = part {
                let start = self.range.start + at as usize * self.unit;
                let end = self.range.end.min(start.saturating_add(self.unit));
                // SAFETY: this thread is the caller, or the caller waits for this helper, which
                // `workers` counts; so the memory that the body borrows is still borrowed.
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
            // SAFETY: it was made above, and no other thread has seen it. If the payload's destructor
            // panics too, the process must not end.
            let failure = unsafe { Box::from_raw(failure) };
            let _ = catch_unwind(AssertUnwindSafe(|| drop(failure)));
        }
    }

    /// Waits for the active helpers, and returns the job's result.
    fn finish(&self, workers: &Workers, offers: &Offers, generation: u32) -> Result<()> {
        // As in `run`: in a child of fork the queue's lock may be held.
        if workers::generation() == generation {
            workers.remove_from_queue(self, offers);
        }
        // Acquire, here and below: for the helpers' writes.
        if self.helper_count.workers.load(Ordering::Acquire) != 0 {
            workers.withdraw_job(self, offers);
            self.wait(generation)?;
        }
        let failure = self.failure.swap(null_mut(), Ordering::Acquire);
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: `fail` made it by `Box::into_raw`, and the swap takes ownership.
        match *unsafe { Box::from_raw(failure) } {
            Failure::Error(error) => Err(error),
            Failure::Panic(payload) => resume_unwind(payload),
        }
    }

    /// Waits until no worker is counted.
    fn wait(&self, generation: u32) -> Result<()> {
        let workers = &self.helper_count.workers;
        let mut since = None;
        loop {
            for _ in 0..SPINS_PER_CHECK {
                if workers.load(Ordering::Acquire) == 0 {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if workers::generation() != generation {
                return Err(forked());
            }
            if since.get_or_insert_with(Instant::now).elapsed() > CALLER_SPIN_TIME {
                break;
            }
        }
        // SAFETY: helpers read the field only after `workers` has the flag `WAITING`.
        unsafe { *self.helper_count.caller.get() = Some(std::thread::current()) };
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
                        let (unit, parts) = cut_into_parts(schedule, len, grain, threads);
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
