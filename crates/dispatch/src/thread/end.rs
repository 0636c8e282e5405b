//! The end of a thread, and the fork of a process.
//!
//! A thread's slots are freed by the destructor of a pthread key, not of a Rust thread-local.
//! Destructors of keys run after those of thread-locals, and again if one of them sets a key anew,
//! so that slots taken by the first of these destructors are freed too. Later calls take slots for
//! their own duration.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use keyfold_core::Result;

use super::{ThreadState, with};
use crate::local;

/// The state of a thread's end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndState {
    /// Not determined yet.
    Unknown,
    /// The destructor will run.
    Noticed,
    /// The destructor has run, or never will.
    Ended,
}

/// Whether a destructor will run at the thread's end.
pub(super) struct Ending(Cell<EndState>);

impl Ending {
    pub(super) const fn new() -> Self {
        Ending(Cell::new(EndState::Unknown))
    }

    /// Arranges for the destructor to run; returns false if it has run or can't.
    pub(super) fn notice(&self, state: &ThreadState) -> bool {
        if self.0.get() == EndState::Unknown {
            // Any value but null, since the destructor doesn't use it.
            let value = std::ptr::from_ref(state).cast::<c_void>();
            // SAFETY: a key of this module. The value is never read.
            let set =
                key().is_some_and(|key| unsafe { libc::pthread_setspecific(key, value) } == 0);
            self.0.set(if set { EndState::Noticed } else { EndState::Ended });
        }
        self.is_noticed()
    }

    pub(super) fn is_noticed(&self) -> bool {
        self.0.get() == EndState::Noticed
    }
}

/// Returns the key whose destructor runs at the end of threads; `None` if the C library has no key
/// left.
fn key() -> Option<libc::pthread_key_t> {
    /// 0 without a key, else its number plus one. Not behind a lock, which a child of fork could
    /// find taken.
    static KEY: AtomicU64 = AtomicU64::new(0);
    let known = KEY.load(Ordering::Acquire);
    if known != 0 {
        return libc::pthread_key_t::try_from(known - 1).ok();
    }
    let mut key = 0;
    // SAFETY: a place for the key, and a destructor of the right type.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ended)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, u64::from(key) + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            pin_library();
            Some(key)
        }
        Err(first) => {
            // SAFETY: created above, and not shared yet.
            unsafe { libc::pthread_key_delete(key) };
            libc::pthread_key_t::try_from(first - 1).ok()
        }
    }
}

/// Keeps the library that contains this code loaded until the process ends, since ending threads
/// call the destructor: a host that closes a library with keyfold in it doesn't unload it. The main
/// program, which the loader doesn't find by name, is never unloaded.
fn pin_library() {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: an address, and a place for the result.
    if unsafe { libc::dladdr(thread_ended as *const c_void, found.as_mut_ptr()) } == 0 {
        return;
    }
    // SAFETY: initialised, since the call succeeded.
    let name = unsafe { found.assume_init() }.dli_fname;
    if !name.is_null() {
        // SAFETY: the loader's own name of a loaded library: nothing is loaded and no code runs.
        // The handle is an additional reference that is never closed.
        unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

unsafe extern "C" fn thread_ended(_: *mut c_void) {
    with(|state| {
        state.ending.0.set(EndState::Ended);
        state.leave();
    });
    local::thread_ended();
}

#[cfg(not(loom))]
mod fork {
    use super::super::{DOMAIN, with};
    use crate::forklock::AtFork;

    pub(super) static AT_FORK: AtFork = AtFork::new();

    pub(super) unsafe extern "C" fn before() {
        DOMAIN.before_fork();
    }

    pub(super) unsafe extern "C" fn after_in_parent() {
        // SAFETY: `before` ran on this thread.
        unsafe { DOMAIN.after_fork_in_parent() };
    }

    pub(super) unsafe extern "C" fn after_in_child() {
        let own = with(|state| state.slots.get());
        // SAFETY: `before` ran on the thread that this one continues.
        unsafe { DOMAIN.after_fork_in_child(own) };
    }
}

/// Registers the fork handlers, so that a child finds the domain consistent and without the threads
/// that it lacks.
///
/// # Errors
/// [`ErrorKind::Memory`](keyfold_core::ErrorKind::Memory) if the C library can't allocate the
/// registration.
#[cfg(not(loom))]
pub(super) fn prepare_for_fork() -> Result<()> {
    // SAFETY: they can run at any time: the domain is a static, and the state needs no
    // initialisation. The child's handler waits for no other thread.
    unsafe { fork::AT_FORK.register(fork::before, fork::after_in_parent, fork::after_in_child) }
}

#[cfg(loom)]
pub(super) fn prepare_for_fork() -> Result<()> {
    Ok(())
}
