//! Running waiting operations before an access that isn't a call: recorded draws before a device's random state is
//! read or set, and readers of a memory before it is lent to another library, which may write to it unseen.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use keyfold_core::Result;
use keyfold_tensor::device::random;
use keyfold_tensor::{Tensor, before_lending};

use super::session::Session;

/// The pipelines that exist.
static SESSIONS: Mutex<Vec<Weak<Session>>> = Mutex::new(Vec::new());

/// Adds a pipeline.
pub(super) fn note(session: &Weak<Session>) {
    random::before_access(settle_random);
    before_lending(settle_memory);
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    sessions.retain(|known| known.strong_count() > 0);
    sessions.push(Weak::clone(session));
}

fn sessions() -> Vec<Arc<Session>> {
    let sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    sessions.iter().filter_map(Weak::upgrade).collect()
}

/// Returns the pipelines to run something of. A kernel that one of them runs here doesn't wait for those that other
/// threads run: their kernels may wait for this one, and threads share memory without an order anyway.
fn runnable(sessions: &[Arc<Session>]) -> impl Iterator<Item = &Arc<Session>> {
    let is_inside = sessions.iter().any(|session| session.is_run_here());
    sessions.iter().filter(move |session| !(is_inside && session.is_run_elsewhere()))
}

/// Runs what waits to read a tensor's memory. A recorder's replays read what is there then.
fn settle_memory(tensor: &Tensor) -> Result<()> {
    let sessions = sessions();
    let mut waiting = runnable(&sessions).filter(|session| !session.only_records);
    waiting.try_for_each(|session| session.settle_memories(&[tensor]))
}

/// Runs the recorded draws of all pipelines.
fn settle_random() -> Result<()> {
    let sessions = sessions();
    let here = Session::current();
    // A recorder runs nothing; only the program that it records is refused.
    let concerns = |session: &&Arc<Session>| {
        !session.only_records || here.as_ref().is_some_and(|here| Arc::ptr_eq(here, session))
    };
    runnable(&sessions).filter(concerns).try_for_each(|session| session.settle_random())
}

#[cfg(test)]
mod tests {
    use super::super::session::{Ending, Options};
    use super::*;

    #[test]
    fn a_pipeline_that_is_opened_again_is_known_once() {
        let session = Session::new(Options::default()).unwrap();
        for _ in 0..3 {
            session.open();
            session.close(Ending::Run).unwrap();
        }
        let known = SESSIONS.lock().unwrap();
        let same = known.iter().filter(|known| std::ptr::eq(known.as_ptr(), &raw const *session));
        assert_eq!(same.count(), 1);
    }
}
