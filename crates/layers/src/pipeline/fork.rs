//! The locks of what all pipelines share, held while a thread forks: a child would find one locked for ever that another
//! thread held, which it hasn't.

use std::cell::RefCell;
use std::sync::{Arc, MutexGuard, Weak};

use keyfold_core::Result;
use keyfold_dispatch::forklock::AtFork;

use super::recording::HeldMemories;
use super::session::Session;
use super::settle::Sessions;
use super::timer::Watched;
use super::{recording, settle, timer};

type Held = (
    MutexGuard<'static, Sessions>,
    MutexGuard<'static, Vec<Watched>>,
    MutexGuard<'static, HeldMemories>,
);

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

static AT_FORK: AtFork = AtFork::new();

extern "C" fn before() {
    let held = (settle::lock(), timer::lock(), recording::lock_memories());
    // A thread that ends, and has no data of its own any more, doesn't fork.
    let _ = HELD.try_with(|own| own.replace(Some(held)));
}

extern "C" fn after_in_parent() {
    let _ = HELD.try_with(RefCell::take);
}

/// Forgets what the threads that the child lacks were in the middle of.
extern "C" fn after_in_child() {
    let Ok(Some((mut sessions, mut watched, memories))) = HELD.try_with(RefCell::take) else {
        return;
    };
    // A recording on this thread has its pipeline watched again.
    watched.clear();
    let known: Vec<Arc<Session>> = sessions.iter().filter_map(Weak::upgrade).collect();
    *sessions = known.iter().filter(|known| known.is_unlocked()).map(Arc::downgrade).collect();
    drop((sessions, watched, memories));
    // Without the locks: one may be the last reference by now.
    drop(known);
}

/// Prepares for forks, once.
///
/// # Errors
/// [`keyfold_core::ErrorKind::Memory`] if there is no memory for that.
pub(super) fn prepare() -> Result<()> {
    AT_FORK.register_safe(before, after_in_parent, after_in_child)
}
