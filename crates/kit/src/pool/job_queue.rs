//! Where workers find the jobs that want help.
//!
//! A caller puts its job up with the number of helpers that it wants, and takes it down when it is
//! done: who comes late finds nothing stale. Workers are called only where fewer are up than are
//! wanted, so a burst of small jobs doesn't call anybody twice.
//!
//! Waking a sleeping thread takes some 50 microseconds on a virtual machine, during which a small
//! job is over. Jobs often follow each other closely, so a worker that is done with one looks out
//! for the next for a moment before it sleeps, and takes it within some 100 nanoseconds. How long it
//! looks out follows from whether that was of use the last time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use keyfold_dispatch::forklock::{ForkGuard, ForkLock};

/// The longest and the shortest time that a worker looks out.
const LONGEST: Duration = Duration::from_micros(100);
const SHORTEST: Duration = Duration::from_micros(30);

/// Looks at the post between two looks at the clock.
const LOOKS: usize = 16;

thread_local! {
    static PATIENCE: Cell<Duration> = const { Cell::new(LONGEST) };
}

/// Jobs that want help. (A pool's own, so that a child of fork, which has another pool, never looks
/// at what its parent's threads left.)
pub(super) struct Post<T> {
    open: ForkLock<Open<T>>,
    /// How many helpers are wanted in all: to be looked at without the lock.
    wanted: AtomicUsize,
}

struct Open<T> {
    jobs: VecDeque<Entry<T>>,
    next: Ticket,
    /// Workers that were called and haven't gone to sleep: they look here again before they do.
    up: usize,
    /// Those among them that look out now.
    idle: usize,
}

struct Entry<T> {
    job: T,
    ticket: Ticket,
    /// Helpers that haven't come yet.
    wanted: usize,
}

/// Which job it is, to take it down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket(u64);

impl<T> Default for Post<T> {
    fn default() -> Self {
        let open = Open { jobs: VecDeque::new(), next: Ticket(0), up: 0, idle: 0 };
        Post { open: ForkLock::new(open), wanted: AtomicUsize::new(0) }
    }
}

impl<T: Clone> Post<T> {
    /// Puts up a job that wants so many helpers, of `workers` that there are. Says how many workers
    /// the caller has to call, each of which must come to [`Post::attend`].
    pub(super) fn put_up(&self, job: &T, helpers: usize, workers: usize) -> (Ticket, usize) {
        let mut open = self.open.lock();
        let ticket = open.next;
        open.next = Ticket(ticket.0 + 1);
        if helpers > 0 {
            open.jobs.push_back(Entry { job: job.clone(), ticket, wanted: helpers });
        }
        let wanted = self.count(&open);
        let called = wanted.saturating_sub(open.idle).min(helpers).min(workers - open.up);
        open.up += called;
        (ticket, called)
    }

    /// Takes down a job: nobody comes to it from now on.
    pub(super) fn take_down(&self, ticket: Ticket) {
        // Nobody else changes what this job wants but those who come; so 0 is no old news.
        if self.wanted.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut open = self.open.lock();
        if let Some(at) = open.jobs.iter().position(|entry| entry.ticket == ticket) {
            let entry = open.jobs.remove(at);
            self.count(&open);
            drop(open);
            drop(entry);
        }
    }

    /// What a worker does when it was called: `work` for each job that wants it, until none is put
    /// up for a while. `vain` runs first if there is none to begin with.
    pub(super) fn attend(&self, work: impl Fn(T), vain: impl FnOnce()) {
        let first = self.take(&mut self.open.lock());
        match first {
            Some(job) => work(job),
            None => vain(),
        }
        loop {
            let next = self.take(&mut self.open.lock());
            let Some(job) = next.or_else(|| self.look_out()) else { return };
            work(job);
        }
    }

    /// The next job, or the end of the attendance.
    fn look_out(&self) -> Option<T> {
        let patience = PATIENCE.get();
        self.open.lock().idle += 1;
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.wanted.load(Ordering::Relaxed) != 0 {
                    let mut open = self.open.lock();
                    if let Some(job) = self.take(&mut open) {
                        open.idle -= 1;
                        PATIENCE.set(LONGEST.min(patience * 2));
                        return Some(job);
                    }
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= patience {
                break;
            }
        }
        PATIENCE.set(SHORTEST.max(patience / 2));
        // The last look and the leave-taking, under one lock: what is put up later calls anew.
        let mut open = self.open.lock();
        open.idle -= 1;
        let job = self.take(&mut open);
        if job.is_none() {
            open.up -= 1;
        }
        job
    }

    fn take(&self, open: &mut ForkGuard<'_, Open<T>>) -> Option<T> {
        let entry = open.jobs.front_mut()?;
        entry.wanted -= 1;
        let job = match entry.wanted {
            0 => open.jobs.pop_front()?.job,
            _ => entry.job.clone(),
        };
        self.count(open);
        Some(job)
    }

    fn count(&self, open: &ForkGuard<'_, Open<T>>) -> usize {
        let wanted = open.jobs.iter().map(|entry| entry.wanted).sum();
        self.wanted.store(wanted, Ordering::Relaxed);
        wanted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn sleeping_workers_are_called_and_those_that_are_up_are_not() {
        let post = Post::<u32>::default();
        let (first, called) = post.put_up(&1, 2, 3);
        assert_eq!(called, 2);
        // Two are on their way, and one is left.
        let (second, called) = post.put_up(&2, 2, 3);
        assert_eq!(called, 1);
        assert_eq!(post.put_up(&3, 2, 3).1, 0);
        post.take_down(first);
        post.take_down(second);
        let seen = Cell::new(0);
        post.attend(|job| seen.set(seen.get() + job), || seen.set(100));
        assert_eq!(seen.get(), 6);
        // The other two find nothing.
        for _ in 0..2 {
            seen.set(0);
            post.attend(|job| seen.set(job), || seen.set(100));
            assert_eq!(seen.get(), 100);
        }
        assert_eq!(post.put_up(&4, 3, 3).1, 3);
    }

    #[test]
    fn a_job_gets_the_helpers_it_wants_or_is_taken_down() {
        let post = Arc::new(Post::<Arc<AtomicUsize>>::default());
        let mut threads = Vec::new();
        for round in 0..500_usize {
            let job = Arc::new(AtomicUsize::new(0));
            let (ticket, called) = post.put_up(&job, 2, 3);
            for _ in 0..called {
                let post = Arc::clone(&post);
                let help = |job: Arc<AtomicUsize>| {
                    job.fetch_add(1, Ordering::Relaxed);
                };
                threads.push(std::thread::spawn(move || post.attend(help, || {})));
            }
            if round % 3 == 0 {
                post.take_down(ticket);
                assert!(job.load(Ordering::Relaxed) <= 2);
            } else {
                while job.load(Ordering::Relaxed) < 2 {
                    std::thread::yield_now();
                }
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let open = post.open.lock();
        assert_eq!((open.jobs.len(), open.up, open.idle), (0, 0, 0));
    }
}
