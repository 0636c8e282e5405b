//! A worker's mailbox: the word through which it is handed jobs, and at which it spins.
//!
//! A caller that finds a worker idle writes the address of its job there, and withdraws it when the job
//! is done, unless the worker took it. So a spinning worker reads one cache line, a late worker finds no
//! job, and a job may lie in its caller's stack frame.

use std::ptr::{null_mut, without_provenance_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::Thread;

use super::affinity::{WorkerAffinity, processor};

/// The mailbox of one worker, in cache lines of its own.
#[repr(align(128))]
pub(super) struct Mailbox<T> {
    /// A job that was handed over, or one of the states below.
    state: AtomicPtr<T>,
    thread: OnceLock<Thread>,
    affinity: WorkerAffinity,
}

/// The worker is running a job, or hasn't started.
fn busy<T>() -> *mut T {
    null_mut()
}

/// The worker spins at its mailbox.
fn idle<T>() -> *mut T {
    without_provenance_mut(1)
}

/// The worker sleeps until it is woken.
fn asleep<T>() -> *mut T {
    without_provenance_mut(2)
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Mailbox {
            state: AtomicPtr::new(busy()),
            thread: OnceLock::new(),
            affinity: WorkerAffinity::default(),
        }
    }
}

impl<T> Mailbox<T> {
    // Sequentially consistent: a worker marks itself idle and then reads the queue, and a caller pushes
    // its job to the queue and then looks for idle workers. At least one of them sees the other.
    fn change(&self, from: *mut T, to: *mut T) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the worker spins.
    pub(super) fn is_idle(&self) -> bool {
        self.state.load(Ordering::Relaxed) == idle()
    }

    /// Hands the job to the worker if it spins, and returns whether it does.
    pub(super) fn hand_to_idle(&self, job: *const T) -> bool {
        self.state.load(Ordering::SeqCst) == idle() && self.change(idle(), job.cast_mut())
    }

    /// Hands the job to the worker if it sleeps, and wakes it. Returns whether it did.
    pub(super) fn hand_to_sleeper(&self, job: *const T) -> bool {
        let handed =
            self.state.load(Ordering::SeqCst) == asleep() && self.change(asleep(), job.cast_mut());
        if handed {
            self.affinity.exclude_processor(processor());
            self.wake();
        }
        handed
    }

    /// Withdraws the job unless the worker has taken it, and returns whether it was withdrawn.
    pub(super) fn withdraw_job(&self, job: *const T) -> bool {
        // A worker that is being woken spins first, as if it had found no job.
        self.change(job.cast_mut(), idle())
    }

    /// Wakes the worker without a job, if it sleeps.
    pub(super) fn wake_without_job(&self) {
        if self.change(asleep(), idle()) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Called by the worker: registers its thread, and marks it idle.
    pub(super) fn register_thread(&self) {
        self.thread.get_or_init(std::thread::current);
        self.affinity.register_thread();
        self.free();
    }

    /// Called by the worker: marks it idle.
    pub(super) fn free(&self) {
        self.state.store(idle(), Ordering::SeqCst);
    }

    /// Called by the worker: marks it busy, and returns whether no job had been handed over. None is
    /// handed over until it is idle again.
    pub(super) fn close_if_empty(&self) -> bool {
        self.change(idle(), busy())
    }

    /// Called by the worker: takes the job that was handed over, if any.
    #[inline]
    pub(super) fn take(&self) -> Option<*const T> {
        let state = self.state.load(Ordering::Acquire);
        if state == idle() || state == busy() || state == asleep() {
            return None;
        }
        prefetch(state);
        self.change(state, busy()).then_some(state.cast_const())
    }

    /// Called by the worker: sleeps until a job is handed over or it is woken without one. It doesn't
    /// sleep if there is a job already, or if `stay` returns true after the worker was marked asleep.
    pub(super) fn sleep(&self, stay: impl FnOnce() -> bool) {
        self.affinity.note_processor();
        if !self.change(idle(), asleep()) {
            return;
        }
        if stay() && self.change(asleep(), idle()) {
            return;
        }
        while self.state.load(Ordering::Acquire) == asleep() {
            std::thread::park();
        }
        self.affinity.wake();
    }
}

/// Prefetches a job, whose memory may be invalid by now, while the mailbox itself is still being
/// changed.
#[inline]
fn prefetch<T>(at: *mut T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint, at any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
        _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>().wrapping_add(64));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_job_is_handed_to_a_free_worker_and_withdrawn_unless_it_was_taken() {
        let mailbox = Mailbox::<u32>::default();
        let (first, second) = (1, 2);
        assert!(!mailbox.hand_to_idle(&raw const first), "nobody is there yet");
        mailbox.register_thread();
        assert!(!mailbox.hand_to_sleeper(&raw const first) && mailbox.take().is_none());
        assert!(mailbox.hand_to_idle(&raw const first));
        assert!(!mailbox.hand_to_idle(&raw const second) && !mailbox.close_if_empty());
        assert!(!mailbox.withdraw_job(&raw const second));
        assert_eq!(mailbox.take(), Some(&raw const first));
        assert!(
            !mailbox.withdraw_job(&raw const first) && !mailbox.hand_to_idle(&raw const second)
        );
        mailbox.free();
        assert!(mailbox.hand_to_idle(&raw const second) && mailbox.withdraw_job(&raw const second));
        assert!(mailbox.take().is_none() && mailbox.close_if_empty());
        assert!(!mailbox.hand_to_idle(&raw const first), "closed");
    }

    #[test]
    fn a_sleeper_wakes_for_a_job_and_for_a_call() {
        let mailbox = Arc::new(Mailbox::<usize>::default());
        let awake = Arc::new(AtomicUsize::new(0));
        let worker = std::thread::spawn({
            let (mailbox, awake) = (Arc::clone(&mailbox), Arc::clone(&awake));
            move || {
                mailbox.register_thread();
                for stays in [true, false, false] {
                    mailbox.sleep(|| stays);
                    awake.fetch_add(1, Ordering::Relaxed);
                }
                mailbox.take().map(|job| job.addr())
            }
        });
        let sleeps = || while mailbox.state.load(Ordering::SeqCst) != asleep() {};
        // It is marked asleep for a moment before it stays awake.
        while awake.load(Ordering::Relaxed) == 0 {}
        sleeps();
        mailbox.wake_without_job();
        while awake.load(Ordering::Relaxed) == 1 {}
        sleeps();
        let job = 7;
        while !mailbox.hand_to_sleeper(&raw const job) {}
        assert_eq!(worker.join().unwrap(), Some((&raw const job).addr()));
    }
}
