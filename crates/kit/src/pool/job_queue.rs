//! The queue of jobs that want helpers.
//!
//! A caller pushes its job with the number of helpers that it wants, and removes it when the job is done,
//! so a worker that wakes late doesn't find it. Sleeping workers are woken only if fewer are awake than are
//! wanted, so a burst of small jobs doesn't wake a worker twice.
//!
//! Waking a sleeping thread takes some 50 microseconds on a virtual machine, longer than a small job. Jobs
//! often follow each other closely, so a worker that has finished one spins for a moment before it sleeps,
//! and takes the next job within some 100 nanoseconds. It spins longer the next time if it got a job, and
//! shorter if it didn't.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use keyfold_dispatch::forklock::{ForkGuard, ForkLock};

/// The longest and the shortest time that a worker spins.
const LONGEST: Duration = Duration::from_micros(100);
const SHORTEST: Duration = Duration::from_micros(30);

/// How often a worker looks at the queue before it reads the clock.
const LOOKS: usize = 16;

thread_local! {
    static SPIN_TIME: Cell<Duration> = const { Cell::new(LONGEST) };
}

/// Jobs that want helpers. Each pool has its own queue: a child of fork has another pool, and never sees the
/// queue of its parent's threads.
pub(super) struct JobQueue<T> {
    state: ForkLock<State<T>>,
    /// How many helpers are wanted in all, readable without the lock.
    wanted: AtomicUsize,
}

struct State<T> {
    jobs: VecDeque<Entry<T>>,
    next: Ticket,
    /// Workers that were woken and haven't gone to sleep; they look at the queue again before they do.
    awake: usize,
    /// Those among them that spin.
    spinning: usize,
}

struct Entry<T> {
    job: T,
    ticket: Ticket,
    /// Helpers that haven't taken it yet.
    wanted: usize,
}

/// Identifies a job, for its removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket(u64);

impl<T> Default for JobQueue<T> {
    fn default() -> Self {
        let state = State { jobs: VecDeque::new(), next: Ticket(0), awake: 0, spinning: 0 };
        JobQueue { state: ForkLock::new(state), wanted: AtomicUsize::new(0) }
    }
}

impl<T: Clone> JobQueue<T> {
    /// Adds a job that wants so many helpers, of `workers` that there are. Returns how many workers the
    /// caller has to wake; each of them must call [`JobQueue::serve`].
    pub(super) fn push(&self, job: &T, helpers: usize, workers: usize) -> (Ticket, usize) {
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next = Ticket(ticket.0 + 1);
        if helpers > 0 {
            state.jobs.push_back(Entry { job: job.clone(), ticket, wanted: helpers });
        }
        let wanted = self.count(&state);
        let woken = wanted.saturating_sub(state.spinning).min(helpers).min(workers - state.awake);
        state.awake += woken;
        (ticket, woken)
    }

    /// Removes a job: no worker takes it from now on.
    pub(super) fn remove(&self, ticket: Ticket) {
        // Only workers that take this job lower the helpers it wants, so 0 can't be a stale value.
        if self.wanted.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut state = self.state.lock();
        if let Some(at) = state.jobs.iter().position(|entry| entry.ticket == ticket) {
            let entry = state.jobs.remove(at);
            self.count(&state);
            drop(state);
            drop(entry);
        }
    }

    /// Runs in a worker that was woken: `work` for each job that it takes, until no job has come for a while.
    /// If there is no job to begin with, `on_empty` runs first.
    pub(super) fn serve(&self, work: impl Fn(T), on_empty: impl FnOnce()) {
        let first = self.take(&mut self.state.lock());
        match first {
            Some(job) => work(job),
            None => on_empty(),
        }
        loop {
            let next = self.take(&mut self.state.lock());
            let Some(job) = next.or_else(|| self.spin()) else { return };
            work(job);
        }
    }

    /// The next job; `None` if none has come while the worker spun: then it goes to sleep.
    fn spin(&self) -> Option<T> {
        let spin_time = SPIN_TIME.get();
        self.state.lock().spinning += 1;
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.wanted.load(Ordering::Relaxed) != 0 {
                    let mut state = self.state.lock();
                    if let Some(job) = self.take(&mut state) {
                        state.spinning -= 1;
                        SPIN_TIME.set(LONGEST.min(spin_time * 2));
                        return Some(job);
                    }
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= spin_time {
                break;
            }
        }
        SPIN_TIME.set(SHORTEST.max(spin_time / 2));
        // The last look and the end of being awake under one lock: a job pushed later wakes a worker.
        let mut state = self.state.lock();
        state.spinning -= 1;
        let job = self.take(&mut state);
        if job.is_none() {
            state.awake -= 1;
        }
        job
    }

    fn take(&self, state: &mut ForkGuard<'_, State<T>>) -> Option<T> {
        let entry = state.jobs.front_mut()?;
        entry.wanted -= 1;
        let job = match entry.wanted {
            0 => state.jobs.pop_front()?.job,
            _ => entry.job.clone(),
        };
        self.count(state);
        Some(job)
    }

    fn count(&self, state: &ForkGuard<'_, State<T>>) -> usize {
        let wanted = state.jobs.iter().map(|entry| entry.wanted).sum();
        self.wanted.store(wanted, Ordering::Relaxed);
        wanted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn sleeping_workers_are_woken_and_those_that_are_awake_are_not() {
        let queue = JobQueue::<u32>::default();
        let (first, woken) = queue.push(&1, 2, 3);
        assert_eq!(woken, 2);
        // Two are awake, and one sleeps.
        let (second, woken) = queue.push(&2, 2, 3);
        assert_eq!(woken, 1);
        assert_eq!(queue.push(&3, 2, 3).1, 0);
        queue.remove(first);
        queue.remove(second);
        let seen = Cell::new(0);
        queue.serve(|job| seen.set(seen.get() + job), || seen.set(100));
        assert_eq!(seen.get(), 6);
        // The other two find nothing.
        for _ in 0..2 {
            seen.set(0);
            queue.serve(|job| seen.set(job), || seen.set(100));
            assert_eq!(seen.get(), 100);
        }
        assert_eq!(queue.push(&4, 3, 3).1, 3);
    }

    #[test]
    fn a_job_gets_the_helpers_it_wants_or_is_removed() {
        let queue = Arc::new(JobQueue::<Arc<AtomicUsize>>::default());
        let mut threads = Vec::new();
        for round in 0..500_usize {
            let job = Arc::new(AtomicUsize::new(0));
            let (ticket, woken) = queue.push(&job, 2, 3);
            for _ in 0..woken {
                let queue = Arc::clone(&queue);
                let help = |job: Arc<AtomicUsize>| {
                    job.fetch_add(1, Ordering::Relaxed);
                };
                threads.push(std::thread::spawn(move || queue.serve(help, || {})));
            }
            if round % 3 == 0 {
                queue.remove(ticket);
                assert!(job.load(Ordering::Relaxed) <= 2);
            } else {
                while job.load(Ordering::Relaxed) < 2 {
                    std::thread::yield_now();
                }
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let state = queue.state.lock();
        assert_eq!((state.jobs.len(), state.awake, state.spinning), (0, 0, 0));
    }
}
