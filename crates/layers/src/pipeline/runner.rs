//! The right to run a pipeline's operations, which one thread at a time has.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::Tensor;

use super::host::{self, INTERRUPT_CHECK};
use super::session::{Session, State};

/// The right to run a session's operations.
pub(super) struct Turn<'s> {
    session: &'s Session,
    /// Whether a part of what waits ran before.
    was_part: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.session.lock_as_is();
        state.turns -= 1;
        state.is_part = self.was_part;
        if state.turns == 0 {
            state.runner = None;
            let is_awaited = state.awaiting > 0;
            let gives_up = std::mem::take(&mut state.gives_up);
            self.session.matches.store(state.is_idle(), Ordering::Relaxed);
            self.session.runs.store(false, Ordering::Relaxed);
            let is_unused = |_: &_, copy: &mut Tensor| copy.buffer().shares() == 1;
            let unused: Vec<_> = state.copies.extract_if(is_unused).collect();
            drop(state);
            if is_awaited {
                self.session.freed.notify_all();
            }
            // Without the lock, since large memory is given back.
            drop(unused);
            if gives_up {
                self.session.give_up();
            }
        }
    }
}

impl Session {
    /// Returns whether this thread runs operations of the session now.
    pub(super) fn is_run_here(&self) -> bool {
        self.runs.load(Ordering::Relaxed) && self.lock_as_is().is_run_here()
    }

    /// Returns whether another thread runs operations of the session now.
    pub(super) fn is_run_elsewhere(&self) -> bool {
        self.runs.load(Ordering::Relaxed) && {
            let state = self.lock_as_is();
            state.runner.is_some() && !state.is_run_here()
        }
    }

    /// Waits until no other thread runs operations of this session.
    pub(super) fn take_turn(&self) -> Result<Turn<'_>> {
        let me = here();
        let mut state = self.lock_as_is();
        loop {
            match state.runner {
                None => break,
                Some(runner) if runner == me => break,
                Some((_, process)) if process != me.1 => {
                    return Err(Error::new(
                        ErrorKind::Pipeline,
                        "this process was forked while another thread ran the pipeline's \
                         operations, and that thread isn't in the child",
                    ));
                }
                Some(_) => {
                    state.awaiting += 1;
                    let waited = self.freed.wait_timeout(state, INTERRUPT_CHECK);
                    let (mut waited, _) = waited.unwrap_or_else(PoisonError::into_inner);
                    waited.awaiting -= 1;
                    // Python is asked without the lock: a thread that has the GIL may wait for it.
                    drop(waited);
                    host::interrupted()?;
                    state = self.lock_as_is();
                }
            }
        }
        Ok(self.begin_turn(&mut state))
    }

    /// Gives the right to this thread, which has it already or finds it free.
    pub(super) fn begin_turn(&self, state: &mut State) -> Turn<'_> {
        state.runner = Some(here());
        self.runs.store(true, Ordering::Relaxed);
        state.turns += 1;
        Turn { session: self, was_part: state.is_part }
    }
}

fn here() -> (ThreadId, u32) {
    (std::thread::current().id(), std::process::id())
}

impl State {
    /// Returns whether nothing waits and nothing runs.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.len() == 0 && self.matched.is_none() && self.runner.is_none()
    }

    /// Returns whether this thread runs operations of the session now.
    pub(super) fn is_run_here(&self) -> bool {
        self.runner.is_some_and(|(thread, _)| thread == std::thread::current().id())
    }
}
