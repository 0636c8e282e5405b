//! The locks of the cache, which survive fork; under loom the model checker's.
//!
//! A child of fork has one thread and a copy of every lock's state: a mutex that another thread
//! held would stay locked for ever. So all mutexes of all caches are locked behind one gate, a
//! `ForkLock` that the forking thread acquires before the fork and both processes release
//! afterwards. No mutex is locked by another thread then, but for the one that `pause` waits
//! with, and only builds of the parent have that one. Critical sections are look-ups, insertions
//! and additions to counters; none of them locks a second mutex.

#[cfg(not(loom))]
mod gate {
    use keyfold_dispatch::forklock::{AtFork, ForkGuard, ForkLock};

    static GATE: ForkLock<()> = ForkLock::new(());
    static AT_FORK: AtFork = AtFork::new();

    #[expect(unsafe_code, reason = "the type of handlers around fork")]
    unsafe extern "C" fn before_fork() {
        GATE.acquire();
    }

    #[expect(unsafe_code, reason = "the type of handlers around fork")]
    unsafe extern "C" fn after_fork() {
        // SAFETY: `before_fork` acquired it, on this thread or on the one that it continues.
        unsafe { GATE.release() };
    }

    /// Waits until no other thread has a lock of a cache.
    #[expect(unsafe_code, reason = "handlers around fork are registered")]
    pub(super) fn enter() -> ForkGuard<'static, ()> {
        // SAFETY: the handlers use a static of this module, which no thread holds for long: a
        // thread that has it waits only for the allocator and for a mutex that is released without
        // it.
        let registered = unsafe { AT_FORK.register(before_fork, after_fork, after_fork) };
        registered.expect("the C library has memory for three pointers");
        GATE.lock()
    }
}

use std::sync::PoisonError;

#[cfg(loom)]
pub(super) use loom::{
    sync::{Condvar, Mutex, MutexGuard as Guard},
    thread::ThreadId,
};
#[cfg(not(loom))]
pub(super) use std::{
    sync::{Condvar, Mutex},
    thread::ThreadId,
};

/// Access to what a mutex guards. Dropping it unlocks the mutex, and then the gate.
#[cfg(not(loom))]
pub struct Guard<'a, T> {
    inner: std::sync::MutexGuard<'a, T>,
    gate: keyfold_dispatch::forklock::ForkGuard<'static, ()>,
}

#[cfg(not(loom))]
impl<T> std::fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
impl<T> std::ops::Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

#[cfg(not(loom))]
impl<T> std::ops::DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Locks. A thread locks one mutex at a time. Nothing panics in between: maps and counters change,
/// whose failed allocations end the process.
#[cfg_attr(loom, expect(unreachable_pub, reason = "planners aren't modelled"))]
pub fn lock<T>(mutex: &Mutex<T>) -> Guard<'_, T> {
    #[cfg(loom)]
    return mutex.lock().unwrap_or_else(PoisonError::into_inner);
    #[cfg(not(loom))]
    {
        let gate = gate::enter();
        Guard { inner: mutex.lock().unwrap_or_else(PoisonError::into_inner), gate }
    }
}

/// Returns the current thread's number.
pub(super) fn current() -> ThreadId {
    #[cfg(not(loom))]
    return std::thread::current().id();
    #[cfg(loom)]
    return loom::thread::current().id();
}

/// Waits for a signal, or for 50 ms, after which a waiting thread asks whether its caller has
/// cancelled: a person who presses Ctrl-C notices no shorter delay.
#[cfg_attr(loom, expect(unreachable_pub, reason = "planners aren't modelled"))]
pub fn pause<'a, T>(condition: &Condvar, mutex: &'a Mutex<T>, guard: Guard<'a, T>) -> Guard<'a, T> {
    #[cfg(not(loom))]
    {
        let Guard { inner, gate } = guard;
        drop(gate);
        let result = condition.wait_timeout(inner, std::time::Duration::from_millis(50));
        // A thread that has the mutex doesn't wait for the gate, since others lock the mutex behind
        // the gate.
        drop(result.unwrap_or_else(PoisonError::into_inner));
        lock(mutex)
    }
    #[cfg(loom)]
    {
        // The model checker's guard has its mutex with it.
        let _ = mutex;
        condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
}
