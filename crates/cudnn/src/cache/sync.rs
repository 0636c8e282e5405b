//! Locks; under loom, the model checker's.

#[cfg(not(loom))]
pub(super) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::ThreadId,
};

#[cfg(loom)]
pub(super) use loom::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::ThreadId,
};

/// Returns the thread's number.
pub(super) fn current() -> ThreadId {
    #[cfg(not(loom))]
    return std::thread::current().id();
    #[cfg(loom)]
    return loom::thread::current().id();
}

/// Waits for a signal, or until a thread that waits should ask whether it still wants to.
pub(super) fn pause<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    #[cfg(not(loom))]
    {
        // As often as a person who presses a key notices.
        let pause = std::time::Duration::from_millis(50);
        let result = condition.wait_timeout(guard, pause);
        result.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }
    #[cfg(loom)]
    condition.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}
