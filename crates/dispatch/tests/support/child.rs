//! Child processes, for the tests of several crates.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `check` in a forked child and returns its result; false after a panic or a minute.
pub(crate) fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `check` and ends without running the parent's code. Its one thread
    // allocates, which the C library allows after fork.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: no pointers; the signal ends a child that hangs.
            unsafe { libc::alarm(60) };
            let passed = catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(!passed)) }
        }
        child => ends_well(child),
    }
}

/// Waits for a child and returns whether its status was 0.
pub(crate) fn ends_well(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}
