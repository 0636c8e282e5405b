//! Random numbers: a device's state is read and set after the draws that were recorded before.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use keyfold_core::Result;
use keyfold_tensor::device::random;

use super::session::Session;

/// The pipelines that exist.
static SESSIONS: Mutex<Vec<Weak<Session>>> = Mutex::new(Vec::new());

/// Adds a pipeline.
pub(super) fn note(session: &Weak<Session>) {
    random::before_access(settle);
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    sessions.retain(|known| known.strong_count() > 0);
    sessions.push(Weak::clone(session));
}

/// Runs the recorded draws of all pipelines.
fn settle() -> Result<()> {
    let sessions: Vec<_> = {
        let sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.iter().filter_map(Weak::upgrade).collect()
    };
    let here = Session::current();
    // A recorder runs nothing; only the program that it records is refused.
    let concerns = |session: &&Arc<Session>| {
        !session.only_records || here.as_ref().is_some_and(|here| Arc::ptr_eq(here, session))
    };
    sessions.iter().filter(concerns).try_for_each(|session| session.settle_random())
}
