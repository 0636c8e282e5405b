//! Memory that a call on this thread is writing.
//!
//! Writing views are `Copy` and stay on their thread. The one way to use a copy while the engine
//! writes through another is a body that finds it on its own thread (in a thread-local) and starts
//! a second call from within the first; that call is refused.

use std::cell::RefCell;

use keyfold_core::{Error, ErrorKind, Result};

use crate::view::Extent;

thread_local! {
    static ACTIVE: RefCell<Vec<Extent>> = const { RefCell::new(Vec::new()) };
}

/// While this lives, the memory is being written.
pub(super) struct Writing(());

impl Writing {
    /// # Errors
    /// [`ErrorKind::Value`] when a call further up this thread's stack writes some of this memory.
    pub(super) fn begin<'a>(
        operator: &str,
        out: &Extent,
        mut writing_views: impl Iterator<Item = &'a Extent>,
    ) -> Result<Writing> {
        ACTIVE.with_borrow_mut(|active| {
            if !active.is_empty()
                && writing_views.any(|view| active.iter().any(|other| view.touches(other)))
            {
                return Err(Error::new(
                    ErrorKind::Value,
                    format!("{operator}: called from a body whose own output is the same memory"),
                ));
            }
            active.push(out.clone());
            Ok(Writing(()))
        })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        ACTIVE.with_borrow_mut(|active| active.pop());
    }
}
