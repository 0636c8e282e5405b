//! Children of fork, for the tests of several crates.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whether `check` returns true in a child, within a minute. A panic there is a false.
pub(crate) fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `check` and ends without running anything of the parent's. Its one
    // thread allocates, which the C library allows after fork.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: no pointers; a child that hangs is ended by the signal.
            unsafe { libc::alarm(60) };
            let passed = catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(!passed)) }
        }
        child => ends_well(child),
    }
}

/// Waits for a child; whether it ended with status 0.
pub(crate) fn ends_well(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: a child of ours, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}
