//! The limit of time: one thread for all pipelines runs what has waited too long.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use super::session::Session;

struct Watched {
    session: Weak<Session>,
    due: Instant,
}

struct Timer {
    watched: Vec<Watched>,
    /// The process whose thread waits; a child of fork starts its own.
    thread_of: Option<u32>,
}

static TIMER: Mutex<Timer> = Mutex::new(Timer { watched: Vec::new(), thread_of: None });
static CHANGED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Timer> {
    TIMER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a session's waiting operations run at that time, unless they ran before. Called with the
/// session locked.
pub(super) fn watch(session: Weak<Session>, due: Instant) {
    let mut timer = lock();
    // One entry is enough: where earlier operations have run by then, the thread is told of later ones.
    let is_known = timer.watched.iter().any(|watched| watched.session.ptr_eq(&session));
    let is_first = !is_known && timer.watched.iter().all(|watched| due < watched.due);
    if !is_known {
        timer.watched.push(Watched { session, due });
    }
    let process = std::process::id();
    if timer.thread_of != Some(process) {
        let thread = std::thread::Builder::new().name("keyfold pipelines".to_owned());
        // Without a thread, recordings look at the clock.
        timer.thread_of = thread.spawn(run).is_ok().then_some(process);
    }
    drop(timer);
    if is_first {
        CHANGED.notify_one();
    }
}

/// Watches a session no longer, which is dropped.
pub(super) fn forget(session: &Weak<Session>) {
    lock().watched.retain(|watched| !watched.session.ptr_eq(session));
}

fn run() {
    let mut timer = lock();
    loop {
        let now = Instant::now();
        let is_due = |watched: &Watched| watched.due <= now;
        if let Some(at) = timer.watched.iter().position(is_due) {
            let watched = timer.watched.swap_remove(at);
            drop(timer);
            if let Some(session) = watched.session.upgrade() {
                session.flush_overdue(now);
            }
            timer = lock();
            continue;
        }
        let next = timer.watched.iter().map(|watched| watched.due).min();
        timer = match next {
            Some(due) => {
                let wait = due.saturating_duration_since(now);
                CHANGED.wait_timeout(timer, wait).unwrap_or_else(PoisonError::into_inner).0
            }
            None => CHANGED.wait(timer).unwrap_or_else(PoisonError::into_inner),
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
            lock().watched.iter().filter(is_it).count()
        };
        for _ in 0..3 {
            session.watch(Instant::now() + Duration::from_secs(1000));
        }
        assert_eq!(count(), 1);
        drop(session);
        assert_eq!(count(), 0);
    }
}
