//! An asymmetric memory barrier: free for readers, a system call for writers.
//!
//! A reader announces itself (a store) and then loads a pointer; a writer swaps the pointer and
//! then reads the announcements. Each must see the other's store before its own load, which takes a
//! full fence on both sides on every processor. Linux's membarrier(2) runs the reader's fence on
//! its core for it, so that readers pay nothing. Without the system call both sides fence.
//!
//! A sandbox may later deny the call to a process that relies on it, or to one of its threads.
//! `reclaim` then makes readers fence.

use crate::sync::{Ordering, fence};

/// Returns whether readers can omit their fence in this process, as determined at the first call.
#[cfg(all(target_os = "linux", not(loom)))]
pub(crate) fn is_asymmetric() -> bool {
    use std::sync::atomic::AtomicU8;
    // Not a lock: a child of fork could find it taken. Registering twice is harmless.
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 2;
    let known = ANSWER.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known != 0;
    }
    let answer = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
        && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    ANSWER.store(u8::from(answer), Ordering::Relaxed);
    answer
}

#[cfg(not(all(target_os = "linux", not(loom))))]
pub(crate) fn is_asymmetric() -> bool {
    false
}

#[cfg(all(target_os = "linux", not(loom)))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes integers only and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// The reader's barrier, between its announcement and its load.
#[inline(always)]
pub(crate) fn light(asymmetric: bool) {
    if asymmetric {
        // `heavy` runs the processor's fence; only the compiler must keep the order.
        compiler_only();
    } else {
        full();
    }
}

/// Prevents the compiler, but not the processor, from reordering memory accesses.
#[inline(always)]
pub(crate) fn compiler_only() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// A full fence, where the other side has one, too.
pub(crate) fn full() {
    fence(Ordering::SeqCst);
}

/// The writer's barrier, between its swap and its read of the announcements. Returns whether it ran
/// the readers' fences, too.
pub(crate) fn heavy() -> bool {
    full();
    #[cfg(all(target_os = "linux", not(loom)))]
    let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    #[cfg(not(all(target_os = "linux", not(loom))))]
    let done = false;
    done
}
