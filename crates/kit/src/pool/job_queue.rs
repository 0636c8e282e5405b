//! The queue of jobs that want more helpers than were idle when they began. A worker looks into the
//! queue before it waits for its mailbox.

use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_dispatch::forklock::ForkLock;

/// Jobs that want helpers. Each pool has its own queue: a child of fork has another pool, and never
/// accesses the queue of its parent's threads.
pub(super) struct JobQueue<T> {
    jobs: ForkLock<Vec<(T, usize)>>,
    /// The total number of wanted helpers, readable without the lock.
    wanted: AtomicUsize,
}

impl<T> Default for JobQueue<T> {
    fn default() -> Self {
        JobQueue { jobs: ForkLock::new(Vec::new()), wanted: AtomicUsize::new(0) }
    }
}

impl<T: Copy + PartialEq> JobQueue<T> {
    /// Adds a job that wants this many helpers.
    pub(super) fn push(&self, job: T, helpers: usize) {
        let mut jobs = self.jobs.lock();
        jobs.push((job, helpers));
        // `Mailbox::change` explains the order.
        self.wanted.fetch_add(helpers, Ordering::SeqCst);
    }

    /// Removes a job: no worker takes it afterwards.
    pub(super) fn remove(&self, job: T) {
        let mut jobs = self.jobs.lock();
        if let Some(at) = jobs.iter().position(|(other, _)| *other == job) {
            let (_, helpers) = jobs.remove(at);
            self.wanted.fetch_sub(helpers, Ordering::SeqCst);
        }
    }

    /// Whether a job in the queue wants helpers.
    #[inline]
    pub(super) fn wants(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) != 0
    }

    /// Takes the next job. `begin` is called on it before its caller can remove it.
    pub(super) fn take(&self, begin: impl FnOnce(T)) -> Option<T> {
        let mut jobs = self.jobs.lock();
        let (job, helpers) = jobs.first_mut()?;
        let job = *job;
        *helpers -= 1;
        if *helpers == 0 {
            jobs.remove(0);
        }
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        begin(job);
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_taken_in_order_as_often_as_they_want_helpers() {
        let queue = JobQueue::<u32>::default();
        assert!(!queue.wants() && queue.take(|_| panic!("no job")).is_none());
        queue.push(1, 2);
        queue.push(2, 3);
        queue.push(3, 1);
        let mut begun = Vec::new();
        for _ in 0..3 {
            let job = queue.take(|job| begun.push(job));
            assert_eq!(job, begun.last().copied());
        }
        assert_eq!(begun, [1, 1, 2]);
        queue.remove(2);
        // It has been taken already, so there is nothing to remove.
        queue.remove(1);
        assert!(queue.wants());
        assert_eq!(queue.take(|_| {}), Some(3));
        assert!(!queue.wants() && queue.take(|_| {}).is_none());
    }
}
