//! How invitations reach workers that are awake.
//!
//! Waking a sleeping thread takes some 50 microseconds on a virtual machine, during which a small
//! job is over. Jobs often follow each other closely, so a worker that is done with one looks out
//! for the next for a moment before it sleeps, and gets it handed over in some 100 nanoseconds.
//! How long it looks out follows from whether that was of use the last time.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use keyfold_tensor::forklock::ForkLock;

/// The longest and the shortest time that a worker looks out.
const LONGEST: Duration = Duration::from_micros(100);
const SHORTEST: Duration = Duration::from_micros(30);

/// Looks at the post between two looks at the clock.
const LOOKS: usize = 16;

thread_local! {
    static PATIENCE: Cell<Duration> = const { Cell::new(LONGEST) };
}

/// Invitations under way. (A pool's own, so that a child of fork, which has another pool, never
/// looks at what its parent's threads left.)
pub(super) struct Post<T> {
    handed: ForkLock<Vec<T>>,
    /// How many are handed over and not yet taken: to be looked at without the lock.
    waiting: AtomicUsize,
    /// Workers that look out, changed under the lock.
    awake: AtomicUsize,
    /// Announced through the pool's queue, and not yet looked at.
    queued: AtomicUsize,
}

impl<T> Default for Post<T> {
    fn default() -> Self {
        Post {
            handed: ForkLock::new(Vec::new()),
            waiting: AtomicUsize::new(0),
            awake: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
        }
    }
}

impl<T: Clone> Post<T> {
    /// Hands an invitation to as many workers as look out, `most` at most, and says to how many.
    pub(super) fn hand_over(&self, invitation: &T, most: usize) -> usize {
        if self.awake.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut handed = self.handed.lock();
        let free = self.awake.load(Ordering::Relaxed).saturating_sub(handed.len()).min(most);
        handed.extend(std::iter::repeat_n(invitation, free).cloned());
        self.waiting.store(handed.len(), Ordering::Relaxed);
        free
    }

    /// Counts an invitation that goes through the queue, unless there are `limit` already.
    pub(super) fn announce(&self, limit: usize) -> bool {
        let room = self.queued.fetch_add(1, Ordering::Relaxed) < limit;
        if !room {
            self.queued.fetch_sub(1, Ordering::Relaxed);
        }
        room
    }

    /// What a worker does with an announced invitation: `work`, and with those after it that come
    /// soon enough.
    pub(super) fn attend(&self, first: T, work: impl Fn(T)) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
        work(first);
        // More in the queue: no reason to look out for others.
        while self.queued.load(Ordering::Relaxed) == 0 {
            let Some(next) = self.look_out() else { return };
            work(next);
        }
    }

    fn look_out(&self) -> Option<T> {
        let patience = PATIENCE.get();
        self.change_awake(|awake| awake + 1);
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.waiting.load(Ordering::Relaxed) != 0
                    && let Some(next) = self.take()
                {
                    PATIENCE.set(LONGEST.min(patience * 2));
                    return Some(next);
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= patience || self.queued.load(Ordering::Relaxed) != 0 {
                break;
            }
        }
        PATIENCE.set(SHORTEST.max(patience / 2));
        // The last look, and the end of it: under the lock, so that nothing is handed to nobody.
        let mut handed = self.handed.lock();
        let next = handed.pop();
        self.waiting.store(handed.len(), Ordering::Relaxed);
        self.awake.fetch_sub(1, Ordering::Relaxed);
        next
    }

    fn take(&self) -> Option<T> {
        let mut handed = self.handed.lock();
        let next = handed.pop()?;
        self.waiting.store(handed.len(), Ordering::Relaxed);
        self.awake.fetch_sub(1, Ordering::Relaxed);
        Some(next)
    }

    fn change_awake(&self, change: impl Fn(usize) -> usize) {
        let _handed = self.handed.lock();
        self.awake.store(change(self.awake.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_handed_to_workers_that_sleep() {
        let post = Post::<u32>::default();
        assert_eq!(post.hand_over(&1, 3), 0);
    }

    #[test]
    fn every_invitation_that_was_accepted_is_attended_to_once() {
        let post = Post::<usize>::default();
        let (done, stop) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut accepted = 0;
        std::thread::scope(|scope| {
            let worker = |_| {
                scope.spawn(|| {
                    while stop.load(Ordering::Relaxed) == 0 {
                        post.announce(usize::MAX);
                        post.attend(1, |n| {
                            done.fetch_add(n, Ordering::Relaxed);
                        });
                        // Those that `attend` itself began with aren't counted.
                        done.fetch_sub(1, Ordering::Relaxed);
                    }
                })
            };
            let workers = [(); 3].map(worker);
            for _ in 0..200 {
                accepted += post.hand_over(&1, 2);
                std::thread::yield_now();
            }
            stop.store(1, Ordering::Relaxed);
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
        assert_eq!(done.into_inner(), accepted);
        assert_eq!((post.awake.into_inner(), post.waiting.into_inner()), (0, 0));
    }
}
