//! Where threads run.
//!
//! A system may wake a worker on the very processor where its caller is busy, and leave it there while another
//! processor is idle: Linux does so on virtual machines whose processors share no cache, where it wakes a
//! thread on the processor that it slept on. If that is the caller's, the two take turns instead of working
//! at the same time, for milliseconds. So a caller bars its own processor for a worker that slept there before
//! it wakes it, and the worker lifts the bar once it is awake.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// No processor.
const NONE: u32 = u32::MAX;

/// What is known of where a worker runs.
pub(super) struct Place {
    /// The thread's number, for the system.
    thread: AtomicI32,
    /// The processor that it went to sleep on.
    slept_on: AtomicU32,
    /// The processor that it was kept off.
    barred: AtomicU32,
}

impl Default for Place {
    fn default() -> Self {
        Place {
            thread: AtomicI32::new(0),
            slept_on: AtomicU32::new(NONE),
            barred: AtomicU32::new(NONE),
        }
    }
}

impl Place {
    /// For the worker, before anything else.
    pub(super) fn move_in(&self) {
        self.thread.store(system::this_thread(), Ordering::Release);
    }

    /// For the worker: it is about to sleep.
    pub(super) fn rest(&self) {
        self.slept_on.store(processor().unwrap_or(NONE), Ordering::Release);
    }

    /// For who is about to wake the worker from this processor: it isn't to wake here.
    pub(super) fn keep_off(&self, processor: Option<u32>) {
        let Some(processor) = processor else { return };
        let thread = self.thread.load(Ordering::Acquire);
        if self.slept_on.load(Ordering::Acquire) != processor
            || self.barred.load(Ordering::Acquire) != NONE
        {
            return;
        }
        if system::change(thread, |allowed| allowed.remove(processor)) {
            self.barred.store(processor, Ordering::Release);
        }
    }

    /// For the worker: it is awake, and may run everywhere again.
    pub(super) fn wake(&self) {
        let barred = self.barred.swap(NONE, Ordering::AcqRel);
        if barred != NONE {
            system::change(0, |allowed| allowed.add(barred));
        }
    }
}

/// The processor that the calling thread runs on now, if the system tells.
pub(super) fn processor() -> Option<u32> {
    system::processor()
}

#[cfg(target_os = "linux")]
mod system {
    pub(super) fn this_thread() -> i32 {
        // SAFETY: no arguments, and it can't fail.
        unsafe { libc::gettid() }
    }

    pub(super) fn processor() -> Option<u32> {
        // SAFETY: no arguments; -1 if it isn't known.
        u32::try_from(unsafe { libc::sched_getcpu() }).ok()
    }

    /// The processors that a thread may use.
    pub(super) struct Allowed(libc::cpu_set_t);

    impl Allowed {
        fn holds(processor: u32) -> bool {
            (processor as usize) < 8 * size_of::<libc::cpu_set_t>()
        }

        /// Whether others are left.
        pub(super) fn remove(&mut self, processor: u32) -> bool {
            // SAFETY: only looks at the set, or changes a bit that it has.
            Self::holds(processor)
                && unsafe {
                    libc::CPU_CLR(processor as usize, &mut self.0);
                    libc::CPU_COUNT(&self.0) > 0
                }
        }

        pub(super) fn add(&mut self, processor: u32) -> bool {
            // SAFETY: changes a bit that the set has.
            Self::holds(processor)
                && unsafe {
                    libc::CPU_SET(processor as usize, &mut self.0);
                    true
                }
        }
    }

    /// Whether the thread (0: the calling one) may use other processors from now on, which `f` says if that
    /// is to be.
    pub(super) fn change(thread: i32, f: impl FnOnce(&mut Allowed) -> bool) -> bool {
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: a set of bits, of which none is a valid value.
        let mut allowed = Allowed(unsafe { std::mem::zeroed() });
        // SAFETY: the set is as large as `size` says; a thread that isn't there is an error.
        unsafe {
            libc::sched_getaffinity(thread, size, &raw mut allowed.0) == 0
                && f(&mut allowed)
                && libc::sched_setaffinity(thread, size, &raw const allowed.0) == 0
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) struct Allowed;

    impl Allowed {
        pub(super) fn remove(&mut self, _processor: u32) -> bool {
            false
        }

        pub(super) fn add(&mut self, _processor: u32) -> bool {
            false
        }
    }

    pub(super) fn this_thread() -> i32 {
        0
    }

    pub(super) fn processor() -> Option<u32> {
        None
    }

    pub(super) fn change(_thread: i32, _f: impl FnOnce(&mut Allowed) -> bool) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_kept_off_a_processor_until_it_wakes() {
        let allowed = std::thread::available_parallelism().unwrap().get();
        let place = Place::default();
        place.move_in();
        place.rest();
        let here = place.slept_on.load(Ordering::Relaxed);
        // Somebody on another processor has nothing to bar.
        place.keep_off(Some(here + 1));
        place.keep_off(None);
        assert_eq!(place.barred.load(Ordering::Relaxed), NONE);
        place.keep_off(Some(here));
        if allowed > 1 {
            assert_ne!(processor(), Some(here));
            assert_eq!(std::thread::available_parallelism().unwrap().get(), allowed - 1);
        }
        place.wake();
        assert_eq!(std::thread::available_parallelism().unwrap().get(), allowed);
    }
}
