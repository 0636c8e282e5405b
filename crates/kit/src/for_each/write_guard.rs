//! The memory that calls on this thread are writing.
//!
//! Writing views are `Copy` and stay on their thread. Only a body can use a copy while the engine writes
//! through another: it finds the copy in a thread-local and starts a second call from within the first.
//! That call is refused.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use keyfold_core::{Error, ErrorKind, Result};

use crate::view::Extent;

/// The extents that calls on this thread are writing. The first is stored inline, since calls rarely
/// nest; the list is freed when the nested calls end.
struct ActiveWrites {
    first: Option<Extent>,
    more: Vec<Extent>,
}

thread_local! {
    /// Without a destructor, so that destructors of other thread-locals may call operators.
    static ACTIVE: RefCell<ManuallyDrop<ActiveWrites>> =
        const { RefCell::new(ManuallyDrop::new(ActiveWrites { first: None, more: Vec::new() })) };
}

/// A guard: while it lives, the memory counts as being written.
pub(super) struct WriteGuard(());

impl WriteGuard {
    /// # Errors
    /// [`ErrorKind::Value`] if a call further up this thread's stack is writing some of this memory.
    pub(super) fn begin<'a>(
        operator: &str,
        out: &Extent,
        mut writing_views: impl Iterator<Item = &'a Extent>,
    ) -> Result<WriteGuard> {
        ACTIVE.with_borrow_mut(|active| {
            let ActiveWrites { first, more } = &mut **active;
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
            Ok(WriteGuard(()))
        })
    }
}

impl Drop for WriteGuard {
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
