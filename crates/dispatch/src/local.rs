//! Local key sets: keys that every call on this thread gains or loses.
//!
//! ```
//! use keyfold_dispatch::{DispatchKey, LocalKeys, exclude_keys};
//! let guard = exclude_keys(DispatchKey::Autograd.into());
//! assert!(LocalKeys::current().excluded().contains(DispatchKey::Autograd));
//! drop(guard);
//! assert!(LocalKeys::current().excluded().is_empty());
//! ```
//!
//! Guards form a list per thread; what applies is the union over the open ones,
//! so one closed out of order takes its own keys away and no others. Work handed
//! to another thread takes a [`LocalKeys`] along and enters it there.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use keyfold_core::{Error, ErrorKind, Result};

use crate::keyset::DispatchKeySet;
use crate::thread::{self, LocalSets};

#[derive(Clone, Copy)]
struct OpenGuard {
    id: u64,
    include: DispatchKeySet,
    exclude: DispatchKeySet,
}

thread_local! {
    static OPEN: RefCell<Vec<OpenGuard>> = const { RefCell::new(Vec::new()) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

fn update(open: &[OpenGuard]) {
    let (include, exclude) =
        open.iter().fold((DispatchKeySet::EMPTY, DispatchKeySet::EMPTY), |(i, e), g| {
            (i | g.include, e | g.exclude)
        });
    thread::with(|state| {
        state.guards.include.set(include);
        state.guards.exclude.set(exclude);
        state.refresh();
    });
}

/// Keeps keys included or excluded on its thread until it is dropped.
#[must_use = "the keys are local only while the guard lives"]
pub struct LocalGuard {
    id: u64,
    /// A guard belongs to its thread.
    _not_send: PhantomData<*const ()>,
}

impl LocalGuard {
    fn open(include: DispatchKeySet, exclude: DispatchKeySet) -> LocalGuard {
        let id = NEXT.with(|next| {
            let id = next.get();
            next.set(id + 1);
            id
        });
        OPEN.with_borrow_mut(|open| {
            open.push(OpenGuard { id, include, exclude });
            update(open);
        });
        LocalGuard { id, _not_send: PhantomData }
    }

    /// Closes the guard and says whether that was in order. Its keys are taken away either
    /// way, and those of the guards opened after it stay.
    ///
    /// # Errors
    /// [`ErrorKind::Guard`] when a guard opened later is still open.
    pub fn close(self) -> Result<()> {
        let later =
            OPEN.with_borrow(|open| open.iter().rev().take_while(|g| g.id != self.id).count());
        drop(self);
        if later == 0 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Guard,
            format!(
                "a local key guard was closed out of order: {later} opened after it still open; \
                 close guards in the reverse order of opening"
            ),
        ))
    }
}

impl Drop for LocalGuard {
    fn drop(&mut self) {
        // At thread end the list may be gone already, and with it everything local.
        let _ = OPEN.try_with(|open| {
            let mut open = open.borrow_mut();
            open.retain(|guard| guard.id != self.id);
            update(&open);
        });
    }
}

/// Adds keys to every call on this thread while the guard lives.
pub fn include_keys(keys: DispatchKeySet) -> LocalGuard {
    LocalGuard::open(keys, DispatchKeySet::EMPTY)
}

/// Takes keys from every call on this thread while the guard lives. Exclusion beats inclusion.
pub fn exclude_keys(keys: DispatchKeySet) -> LocalGuard {
    LocalGuard::open(DispatchKeySet::EMPTY, keys)
}

/// The local key sets of a thread at one moment, to be taken to another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LocalKeys {
    include: DispatchKeySet,
    exclude: DispatchKeySet,
}

impl LocalKeys {
    /// What applies to calls on this thread now: guards, host context and running layers.
    pub fn current() -> LocalKeys {
        thread::with(|state| LocalKeys { include: state.include(), exclude: state.exclude() })
    }

    /// Keys that calls gain.
    pub fn included(self) -> DispatchKeySet {
        self.include
    }

    /// Keys that calls lose.
    pub fn excluded(self) -> DispatchKeySet {
        self.exclude
    }

    /// Makes these sets apply on the calling thread while the guard lives.
    pub fn enter(self) -> LocalGuard {
        LocalGuard::open(self.include, self.exclude)
    }
}

/// Runs `f` with sets from the host language's own context (Python's contextvars, which follow
/// an asyncio task wherever it goes) in place of those of an outer host frame.
pub fn with_ambient<R>(
    include: DispatchKeySet,
    exclude: DispatchKeySet,
    f: impl FnOnce() -> R,
) -> R {
    struct Restore(DispatchKeySet, DispatchKeySet);
    impl Drop for Restore {
        fn drop(&mut self) {
            set_ambient(self.0, self.1);
        }
    }
    let (old_include, old_exclude) = set_ambient(include, exclude);
    let _restore = Restore(old_include, old_exclude);
    f()
}

fn set_ambient(
    include: DispatchKeySet,
    exclude: DispatchKeySet,
) -> (DispatchKeySet, DispatchKeySet) {
    thread::with(|state| {
        let sets: &LocalSets = &state.ambient;
        let old = (sets.include.replace(include), sets.exclude.replace(exclude));
        if old != (include, exclude) {
            state.refresh();
        }
        old
    })
}

/// Runs `f` as if no layer ran on this thread: what a scheduler does when it uses a thread that
/// waits inside a layer for work of somebody else.
pub fn without_layers<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(DispatchKeySet);
    impl Drop for Restore {
        fn drop(&mut self) {
            thread::with(|state| state.set_layers(self.0));
        }
    }
    let _restore = Restore(thread::with(|state| {
        let layers = state.layers();
        state.set_layers(DispatchKeySet::EMPTY);
        layers
    }));
    f()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::DispatchKey as K;

    #[test]
    fn guards_nest_and_end() {
        let outer = include_keys(K::Profiler.into());
        {
            let _inner = exclude_keys(K::Autograd.into());
            let now = LocalKeys::current();
            assert_eq!(now.included(), K::Profiler.into());
            assert_eq!(now.excluded(), K::Autograd.into());
        }
        assert!(LocalKeys::current().excluded().is_empty());
        outer.close().unwrap();
        assert_eq!(LocalKeys::current(), LocalKeys::default());
    }

    #[test]
    fn closing_out_of_order_is_an_error_and_takes_only_its_own_keys() {
        let first = exclude_keys(K::Autograd.into());
        let second = exclude_keys([K::Autograd, K::Profiler].into());
        let error = first.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Guard);
        assert_eq!(LocalKeys::current().excluded(), [K::Autograd, K::Profiler].into());
        second.close().unwrap();
        assert!(LocalKeys::current().excluded().is_empty());
    }

    #[test]
    fn local_keys_travel_to_another_thread() {
        let _guard = exclude_keys(K::Autograd.into());
        let here = LocalKeys::current();
        std::thread::spawn(move || {
            assert!(LocalKeys::current().excluded().is_empty());
            let _there = here.enter();
            assert_eq!(LocalKeys::current(), here);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn ambient_sets_are_restored() {
        let _guard = exclude_keys(K::Autograd.into());
        with_ambient(K::Tracer.into(), K::Profiler.into(), || {
            assert_eq!(LocalKeys::current().included(), K::Tracer.into());
            assert_eq!(LocalKeys::current().excluded(), [K::Profiler, K::Autograd].into());
        });
        assert_eq!(LocalKeys::current().included(), DispatchKeySet::EMPTY);
        assert_eq!(LocalKeys::current().excluded(), K::Autograd.into());
    }
}
