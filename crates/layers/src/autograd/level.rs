//! Levels of forward mode: one per running `jvp`.
//!
//! Each tangent is tagged with the level of its `jvp`, so that an inner `jvp` doesn't mix the outer one's
//! tangents with its own (perturbation confusion). Method: tagged dual numbers (Siskind and Pearlmutter,
//! "Nesting forward-mode AD in a functional framework", 2008).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use keyfold_core::Error;
use keyfold_dispatch::{DispatchKeySet, LocalGuard, include_keys_with, local_data};

use super::dual::SavedTangents;

/// Whether a level was ever opened in this process. Before that no tensor has a tangent.
static ANY_OPENED: AtomicBool = AtomicBool::new(false);

/// Returns whether a tensor may have a tangent. It costs one load in each recorded call.
#[inline]
pub(super) fn any_level_opened() -> bool {
    ANY_OPENED.load(Ordering::Relaxed)
}

/// The level of one `jvp`. An inner level has a higher number.
pub struct Level {
    number: u64,
    ended: AtomicBool,
    /// Whether an operator without a rule stopped the `jvp`.
    lacks_rule: AtomicBool,
    /// The tangents of saved tensors. They are dropped when the level ends, since the tangent of a result
    /// refers to the node that saves it: a cycle.
    saved: Mutex<Vec<Weak<SavedTangents>>>,
}

impl Level {
    /// Opens a level inside the open levels of this thread. It applies once it is among the local data.
    pub fn open() -> Arc<Level> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        ANY_OPENED.store(true, Ordering::Relaxed);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (ended, lacks_rule) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Level { number, ended, lacks_rule, saved: Mutex::default() })
    }

    /// Returns the level's number; an inner level has a higher one.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether its `jvp` has returned, which invalidates its tangents.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns whether an operator without a rule for tangents stopped the `jvp`.
    pub fn lacks_rule(&self) -> bool {
        self.lacks_rule.load(Ordering::Relaxed)
    }

    /// Notes that an operator has no rule, and returns the error of its call.
    pub(super) fn stopped_by(&self, error: Error) -> Error {
        self.lacks_rule.store(true, Ordering::Relaxed);
        error
    }

    /// Ends the level when its `jvp` returns.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        let saved = {
            let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *saved)
        };
        for tangents in saved.iter().filter_map(Weak::upgrade) {
            tangents.forget_ended();
        }
    }

    /// Registers the tangents of a saved tensor, to be dropped when the level ends.
    pub(super) fn register_saved(&self, tangents: &Arc<SavedTangents>) {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        saved.push(Arc::downgrade(tangents));
    }
}

/// Returns whether a `jvp` runs on this thread.
pub(super) fn inside_jvp() -> bool {
    any_level_opened() && local_data::<Level>().is_some_and(|level| !level.has_ended())
}

/// The switch for recording inside a `jvp`, in a guard's local data. Excluding the key Autograd would turn
/// tangents off, too.
struct Recording(bool);

/// Turns recording on or off on this thread while the guard lives, and leaves the key Autograd on. `None`
/// where no level was ever opened, since excluding the key suffices then.
pub fn recording(on: bool) -> Option<LocalGuard> {
    let guard = || include_keys_with(DispatchKeySet::EMPTY, Arc::new(Recording(on)));
    any_level_opened().then(guard)
}

/// Returns whether calls are recorded here, as far as [`Recording`] decides.
pub(super) fn is_recording() -> bool {
    !any_level_opened() || local_data::<Recording>().is_none_or(|recording| recording.0)
}
