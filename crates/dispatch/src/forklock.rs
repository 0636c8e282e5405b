//! A lock for process-wide state that survives fork.
//!
//! A child of fork has one thread and a copy of every lock's state: a lock that another thread held
//! would stay locked for ever. So the forking thread acquires these locks before the fork, and both
//! processes release them afterwards, as C libraries do with their own. The guarded state is
//! therefore consistent in the child.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keyfold_core::{Error, ErrorKind, Result};

/// A spin lock around a value in a static, for short critical sections that neither panic nor fork.
/// A thread that finds it locked yields until it is free.
pub struct ForkLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time accesses the value, so `Send` suffices.
unsafe impl<T: Send> Sync for ForkLock<T> {}

impl<T> ForkLock<T> {
    /// Returns an unlocked lock.
    pub const fn new(value: T) -> Self {
        ForkLock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Locks until the guard is dropped.
    #[inline]
    pub fn lock(&self) -> ForkGuard<'_, T> {
        self.acquire();
        ForkGuard(self)
    }

    /// Locks without a guard, for a handler that runs before fork.
    #[inline]
    pub fn acquire(&self) {
        if self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let mut round = 0_u32;
        loop {
            if !self.held.load(Ordering::Relaxed) && !self.held.swap(true, Ordering::Acquire) {
                return;
            }
            // The holder needs some nanoseconds, unless it was descheduled.
            round += 1;
            if round < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Unlocks.
    ///
    /// # Safety
    /// The calling thread, or the thread that forked this process, locked it with
    /// [`ForkLock::acquire`].
    #[inline]
    pub unsafe fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// Returns the value's address, for a handler between [`ForkLock::acquire`] and
    /// [`ForkLock::release`].
    pub fn value(&self) -> *mut T {
        self.value.get()
    }
}

/// Unlocks when dropped.
pub struct ForkGuard<'a, T>(&'a ForkLock<T>);

impl<T> Deref for ForkGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, so no other thread accesses the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ForkGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; `&mut self` is the only access on this thread.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for ForkGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard holds the lock.
        unsafe { self.0.release() };
    }
}

/// Handlers that run around every fork of this process, registered once.
pub struct AtFork {
    /// 0 before and [`DONE`] after the registration; meanwhile the registering process's id, so
    /// that a forked child, which lacks the registering thread, starts over.
    state: AtomicU64,
}

const DONE: u64 = u64::MAX;

/// A handler that runs on the forking thread: before the fork, or after it in one of the processes.
pub type Handler = unsafe extern "C" fn();

impl AtFork {
    /// Returns an empty registration.
    #[expect(clippy::new_without_default, reason = "for statics only")]
    pub const fn new() -> Self {
        AtFork { state: AtomicU64::new(0) }
    }

    /// Registers the handlers at the first call.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] if the C library can't allocate the registration.
    ///
    /// # Safety
    /// The handlers may run at any fork until the process ends, and the one for the child waits for
    /// no other thread.
    #[inline]
    pub unsafe fn register(&self, before: Handler, parent: Handler, child: Handler) -> Result<()> {
        if self.state.load(Ordering::Acquire) == DONE {
            return Ok(());
        }
        // SAFETY: the caller's contract.
        unsafe { self.register_slowly(before, parent, child) }
    }

    /// As [`AtFork::register`], with handlers that any code may call: the one for the child waits for no other thread
    /// there, or the child hangs.
    ///
    /// # Errors
    /// As [`AtFork::register`].
    #[inline]
    pub fn register_safe(
        &self,
        before: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> Result<()> {
        // SAFETY: safe functions, so they may run at any time; a child that waits is no undefined behaviour.
        unsafe { self.register(before, parent, child) }
    }

    #[cold]
    unsafe fn register_slowly(
        &self,
        before: Handler,
        parent: Handler,
        child: Handler,
    ) -> Result<()> {
        let here = u64::from(std::process::id());
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state == DONE {
                return Ok(());
            }
            let mine = state != here
                && self
                    .state
                    .compare_exchange(state, here, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if !mine {
                std::thread::yield_now();
                continue;
            }
            // SAFETY: functions of the right type that may run at any fork (see `register`).
            let failed = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
            self.state.store(if failed == 0 { DONE } else { 0 }, Ordering::Release);
            if failed == 0 {
                return Ok(());
            }
            return Err(Error::new(ErrorKind::Memory, "no memory to prepare for fork"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_holds_the_lock() {
        let counter = ForkLock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 40_000);
    }
}
