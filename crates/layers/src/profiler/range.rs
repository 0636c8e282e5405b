//! Ranges: named events around code of the user.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_core::Result;
use keyfold_dispatch::{DispatchKeySet, LocalData, LocalGuard, include_keys_with};

use super::record::{EventSubject, StartedEvent};
use super::session::{RangeMark, Scope, Session};

/// Opens a range in the innermost profile that is open here; without one it does nothing.
pub fn range(name: &str) -> Option<RangeGuard> {
    Some(OpenRange::here(name)?.enter())
}

/// Returns whether a profile is open here.
pub(crate) fn is_open() -> bool {
    Scope::current().is_some()
}

/// As [`range`], of a name that is made only if a profile is open here.
pub(crate) fn range_with(name: impl FnOnce() -> String) -> Option<RangeGuard> {
    let scope = Scope::current()?;
    Some(OpenRange::begin(&scope.session, &name(), Some(&scope)).enter())
}

/// An open range, for a binding with contexts of its own, which stores [`data`](Self::data) there
/// and drops this at the end.
pub struct OpenRange {
    session: Session,
    name: Arc<str>,
    begun: Option<StartedEvent>,
    /// The local data of its calls, unless another profile records them.
    scope: Option<Arc<Scope>>,
    failed: bool,
}

impl OpenRange {
    /// Opens a range of the innermost profile that is open here, if there is one.
    pub fn here(name: &str) -> Option<OpenRange> {
        let scope = Scope::current()?;
        Some(OpenRange::begin(&scope.session, name, Some(&scope)))
    }

    /// Opens a range of this profile. If another one records the calls, the range has no children.
    ///
    /// # Errors
    /// [`keyfold_core::ErrorKind::Guard`] if the profile isn't open.
    pub fn of(session: &Session, name: &str) -> Result<OpenRange> {
        session.check_open("be recorded")?;
        let scope = Scope::current().filter(|s| s.session.number() == session.number());
        Ok(OpenRange::begin(session, name, scope.as_deref()))
    }

    fn begin(session: &Session, name: &str, scope: Option<&Scope>) -> OpenRange {
        let begun = StartedEvent::now(session, scope);
        let mark = || RangeMark {
            event: begun.id(),
            depth: begun.depth(),
            closed: AtomicBool::new(false),
        };
        let scope = scope.map(|_| Scope::new(session, Some(mark())));
        let (session, name) = (session.clone(), name.into());
        OpenRange { session, name, begun: Some(begun), scope, failed: false }
    }

    /// Returns the local data with which calls are recorded as the range's children.
    pub fn data(&self) -> Option<LocalData> {
        let scope = self.scope.clone()?;
        Some(scope)
    }

    /// Ends it as a failed event, after an error inside it.
    pub fn fail(mut self) {
        self.failed = true;
    }

    /// Applies it to this thread's calls until the guard is dropped.
    pub fn enter(self) -> RangeGuard {
        let guard = self.data().map(|data| include_keys_with(DispatchKeySet::EMPTY, data));
        RangeGuard { guard, range: self }
    }
}

impl Drop for OpenRange {
    fn drop(&mut self) {
        if let Some(Some(range)) = self.scope.as_ref().map(|scope| &scope.range) {
            range.closed.store(true, Ordering::Relaxed);
        }
        if let Some(begun) = self.begun.take() {
            let failed = self.failed || std::thread::panicking();
            begun.end(&self.session, EventSubject::Range(&self.name), failed);
        }
    }
}

/// An open range of this thread, which ends when this is dropped.
#[must_use = "the range is open only while this lives"]
pub struct RangeGuard {
    // Dropped in this order: first the range stops applying, then it ends.
    guard: Option<LocalGuard>,
    range: OpenRange,
}

impl RangeGuard {
    /// Ends the range as a failed event, after an error inside it. Dropping it in a panic does the
    /// same.
    pub fn fail(self) {
        drop(self.guard);
        self.range.fail();
    }
}
