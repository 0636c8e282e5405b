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
//! A guard may carry an object beside its keys: data for the layer that it enables (a dtype, a
//! recorder). [`local_data`] finds the innermost.
//!
//! Guards form a list per thread, and the union over the open ones applies, so that closing one out
//! of order removes its own keys and no others. To run work on another thread with the same keys,
//! pass it a [`LocalKeys`] and enter it there.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};

use crate::keyset::DispatchKeySet;
use crate::thread::{self, LocalSets, ThreadState};

/// An object that a guard carries for the layer that it enables.
pub type LocalData = Arc<dyn Any + Send + Sync>;

struct OpenGuard {
    id: u64,
    include: DispatchKeySet,
    exclude: DispatchKeySet,
    data: Option<LocalData>,
}

thread_local! {
    /// Without a destructor, so that guards work until the very end of the thread: `thread_ended`
    /// frees it, and later the last guard does.
    static OPEN: RefCell<ManuallyDrop<Vec<OpenGuard>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
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

/// Opens these guards in place of the thread's own, which it returns.
#[inline]
fn swap_guards(guards: Vec<OpenGuard>) -> Vec<OpenGuard> {
    OPEN.with_borrow_mut(|open| {
        if guards.is_empty() && open.is_empty() {
            return guards;
        }
        update(&guards);
        std::mem::replace(&mut **open, guards)
    })
}

/// Keeps keys included or excluded on its thread until it is dropped.
#[must_use = "the keys are local only while the guard lives"]
pub struct LocalGuard {
    id: u64,
    /// A guard must be dropped on its thread.
    _not_send: PhantomData<*const ()>,
}

impl LocalGuard {
    fn open(
        include: DispatchKeySet,
        exclude: DispatchKeySet,
        data: Option<LocalData>,
    ) -> LocalGuard {
        let id = NEXT.with(|next| {
            let id = next.get();
            next.set(id + 1);
            id
        });
        OPEN.with_borrow_mut(|open| {
            // Before memory is allocated. If the thread's end can't be noticed, the last guard
            // frees it.
            thread::with(ThreadState::notices_end);
            open.push(OpenGuard { id, include, exclude, data });
            update(open);
        });
        LocalGuard { id, _not_send: PhantomData }
    }

    /// Closes the guard. Its keys are removed in any case, and those of guards opened after it
    /// stay.
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
        let guard = OPEN.with_borrow_mut(|open| {
            let at = open.iter().position(|guard| guard.id == self.id);
            let guard = at.map(|at| open.remove(at));
            update(open);
            if open.is_empty() && !thread::with(ThreadState::notices_end) {
                drop(std::mem::take(&mut **open));
            }
            guard
        });
        // Dropping the data may open and close guards.
        drop(guard);
    }
}

/// Frees the guards of a thread that were never closed.
pub(crate) fn thread_ended() {
    let left = OPEN.with_borrow_mut(|open| std::mem::take(&mut **open));
    update(&[]);
    drop(left);
}

/// Adds keys to every call on this thread while the guard lives.
pub fn include_keys(keys: DispatchKeySet) -> LocalGuard {
    LocalGuard::open(keys, DispatchKeySet::EMPTY, None)
}

/// As [`include_keys`], with an object for the layer at these keys, which [`local_data`] finds.
pub fn include_keys_with(keys: DispatchKeySet, data: LocalData) -> LocalGuard {
    LocalGuard::open(keys, DispatchKeySet::EMPTY, Some(data))
}

/// Removes keys from every call on this thread while the guard lives. Exclusion beats inclusion.
pub fn exclude_keys(keys: DispatchKeySet) -> LocalGuard {
    LocalGuard::open(DispatchKeySet::EMPTY, keys, None)
}

/// A snapshot of a thread's local key sets, to apply on another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LocalKeys {
    include: DispatchKeySet,
    exclude: DispatchKeySet,
}

impl LocalKeys {
    /// Returns the sets that apply to calls on this thread now: guards, host context and running
    /// layers.
    pub fn current() -> LocalKeys {
        thread::with(|state| LocalKeys { include: state.include(), exclude: state.exclude() })
    }

    /// Returns the keys that calls gain.
    pub fn included(self) -> DispatchKeySet {
        self.include
    }

    /// Returns the keys that calls lose.
    pub fn excluded(self) -> DispatchKeySet {
        self.exclude
    }

    /// Applies these sets on the calling thread while the guard lives.
    pub fn enter(self) -> LocalGuard {
        LocalGuard::open(self.include, self.exclude, None)
    }
}

