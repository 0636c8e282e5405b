//! What the pools' tests share.

use std::sync::{Mutex, MutexGuard};

/// Numbers of threads to test with.
pub(crate) const THREADS: [usize; 4] = [1, 2, 4, 7];

static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// The number of threads belongs to the process: tests that set it take turns.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    EXCLUSIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
