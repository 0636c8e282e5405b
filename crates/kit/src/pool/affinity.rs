//! The processor affinity of sleeping workers.
//!
//! A system may wake a worker on the processor where its caller is busy, and leave it there while
//! another processor is idle. Linux does so on virtual machines whose processors share no cache: it
//! wakes a thread on the processor that it slept on. If that is the caller's, the two alternate for
//! milliseconds instead of running at the same time. So before a caller wakes a worker that slept on the
//! caller's processor, it removes that processor from the worker's affinity, and the worker restores it
//! once it is awake.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// No processor.
const NONE: u32 = u32::MAX;

/// The affinity of one worker.
pub(super) struct WorkerAffinity {
    /// The thread's id in the system.
    thread: AtomicI32,
    /// The processor that the thread went to sleep on.
    slept_on: AtomicU32,
    /// The processor that was removed from the thread's affinity.
    excluded: AtomicU32,
}

impl Default for WorkerAffinity {
    fn default() -> Self {
        WorkerAffinity {
            thread: AtomicI32::new(0),
            slept_on: AtomicU32::new(NONE),
            excluded: AtomicU32::new(NONE),
        }
    }
}

impl WorkerAffinity {
    /// Called by the worker first: records its thread id.
    pub(super) fn register_thread(&self) {
        self.thread.store(system::this_thread(), Ordering::Release);
    }

    /// Called by the worker before it sleeps: records its processor.
    pub(super) fn note_processor(&self) {
        self.slept_on.store(processor().unwrap_or(NONE), Ordering::Release);
    }

    /// Called before the worker is woken from `processor`: keeps it from waking there.
    pub(super) fn exclude_processor(&self, processor: Option<u32>) {
        let Some(processor) = processor else { return };
        let thread = self.thread.load(Ordering::Acquire);
        if self.slept_on.load(Ordering::Acquire) != processor
            || self.excluded.load(Ordering::Acquire) != NONE
        {
            return;
        }
        if system::change(thread, |allowed| allowed.remove(processor)) {
            self.excluded.store(processor, Ordering::Release);
        }
    }

    /// Called by the worker when it is awake: restores its affinity.
    pub(super) fn wake(&self) {
        let excluded = self.excluded.swap(NONE, Ordering::AcqRel);
        if excluded != NONE {
            system::change(0, |allowed| allowed.add(excluded));
        }
    }
}

/// The processor that the calling thread runs on now, if the system can tell.
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

    /// A set of processors that a thread may use.
    pub(super) struct Allowed(libc::cpu_set_t);

    impl Allowed {
        fn holds(processor: u32) -> bool {
            (processor as usize) < 8 * size_of::<libc::cpu_set_t>()
        }

        /// Removes a processor, and returns whether others are left.
        pub(super) fn remove(&mut self, processor: u32) -> bool {
            // SAFETY: only reads the set, or changes a bit that the set has.
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

    /// Changes the affinity of a thread (0: the calling one) if `f` returns true, and returns whether it
    /// was changed.
    pub(super) fn change(thread: i32, f: impl FnOnce(&mut Allowed) -> bool) -> bool {
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: a set of bits, for which all zeros is valid.
        let mut allowed = Allowed(unsafe { std::mem::zeroed() });
        // SAFETY: the set is as large as `size` says; a thread that doesn't exist is an error.
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
        let affinity = WorkerAffinity::default();
        affinity.register_thread();
        affinity.note_processor();
        let here = affinity.slept_on.load(Ordering::Relaxed);
        // A caller on another processor excludes nothing.
        affinity.exclude_processor(Some(here + 1));
        affinity.exclude_processor(None);
        assert_eq!(affinity.excluded.load(Ordering::Relaxed), NONE);
        affinity.exclude_processor(Some(here));
        if allowed > 1 {
            assert_ne!(processor(), Some(here));
            assert_eq!(std::thread::available_parallelism().unwrap().get(), allowed - 1);
        }
        affinity.wake();
        assert_eq!(std::thread::available_parallelism().unwrap().get(), allowed);
    }
}
