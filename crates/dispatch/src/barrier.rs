//! An asymmetric memory barrier: free for readers, a system call for writers.
//!
//! A reader announces itself (a store) and then loads a pointer; a writer swaps
//! the pointer and then looks for announcements. Each must see the other's
//! store before its own load, which on every processor takes a full fence on
//! both sides. Linux's membarrier(2) runs that fence on the reader's core for
//! it, so that the reader pays nothing. Where the call isn't there, both sides
//! fence.

use crate::sync::{Ordering, fence};

/// Whether readers can do without a fence in this process. Asked once per thread.
#[cfg(all(target_os = "linux", not(loom)))]
pub(crate) fn is_asymmetric() -> bool {
    use std::sync::OnceLock;
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && membarrier(EXPEDITED)
    })
}

#[cfg(not(all(target_os = "linux", not(loom))))]
pub(crate) fn is_asymmetric() -> bool {
    false
}

#[cfg(all(target_os = "linux", not(loom)))]
const EXPEDITED: libc::c_int = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;

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
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The writer's side, between its swap and its look at the announcements.
pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
    #[cfg(all(target_os = "linux", not(loom)))]
    if is_asymmetric() {
        // Registered and tried in `is_asymmetric`, so it can't fail here.
        let done = membarrier(EXPEDITED);
        assert!(done, "membarrier(2) worked before and fails now");
    }
}