/// A snapshot of a thread's local key sets and of the objects that guards carry, to run work later
/// or on another thread as if it ran here.
#[derive(Clone, Default)]
pub struct LocalContext {
    keys: LocalKeys,
    data: Vec<LocalData>,
}

impl LocalContext {
    /// Returns the context that applies to calls on this thread now.
    pub fn current() -> LocalContext {
        let mut data = thread::ambient_data(<[LocalData]>::to_vec);
        OPEN.with_borrow(|open| data.extend(open.iter().filter_map(|guard| guard.data.clone())));
        LocalContext { keys: LocalKeys::current(), data }
    }

    /// Returns the key sets.
    pub fn keys(&self) -> LocalKeys {
        self.keys
    }

    /// Returns the context without objects of a type, for one that would keep itself alive.
    #[must_use]
    pub fn without<T: Any>(mut self) -> LocalContext {
        self.data.retain(|data| !(**data).is::<T>());
        self
    }

    /// Returns whether it is the calling thread's context without objects of one type, as
    /// [`LocalContext::current`] and [`LocalContext::without`] would make it [inside these layers](inside_layers).
    pub fn is_current_without<T: Any>(&self, layers: DispatchKeySet) -> bool {
        let here = LocalKeys::current();
        if self.keys != (LocalKeys { exclude: here.exclude | layers, ..here }) {
            return false;
        }
        let (mut own, mut same) = (self.data.iter(), true);
        let mut compare = |data: &LocalData| {
            if !(**data).is::<T>() {
                same &= own.next().is_some_and(|known| Arc::ptr_eq(known, data));
            }
        };
        thread::ambient_data(|data| data.iter().for_each(&mut compare));
        OPEN.with_borrow(|open| {
            open.iter().filter_map(|guard| guard.data.as_ref()).for_each(&mut compare);
        });
        same && own.next().is_none()
    }

    /// Returns whether it has objects of guards.
    pub fn has_objects(&self) -> bool {
        !self.data.is_empty()
    }

    /// Returns whether another context has the same keys and objects.
    pub fn is_same(&self, other: &LocalContext) -> bool {
        let mut data = self.data.iter().zip(&other.data);
        self.keys == other.keys
            && self.data.len() == other.data.len()
            && data.all(|(own, other)| Arc::ptr_eq(own, other))
    }

    /// Returns whether it has neither keys nor objects.
    pub fn is_empty(&self) -> bool {
        self.keys == LocalKeys::default() && self.data.is_empty()
    }

    /// Runs `f` with this context in place of the calling thread's own guards and layers.
    pub fn replace<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Restore(Vec<OpenGuard>);
        impl Drop for Restore {
            #[inline]
            fn drop(&mut self) {
                drop(swap_guards(std::mem::take(&mut self.0)));
            }
        }
        let _restore = Restore(swap_guards(Vec::new()));
        let (include, exclude) = (self.keys.include, self.keys.exclude);
        without_layers(|| with_ambient(include, exclude, &self.data, f))
    }
}

/// Returns the innermost object of this type that an open guard carries: first of this thread's
/// guards, then of the host language's context.
pub fn local_data<T: Any + Send + Sync>() -> Option<Arc<T>> {
    find_data::<T, _>(|data| Arc::clone(data).downcast().ok())
}

/// Looks at the object that [`local_data`] would return. `look` must not open or close guards.
pub fn with_local_data<T: Any, R>(look: impl FnOnce(&T) -> R) -> Option<R> {
    find_data::<T, _>(|data| (**data).downcast_ref().map(look))
}

fn find_data<T: Any, R>(look: impl FnOnce(&LocalData) -> Option<R>) -> Option<R> {
    let mut look = Some(look);
    let mut see = |data: &LocalData| {
        if (**data).is::<T>() { look.take()?(data) } else { None }
    };
    OPEN.with_borrow(|open| open.iter().rev().filter_map(|g| g.data.as_ref()).find_map(&mut see))
        .or_else(|| thread::ambient_data(|data| data.iter().rev().find_map(&mut see)))
}

/// Runs `f` with key sets and objects of the host language's context (Python's contextvars, which
/// follow an asyncio task across threads) in place of those of an outer host frame.
#[inline]
pub fn with_ambient<R>(
    include: DispatchKeySet,
    exclude: DispatchKeySet,
    data: &[LocalData],
    f: impl FnOnce() -> R,
) -> R {
    thread::with_ambient_data(data, || {
        struct Restore(DispatchKeySet, DispatchKeySet);
        impl Drop for Restore {
            #[inline]
            fn drop(&mut self) {
                set_ambient(self.0, self.1);
            }
        }
        let (old_include, old_exclude) = set_ambient(include, exclude);
        let _restore = Restore(old_include, old_exclude);
        f()
    })
}

