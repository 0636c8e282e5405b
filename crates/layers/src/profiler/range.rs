//! Ranges: named events around what the user says belongs together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_core::Result;
use keyfold_dispatch::{DispatchKeySet, LocalData, LocalGuard, include_keys_with};

use super::record::{Begun, What};
use super::session::{RangeMark, Scope, Session};

/// Opens a range in the innermost profile that is open here; where none is, it does nothing.
pub fn range(name: &str) -> Option<RangeGuard> {
    Some(OpenRange::here(name)?.enter())
}

/// A range that has begun: for a binding with contexts of its own, which puts [`data`](Self::data)
/// there and drops this at the end.
pub struct OpenRange {
    session: Session,
    name: Arc<str>,
    begun: Option<Begun>,
    /// What its calls find, unless another profile records them.
    scope: Option<Arc<Scope>>,
    failed: bool,
}

impl OpenRange {
    /// A range of the innermost profile that is open here, if one is.
    pub fn here(name: &str) -> Option<OpenRange> {
        let scope = Scope::current()?;
        Some(OpenRange::begin(&scope.session, name, Some(&scope)))
    }

    /// A range of this profile. Where another one records the calls, it stays alone.
    ///
    /// # Errors
    /// [`keyfold_core::ErrorKind::Guard`] when the profile isn't open.
    pub fn of(session: &Session, name: &str) -> Result<OpenRange> {
        session.check_open("be recorded")?;
        let scope = Scope::current().filter(|s| s.session.number() == session.number());
        Ok(OpenRange::begin(session, name, scope.as_deref()))
    }

    fn begin(session: &Session, name: &str, scope: Option<&Scope>) -> OpenRange {
        let begun = Begun::now(session, scope);
        let mark = || RangeMark {
            event: begun.id(),
            depth: begun.depth(),
            closed: AtomicBool::new(false),
        };
        let scope = scope.map(|_| Scope::new(session, Some(mark())));
        let (session, name) = (session.clone(), name.into());
        OpenRange { session, name, begun: Some(begun), scope, failed: false }
    }

    /// What local keys must carry for calls to be recorded as the range's children.
    pub fn data(&self) -> Option<LocalData> {
        let scope = self.scope.clone()?;
        Some(scope)
    }

    /// Ends it as an event that failed: an error went through it.
    pub fn fail(mut self) {
        self.failed = true;
    }

    /// Makes it apply to this thread's calls until the guard is dropped.
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
            begun.end(&self.session, What::Range(&self.name), failed);
        }
    }
}

/// A range is open on this thread while this lives.
#[must_use = "the range is open only while this lives"]
pub struct RangeGuard {
    // Fields are dropped in this order: first the range stops to apply, then it ends.
    guard: Option<LocalGuard>,
    range: OpenRange,
}

impl RangeGuard {
    /// Ends the range as an event that failed: an error went through it. Dropped in a panic, it
    /// fails by itself.
    pub fn fail(self) {
        drop(self.guard);
        self.range.fail();
    }
}
