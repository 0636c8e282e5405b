//! Running waiting operations before an access that isn't a call: recorded draws before a device's random state is
//! read or set, and readers of a memory before it is lent to another library, which may write to it unseen.
//!
//! And what pipelines keep of a memory, for those who ask whether somebody else reads it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use keyfold_core::Result;
use keyfold_dispatch::Value as _;
use keyfold_tensor::device::random;
use keyfold_tensor::{Tensor, before_lending};

use super::operation::for_each_tensor;
use super::sequence::Matched;
use super::session::Session;
use super::{fork, recording};

/// The pipelines that exist.
pub(super) type Sessions = Vec<Weak<Session>>;

static SESSIONS: Mutex<Sessions> = Mutex::new(Vec::new());

pub(super) fn lock() -> MutexGuard<'static, Sessions> {
    SESSIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a pipeline.
pub(super) fn note(session: &Weak<Session>) {
    random::before_access(settle_random);
    before_lending(settle_memory);
    // Without memory for that, a child of fork may wait for a thread that it hasn't: the next opening tries again.
    let _ = fork::prepare();
    let mut sessions = lock();
    sessions.retain(|known| known.strong_count() > 0);
    sessions.push(Weak::clone(session));
}

fn sessions() -> Vec<Arc<Session>> {
    lock().iter().filter_map(Weak::upgrade).collect()
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
    let mut waiting = runnable(&sessions).filter(|session| !session.only_records());
    waiting.try_for_each(|session| session.settle_memories(&[tensor]))
}

/// Runs the recorded draws of all pipelines.
fn settle_random() -> Result<()> {
    if let Some(recorder) = Session::current().filter(|session| session.only_records()) {
        recorder.run_instead("it reads or sets the random state")?;
    }
    let sessions = sessions();
    let mut running = runnable(&sessions).filter(|session| !session.only_records());
    running.try_for_each(|session| session.settle_random())
}

/// Returns the number of references to a tensor's memory that pipelines keep: arguments of calls that wait, which
/// run before a write that is made now, of calls that failed, and of recordings, which read what is there when they are
/// replayed. A program can't reach the memory through them.
pub(crate) fn shares_held_by_pipelines(tensor: &Tensor) -> usize {
    let waiting: usize = sessions().iter().map(|session| session.shares_of(tensor)).sum();
    waiting + recording::shares_held_by_recordings(tensor)
}

impl Session {
    fn shares_of(&self, tensor: &Tensor) -> usize {
        let mut shares = 0;
        let mut add =
            |kept: &Tensor| shares += usize::from(kept.buffer().is_same_memory(tensor.buffer()));
        let state = self.lock_as_is();
        for operation in state.waiting.iter() {
            let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
            args.iter().for_each(|arg| for_each_tensor(arg.as_ref(), &mut add));
        }
        let matched = state.matched.iter().chain(state.replayed.as_deref());
        matched.flat_map(Matched::inputs).for_each(&mut add);
        state.program.copies.iter().for_each(|(_, array)| add(array));
        let mut failed: Vec<_> = state.unreported.iter().chain(&state.last_failure).collect();
        failed.dedup_by_key(|failure| Arc::as_ptr(failure));
        for constant in failed.iter().flat_map(|failure| failure.graph.constants()) {
            for_each_tensor(constant.value.as_ref(), &mut add);
        }
        shares
    }
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
