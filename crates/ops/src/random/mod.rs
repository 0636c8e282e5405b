//! Random numbers: the process's own stream, and the operators that draw from it.
//!
//! The stream is that of Philox4x32-10, a function of a seed and of how much was drawn so far, which
//! is its whole state. Each call of an operator takes its part of the stream at once, so that
//! calls from several threads never get the same numbers; which gets which, their order decides.

mod dropout;
mod kernels;
mod philox;

use std::sync::{Mutex, PoisonError};

pub(crate) use kernels::register;

/// Where the process's stream of random numbers is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// Which stream it is.
    pub seed: u64,
    /// How many blocks of four 32-bit words were taken from it.
    pub offset: u64,
}

/// The process's stream. Until somebody gives a seed it is that of seed 0: a program does the same
/// each time, unless it asks for something else.
static CURRENT: Mutex<State> = Mutex::new(State { seed: 0, offset: 0 });

fn with<R>(f: impl FnOnce(&mut State) -> R) -> R {
    f(&mut CURRENT.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Goes to the start of the stream of a seed.
pub fn seed(seed: u64) {
    set_state(State { seed, offset: 0 });
}

/// Where the stream is now. With [`set_state`] the same numbers can be drawn again.
pub fn state() -> State {
    with(|state| *state)
}

/// Goes to a place in a stream.
pub fn set_state(state: State) {
    with(|current| *current = state);
}

/// Takes so many blocks from the stream; gives where they begin.
fn take(blocks: u64) -> State {
    with(|current| {
        let begin = *current;
        current.offset = current.offset.wrapping_add(blocks);
        begin
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_moves_on_and_restoring_goes_back() {
        // The only unit test that moves the process's stream.
        seed(7);
        assert_eq!(take(3), State { seed: 7, offset: 0 });
        let kept = state();
        assert_eq!(kept, State { seed: 7, offset: 3 });
        assert_eq!(take(1), kept);
        set_state(kept);
        assert_eq!(take(u64::MAX), kept);
        assert_eq!(state().offset, 2);
    }
}
