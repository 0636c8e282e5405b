//! Memory that a call on this thread is writing.
//!
//! Writing views are `Copy` and stay on their thread. The one way to use a copy while the engine
//! writes through another is a body that finds it on its own thread (in a thread-local) and starts
//! a second call from within the first; that call is refused.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use keyfold_core::{Error, ErrorKind, Result};

use crate::view::Extent;

/// The first is in place, since calls rarely nest; without calls it keeps no memory.
struct Active {
    first: Option<Extent>,
    more: Vec<Extent>,
}

thread_local! {
    /// Without a destructor, so that those of other thread-locals may call operators.
    static ACTIVE: RefCell<ManuallyDrop<Active>> =
        const { RefCell::new(ManuallyDrop::new(Active { first: None, more: Vec::new() })) };
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
            let Active { first, more } = &mut **active;
            let written = || first.iter().chain(&*more);
            if first.is_some()
                && writing_views.any(|view| written().any(|other| view.touches(other)))
            {
                return Err(Error::new(
                    ErrorKind::Value,
                    format!("{operator}: called from a body whose own output is the same memory"),
                ));
            }
            match first {
                None => *first = Some(out.clone()),
                Some(_) => more.push(out.clone()),
            }
            Ok(Writing(()))
        })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        ACTIVE.with_borrow_mut(|active| {
            if active.more.pop().is_none() {
                active.first = None;
            } else if active.more.is_empty() {
                active.more = Vec::new();
            }
        });
    }
}
