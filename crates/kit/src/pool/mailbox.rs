//! Where one worker is handed its jobs: one word, which the worker looks at while it has nothing to do.
//!
//! A caller that finds a worker free writes the address of its job there, and takes it back when it is done
//! unless the worker came to take it. So a job costs a worker that spins one look at one cache line, a worker
//! that comes late finds nothing, and a job may lie in its caller's frame.

use std::ptr::{null_mut, without_provenance_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::Thread;

use super::place::{Place, processor};

/// The mailbox of one worker, in cache lines of its own.
#[repr(align(128))]
pub(super) struct Mailbox<T> {
    /// A job that its caller hands over, or one of the states below.
    state: AtomicPtr<T>,
    thread: OnceLock<Thread>,
    place: Place,
}

/// The worker is at work, or isn't there.
fn busy<T>() -> *mut T {
    null_mut()
}

/// The worker looks at its mailbox.
fn idle<T>() -> *mut T {
    without_provenance_mut(1)
}

/// The worker sleeps until it is woken.
fn asleep<T>() -> *mut T {
    without_provenance_mut(2)
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Mailbox { state: AtomicPtr::new(busy()), thread: OnceLock::new(), place: Place::default() }
    }
}

impl<T> Mailbox<T> {
    // Sequentially consistent: a worker that says it is free looks at the queue next, and a caller that has put
    // its job into the queue looks for free workers next. One of them sees the other.
    fn change(&self, from: *mut T, to: *mut T) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the worker spins.
    pub(super) fn is_idle(&self) -> bool {
        self.state.load(Ordering::Relaxed) == idle()
    }

    /// Whether the worker was spinning, and gets the job.
    pub(super) fn hand_to_idle(&self, job: *const T) -> bool {
        self.state.load(Ordering::SeqCst) == idle() && self.change(idle(), job.cast_mut())
    }

    /// Whether the worker was asleep, and gets the job. It is woken.
    pub(super) fn hand_to_sleeper(&self, job: *const T) -> bool {
        let handed =
            self.state.load(Ordering::SeqCst) == asleep() && self.change(asleep(), job.cast_mut());
        if handed {
            self.place.keep_off(processor());
            self.wake();
        }
        handed
    }

    /// Whether the worker hasn't taken the job, and won't.
    pub(super) fn take_back(&self, job: *const T) -> bool {
        // A worker that is about to wake spins first, as if it had found nothing.
        self.change(job.cast_mut(), idle())
    }

    /// Wakes the worker if it sleeps, without a job.
    pub(super) fn rouse(&self) {
        if self.change(asleep(), idle()) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// For the worker: it is there, and free.
    pub(super) fn move_in(&self) {
        self.thread.get_or_init(std::thread::current);
        self.place.move_in();
        self.free();
    }

    /// For the worker: it is free again.
    pub(super) fn free(&self) {
        self.state.store(idle(), Ordering::SeqCst);
    }

    /// For the worker: whether nothing was handed to it, and nothing will be until it is free again.
    pub(super) fn close(&self) -> bool {
        self.change(idle(), busy())
    }

    /// For the worker: the job that was handed to it, if any. The job is its own from then on.
    #[inline]
    pub(super) fn take(&self) -> Option<*const T> {
        let state = self.state.load(Ordering::Acquire);
        if state == idle() || state == busy() || state == asleep() {
            return None;
        }
        prefetch(state);
        self.change(state, busy()).then_some(state.cast_const())
    }

    /// For the worker: sleeps until something is handed to it or it is roused; not at all if there is a job
    /// already, or `stay` says so once others see that it is going to sleep.
    pub(super) fn sleep(&self, stay: impl FnOnce() -> bool) {
        self.place.rest();
        if !self.change(idle(), asleep()) {
            return;
        }
        if stay() && self.change(asleep(), idle()) {
            return;
        }
        while self.state.load(Ordering::Acquire) == asleep() {
            std::thread::park();
        }
        self.place.wake();
    }
}

/// Asks for the memory of a job, which may be gone by now, while the mailbox itself is still being changed.
#[inline]
fn prefetch<T>(at: *mut T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, at any address.
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
    fn a_job_is_handed_to_who_is_free_and_taken_back_unless_it_was_taken() {
        let mailbox = Mailbox::<u32>::default();
        let (first, second) = (1, 2);
        assert!(!mailbox.hand_to_idle(&raw const first), "nobody is there yet");
        mailbox.move_in();
        assert!(!mailbox.hand_to_sleeper(&raw const first) && mailbox.take().is_none());
        assert!(mailbox.hand_to_idle(&raw const first));
        assert!(!mailbox.hand_to_idle(&raw const second) && !mailbox.close());
        assert!(!mailbox.take_back(&raw const second));
        assert_eq!(mailbox.take(), Some(&raw const first));
        assert!(!mailbox.take_back(&raw const first) && !mailbox.hand_to_idle(&raw const second));
        mailbox.free();
        assert!(mailbox.hand_to_idle(&raw const second) && mailbox.take_back(&raw const second));
        assert!(mailbox.take().is_none() && mailbox.close());
        assert!(!mailbox.hand_to_idle(&raw const first), "closed");
    }

    #[test]
    fn a_sleeper_wakes_for_a_job_and_for_a_call() {
        let mailbox = Arc::new(Mailbox::<usize>::default());
        let awake = Arc::new(AtomicUsize::new(0));
        let worker = std::thread::spawn({
            let (mailbox, awake) = (Arc::clone(&mailbox), Arc::clone(&awake));
            move || {
                mailbox.move_in();
                mailbox.sleep(|| true);
                for _ in 0..2 {
                    mailbox.sleep(|| false);
                    awake.fetch_add(1, Ordering::Relaxed);
                }
                mailbox.take().map(|job| job.addr())
            }
        });
        let sleeps = || while mailbox.state.load(Ordering::SeqCst) != asleep() {};
        sleeps();
        mailbox.rouse();
        while awake.load(Ordering::Relaxed) == 0 {}
        sleeps();
        let job = 7;
        while !mailbox.hand_to_sleeper(&raw const job) {}
        assert_eq!(worker.join().unwrap(), Some((&raw const job).addr()));
    }
}
