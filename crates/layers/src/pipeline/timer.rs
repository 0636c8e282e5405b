//! The limit of time: one thread for all pipelines runs what has waited too long.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use super::session::Session;

pub(super) struct Watched {
    session: Weak<Session>,
    due: Instant,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
static CHANGED: Condvar = Condvar::new();
/// The process whose thread waits, 0 for none; a child of fork starts its own.
static THREAD_OF: AtomicU32 = AtomicU32::new(0);

/// Returns whether this process has the thread that waits.
pub(super) fn is_of_this_process() -> bool {
    THREAD_OF.load(Ordering::Relaxed) == std::process::id()
}

pub(super) fn lock() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a session's waiting operations run at that time, unless they ran before. Called with the
/// session locked.
pub(super) fn watch(session: Weak<Session>, due: Instant) {
    let mut all = lock();
    // One entry is enough: where earlier operations have run by then, the thread is told of later ones.
    let is_known = all.iter().any(|watched| watched.session.ptr_eq(&session));
    let is_first = !is_known && all.iter().all(|watched| due < watched.due);
    if !is_known {
        all.push(Watched { session, due });
    }
    if !is_of_this_process() {
        let thread = std::thread::Builder::new().name("keyfold pipelines".to_owned());
        // Without one, the next recording tries again.
        let process = if thread.spawn(run).is_ok() { std::process::id() } else { 0 };
        THREAD_OF.store(process, Ordering::Relaxed);
    }
    drop(all);
    if is_first {
        CHANGED.notify_one();
    }
}

/// Watches a session no longer, which is dropped.
pub(super) fn forget(session: &Weak<Session>) {
    lock().retain(|watched| !watched.session.ptr_eq(session));
}

fn run() {
    let mut all = lock();
    loop {
        let now = Instant::now();
        let is_due = |watched: &Watched| watched.due <= now;
        if let Some(at) = all.iter().position(is_due) {
            let watched = all.swap_remove(at);
            drop(all);
            if let Some(session) = watched.session.upgrade() {
                session.flush_overdue(now);
            }
            all = lock();
            continue;
        }
        let next = all.iter().map(|watched| watched.due).min();
        all = match next {
            Some(due) => {
                let wait = due.saturating_duration_since(now);
                CHANGED.wait_timeout(all, wait).unwrap_or_else(PoisonError::into_inner).0
            }
            None => CHANGED.wait(all).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::session::Options;
    use super::*;

    #[test]
    fn a_pipeline_is_watched_once_and_not_after_its_end() {
        let max_wait = Some(Duration::from_secs(1000));
        let session = Session::new(Options { max_wait, ..Options::default() }).unwrap();
        let place = Arc::as_ptr(&session);
        let count = || {
            let is_it = |one: &&Watched| std::ptr::eq(one.session.as_ptr(), place);
            lock().iter().filter(is_it).count()
        };
        for _ in 0..3 {
            session.watch(Instant::now() + Duration::from_secs(1000));
        }
        assert_eq!(count(), 1);
        drop(session);
        assert_eq!(count(), 0);
    }
}
