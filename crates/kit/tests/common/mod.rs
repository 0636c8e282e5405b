//! Helpers of the thread pool's tests.

use std::sync::{Mutex, MutexGuard};

/// The numbers of threads to test with.
pub(crate) const THREADS: [usize; 4] = [1, 2, 4, 7];

static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// The number of threads is set for the whole process, so tests that set it hold this lock.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    EXCLUSIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
