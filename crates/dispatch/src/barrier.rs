//! An asymmetric memory barrier: free for readers, a system call for writers.
//!
//! A reader announces itself (a store) and then loads a pointer; a writer swaps
//! the pointer and then looks for announcements. Each must see the other's
//! store before its own load, which on every processor takes a full fence on
//! both sides. Linux's membarrier(2) runs that fence on the reader's core for
//! it, so that the reader pays nothing. Where the call isn't there, both sides
//! fence.
//!
//! A sandbox that is set up later may deny the call to a process that counts on
//! it, or to one of its threads. `reclaim` then turns the readers to fences.

use crate::sync::{Ordering, fence};

/// Whether readers can do without a fence in this process, as far as is known at its first call.
#[cfg(all(target_os = "linux", not(loom)))]
pub(crate) fn is_asymmetric() -> bool {
    use std::sync::atomic::AtomicU8;
    // No lock guards this: a child of fork could find it taken. Registering twice does no harm.
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
    // SAFETY: membarrier takes integers only and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// The reader's side, between its announcement and its load.
#[inline(always)]
pub(crate) fn light(asymmetric: bool) {
    if asymmetric {
        // The processor's fence is run by `heavy`; only the compiler must keep the order.
        compiler_only();
    } else {
        full();
    }
}

/// Keeps the compiler from moving memory accesses across; the processor may.
#[inline(always)]
pub(crate) fn compiler_only() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// The fence of one side, where the other has one, too.
pub(crate) fn full() {
    fence(Ordering::SeqCst);
}

/// The writer's side, between its swap and its look at the announcements. Says whether it stood in
/// for the readers' fences, too.
pub(crate) fn heavy() -> bool {
    full();
    #[cfg(all(target_os = "linux", not(loom)))]
    let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    #[cfg(not(all(target_os = "linux", not(loom))))]
    let done = false;
    done
}
