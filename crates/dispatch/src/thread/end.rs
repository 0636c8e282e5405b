//! The end of a thread, and the fork of a process.
//!
//! A thread's slots are given back by the destructor of a pthread key and not by one of Rust's
//! thread-locals. Keys' destructors run after those, and again if one of them sets a key anew, so
//! that slots are given back that the first of these destructors took. What calls after that
//! takes slots for the length of a call.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use keyfold_core::Result;

use super::{ThreadState, with};
use crate::local;

/// The state of a thread's end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was asked yet.
    Unknown,
    /// The destructor will run.
    Noticed,
    /// The destructor ran, or never will.
    Ended,
}

/// Whether the end of a thread will be noticed.
pub(super) struct Ending(Cell<Stage>);

impl Ending {
    pub(super) const fn new() -> Self {
        Ending(Cell::new(Stage::Unknown))
    }

    /// Sees to it that the end is noticed; false where it is over, or can't be.
    pub(super) fn notice(&self, state: &ThreadState) -> bool {
        if self.0.get() == Stage::Unknown {
            // Any value but null; the destructor finds the state by itself.
            let value = std::ptr::from_ref(state).cast::<c_void>();
            // SAFETY: a key of ours. The value is never read.
            let set =
                key().is_some_and(|key| unsafe { libc::pthread_setspecific(key, value) } == 0);
            self.0.set(if set { Stage::Noticed } else { Stage::Ended });
        }
        self.is_noticed()
    }

    pub(super) fn is_noticed(&self) -> bool {
        self.0.get() == Stage::Noticed
    }
}

/// The key whose destructor runs at the end of threads; `None` where the C library has none left.
fn key() -> Option<libc::pthread_key_t> {
    /// 0 without a key, else its number and one more. Not behind a lock: a child of fork could
    /// find it taken.
    static KEY: AtomicU64 = AtomicU64::new(0);
    let known = KEY.load(Ordering::Acquire);
    if known != 0 {
        return libc::pthread_key_t::try_from(known - 1).ok();
    }
    let mut key = 0;
    // SAFETY: room for a key, and a destructor of the right type.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ended)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, u64::from(key) + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            pin_library();
            Some(key)
        }
        Err(first) => {
            // SAFETY: made above, and nobody else knows it.
            unsafe { libc::pthread_key_delete(key) };
            libc::pthread_key_t::try_from(first - 1).ok()
        }
    }
}

/// Keeps the library that this code is in loaded until the process ends, since threads call the
/// destructor when they end: a host that closes a library with keyfold in it doesn't unload it. The
/// main program, which the loader doesn't give out by name, stays in any case.
fn pin_library() {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: an address, and room for what is known of it.
    if unsafe { libc::dladdr(thread_ended as *const c_void, found.as_mut_ptr()) } == 0 {
        return;
    }
    // SAFETY: filled, as that succeeded.
    let name = unsafe { found.assume_init() }.dli_fname;
    if !name.is_null() {
        // SAFETY: the loader's own name of the library, which is there: nothing is loaded, and no
        // code runs. The handle is another share of it, which is never closed.
        unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

unsafe extern "C" fn thread_ended(_: *mut c_void) {
    with(|state| {
        state.ending.0.set(Stage::Ended);
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

/// Sees to it that a child of fork finds the domain whole, and without the threads that it lacks.
///
/// # Errors
/// [`ErrorKind::Memory`](keyfold_core::ErrorKind::Memory) where the C library has no memory to note
/// the functions.
#[cfg(not(loom))]
pub(super) fn prepare_for_fork() -> Result<()> {
    // SAFETY: they can run at any time: the domain is a static, and the state needs no
    // initialisation. The one for the child waits for nobody.
    unsafe { fork::AT_FORK.register(fork::before, fork::after_in_parent, fork::after_in_child) }
}

#[cfg(loom)]
pub(super) fn prepare_for_fork() -> Result<()> {
    Ok(())
}