#[inline]
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

/// Runs `f` as if no layer were running on this thread. A scheduler uses this to run unrelated work
/// on a thread that waits inside a layer.
pub fn without_layers<R>(f: impl FnOnce() -> R) -> R {
    change_layers(|_| DispatchKeySet::EMPTY, f)
}

/// Runs `f` as if the layers at these keys weren't running on this thread, so that calls reach them
/// again. A layer with several levels uses it after it has removed one level from its arguments.
pub fn outside_layers<R>(keys: DispatchKeySet, f: impl FnOnce() -> R) -> R {
    change_layers(|layers| layers - keys, f)
}

/// Runs `f` as if the layers at these keys were running on this thread, so that calls don't reach
/// them.
pub fn inside_layers<R>(keys: DispatchKeySet, f: impl FnOnce() -> R) -> R {
    change_layers(|layers| layers | keys, f)
}

fn change_layers<R>(
    change: impl FnOnce(DispatchKeySet) -> DispatchKeySet,
    f: impl FnOnce() -> R,
) -> R {
    struct Restore(DispatchKeySet);
    impl Drop for Restore {
        fn drop(&mut self) {
            thread::with(|state| state.set_layers(self.0));
        }
    }
    let _restore = Restore(thread::with(|state| {
        let layers = state.layers();
        state.set_layers(change(layers));
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
        let number: LocalData = Arc::new(7_i32);
        with_ambient(K::Tracer.into(), K::Profiler.into(), &[number], || {
            assert_eq!(LocalKeys::current().included(), K::Tracer.into());
            assert_eq!(LocalKeys::current().excluded(), [K::Profiler, K::Autograd].into());
            assert_eq!(local_data::<i32>().as_deref(), Some(&7));
        });
        assert!(local_data::<i32>().is_none());
        assert_eq!(LocalKeys::current().included(), DispatchKeySet::EMPTY);
        assert_eq!(LocalKeys::current().excluded(), K::Autograd.into());
    }

    #[test]
    fn the_innermost_guard_with_data_of_a_type_counts() {
        let keys = DispatchKeySet::from([K::Profiler]);
        let outer = include_keys_with(keys, Arc::new(1_i32));
        let text = include_keys_with(keys, Arc::new("text"));
        assert_eq!(local_data::<i32>().as_deref(), Some(&1));
        let inner = include_keys_with(keys, Arc::new(2_i32));
        assert_eq!(local_data::<i32>().as_deref(), Some(&2));
        drop(inner);
        drop(text);
        assert_eq!(local_data::<i32>().as_deref(), Some(&1));
        drop(outer);
        assert!(local_data::<i32>().is_none());
    }

    #[test]
    fn a_context_applies_later_as_it_was() {
        let guard = include_keys_with(K::Autocast.into(), Arc::new(5_i32));
        let context = LocalContext::current();
        let none = DispatchKeySet::EMPTY;
        assert!(context.is_current_without::<String>(none));
        assert!(!context.is_current_without::<i32>(none));
        let inside = inside_layers(K::Vmap.into(), LocalContext::current);
        assert!(inside.is_current_without::<String>(K::Vmap.into()));
        assert!(!inside.is_current_without::<String>(none) && !inside.is_same(&context));
        let without = context.clone().without::<i32>();
        assert!(without.is_current_without::<i32>(none));
        assert!(!without.is_current_without::<String>(none) && !without.is_same(&context));
        assert!(without.is_same(&without.clone()));
        without.replace(|| {
            assert!(local_data::<i32>().is_none());
            assert_eq!(LocalKeys::current(), context.keys());
        });
        drop(guard);
        let _other = exclude_keys(K::Autograd.into());
        inside_layers(K::Profiler.into(), || {
            context.replace(|| {
                assert_eq!(LocalKeys::current(), context.keys());
                assert_eq!(local_data::<i32>().as_deref(), Some(&5));
            });
            assert_eq!(LocalKeys::current().excluded(), [K::Profiler, K::Autograd].into());
        });
        assert!(local_data::<i32>().is_none());
    }

    #[test]
    fn layers_can_be_left_and_entered() {
        inside_layers([K::Vmap, K::Profiler].into(), || {
            outside_layers(K::Vmap.into(), || {
                assert_eq!(LocalKeys::current().excluded(), K::Profiler.into());
            });
            assert_eq!(LocalKeys::current().excluded(), [K::Vmap, K::Profiler].into());
        });
        assert!(LocalKeys::current().excluded().is_empty());
    }
}
