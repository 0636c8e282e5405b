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
    timer.watched.push(Watched { session, due });
    let process = std::process::id();
    if timer.thread_of != Some(process) {
        let thread = std::thread::Builder::new().name("keyfold pipelines".to_owned());
        // Without a thread, recordings look at the clock.
        timer.thread_of = thread.spawn(run).is_ok().then_some(process);
    }
    drop(timer);
    CHANGED.notify_one();
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
