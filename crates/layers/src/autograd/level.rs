//! Levels of forward mode: one per `jvp` that runs.
//!
//! A tangent belongs to the `jvp` that it was given to, so that one inside another doesn't take the outer
//! one's tangents for its own (perturbation confusion). Method: tagged dual numbers (Siskind and
//! Pearlmutter, "Nesting forward-mode AD in a functional framework", 2008).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use keyfold_dispatch::{DispatchKeySet, LocalGuard, include_keys_with, local_data};

use super::dual::SavedTangents;

/// Whether any level was ever opened in this process: before that no tensor has a tangent.
static EVER: AtomicBool = AtomicBool::new(false);

/// Whether a tensor may have a tangent: one load, for calls that are recorded.
#[inline]
pub(super) fn were_opened() -> bool {
    EVER.load(Ordering::Relaxed)
}

/// One `jvp` that runs, or ran. Inner ones have higher numbers.
pub struct Level {
    number: u64,
    ended: AtomicBool,
    /// Tangents that nodes keep for derivatives. They go when the level ends: the tangent of a result
    /// leads back to the node that keeps it.
    kept: Mutex<Vec<Weak<SavedTangents>>>,
}

impl Level {
    /// A level inside those that are open here. It applies once it is among the local data.
    pub fn open() -> Arc<Level> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        EVER.store(true, Ordering::Relaxed);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Level { number, ended: AtomicBool::new(false), kept: Mutex::default() })
    }

    /// Its number: inner levels have higher ones.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether its `jvp` has returned, so that its tangents mean nothing any more.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Says that its `jvp` returns.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        let kept = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *kept)
        };
        for tangents in kept.iter().filter_map(Weak::upgrade) {
            tangents.forget_ended();
        }
    }

    /// Has tangents that a node keeps forgotten when the level ends.
    pub(super) fn note_kept(&self, tangents: &Arc<SavedTangents>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(Arc::downgrade(tangents));
    }
}

/// Whether a `jvp` runs here.
pub(super) fn is_open() -> bool {
    were_opened() && local_data::<Level>().is_some_and(|level| !level.has_ended())
}

/// The flag in a guard's local data for recording calls on tensors that require grad, where excluding
/// the key Autograd would take tangents away, too.
struct Recording(bool);

/// Calls on this thread are recorded while the guard lives, or aren't, though the key Autograd is on.
/// `None` before any `jvp`: nothing else turns the graph off so.
pub fn recording(on: bool) -> Option<LocalGuard> {
    let guard = || include_keys_with(DispatchKeySet::EMPTY, Arc::new(Recording(on)));
    were_opened().then(guard)
}

/// Whether calls are recorded here, as far as [`Recording`] says.
pub(super) fn is_recording() -> bool {
    !were_opened() || local_data::<Recording>().is_none_or(|recording| recording.0)
}
