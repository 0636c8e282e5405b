//! The order in which waiting operations run, by what each needs.
//!
//! An operation's `after` names the operations before it that write what it reads, or use what it
//! writes, or draw random numbers as it does. All of them have lower indices, so any set that
//! contains what its members need runs in the order of the indices.

use std::collections::BTreeSet;

use keyfold_tensor::Tensor;

use super::operation::memory_id;
use super::session::{Session, State};
use super::waiting::Waiting;

/// Returns all operations that wait.
pub(super) fn everything(waiting: &Waiting) -> Vec<usize> {
    waiting.iter().map(|operation| operation.index).collect()
}

/// Returns these operations with those that they need.
pub(super) fn before(state: &State, wanted: &[usize]) -> Vec<usize> {
    let (mut found, mut next) = (BTreeSet::new(), wanted.to_vec());
    while let Some(index) = next.pop() {
        if let Some(operation) = state.waiting.get(index)
            && found.insert(index)
        {
            for needed in &operation.after {
                // Where that one was merged with an earlier call, the earlier one's results are read.
                next.extend(std::iter::successors(Some(needed), |one| state.merged.get(one)));
            }
        }
    }
    found.into_iter().collect()
}

/// Returns the operations that use the memory of these tensors, with what they need. A user's kernel that gives its
/// arguments to another library needs the earlier operations alone: the later ones run after it in the same flush, as
/// they would without a pipeline. If only a part of what waits runs, they may not, so the later ones are returned, and
/// with them the kernel's own operation, which can't run inside itself: that is an error.
pub(super) fn using(session: &Session, state: &mut State, tensors: &[&Tensor]) -> Vec<usize> {
    state.note_readers();
    let mut wanted = Vec::new();
    for tensor in tensors {
        wanted.extend(tensor.pending_buffer().and_then(|memory| session.writer(memory)));
        wanted.extend(state.readers.get(&memory_id(tensor)).into_iter().flatten());
    }
    if state.is_run_here()
        && let Some(now) = state.running.last()
        && state.lending.last() == Some(now)
        && !(state.is_part && wanted.iter().any(|index| index > now))
    {
        wanted.retain(|index| index < now);
    }
    before(state, &wanted)
}
