//! What the pools' tests share.

use std::sync::{Mutex, MutexGuard, Once};

/// Numbers of threads to test with.
pub(crate) const THREADS: [usize; 4] = [1, 2, 4, 7];

static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// The number of threads belongs to the process: tests that set it take turns.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    EXCLUSIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Leaves reports of panics on our workers out of the output; those of failing tests stay.
pub(crate) fn without_panic_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload_as_str().unwrap_or("");
            let expected = text.ends_with("panicked") || text == "7 and 13" || text.is_empty();
            if !expected {
                usual(info);
            }
        }));
    });
}
