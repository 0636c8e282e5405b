//! The part of the cache that threads share: one lock around the map, and one build for each key.
//!
//! A build runs outside of the lock. Its key is noted as in flight, and whoever asks for the key
//! meanwhile waits for that build. What it ends with decides what they do:
//!
//! - a value: all take it;
//! - an error: all fail with it, and nothing is kept: the next one who asks builds again;
//! - an error because the builder's own caller cancelled: that wasn't the others' wish, so one of
//!   them builds instead, and the rest waits for that one;
//! - a panic: all fail with an error that says so. A build by the next would only panic again.
//!
//! A build may ask for other keys. If threads that build would wait for each other in a circle,
//! then the build of a plan asks for that plan, and is refused with an error.

use std::hash::BuildHasher;
use std::sync::{Arc, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};

use super::lru::{Dropped, Kept, Key, Lru};
use super::sync::{Condvar, Mutex, MutexGuard, ThreadId, current, pause};

/// Why a build has no value.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It failed.
    Failed(Error),
    /// Its caller didn't want it any more.
    Cancelled(Error),
}

/// How a value was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It was there.
    Hit,
    /// The caller built it.
    Built,
    /// Another thread built it, and the caller waited.
    Waited,
}

/// What a build ended with, for those who wait for it.
#[derive(Clone)]
enum Outcome<V> {
    Built(V),
    Failed(ErrorKind, String),
    Cancelled,
}

/// A build that has begun.
struct Flight<V> {
    owner: ThreadId,
    /// The process of the owner: a child of fork has none of its parent's threads.
    process: u32,
    outcome: Mutex<Option<Outcome<V>>>,
    ended: Condvar,
}

/// What the lock guards.
struct State<V, S> {
    lru: Lru<V, S>,
    flights: Vec<(Key, Arc<Flight<V>>)>,
    /// The threads that wait, and the builds that they wait for.
    waiting: Vec<(ThreadId, Arc<Flight<V>>)>,
}

/// A map that threads share, in which each value is built once.
pub(crate) struct Shelf<V, S> {
    state: Mutex<State<V, S>>,
}

/// Locks. Nothing that panics runs under these locks but allocation, which ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<V: Kept, S: BuildHasher> Shelf<V, S> {
    pub(crate) fn new(most_entries: usize, most_bytes: u64, hasher: S) -> Shelf<V, S> {
        Shelf {
            state: Mutex::new(State {
                lru: Lru::new(most_entries, most_bytes, hasher),
                flights: Vec::new(),
                waiting: Vec::new(),
            }),
        }
    }

    /// Returns a value that is there, as the one used last.
    pub(crate) fn get(&self, key: &[u8]) -> Option<V> {
        lock(&self.state).lru.get(key).cloned()
    }

    /// Keeps a value, and returns what is kept no longer.
    pub(super) fn put(&self, key: Key, value: V) -> Dropped<V> {
        lock(&self.state).lru.put(key, value)
    }

    /// Reads or changes the map. The function should be quick, and drop no value.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Lru<V, S>) -> T) -> T {
        change(&mut lock(&self.state).lru)
    }

    /// Returns the value of a key, or builds it, or waits for the thread that does.
    ///
    /// `watch` is called now and then by a thread that waits, and ends the waiting with its error.
    /// `dropped` is given what had to go for the new value.
    pub(crate) fn get_or_build(
        &self,
        key: &[u8],
        watch: &dyn Fn() -> Result<()>,
        build: impl FnOnce() -> Result<V, Failure>,
        dropped: impl FnOnce(Dropped<V>),
    ) -> Result<(V, Way)> {
        let me = current();
        loop {
            let mut state = lock(&self.state);
            if let Some(value) = state.lru.get(key).filter(|value| !value.is_marker()) {
                return Ok((value.clone(), Way::Hit));
            }
            let process = std::process::id();
            state.forget_before_fork(process);
            let flight = state.flights.iter().find(|flight| flight.0[..] == *key);
            let Some(flight) = flight.map(|flight| Arc::clone(&flight.1)) else {
                let pending = Pending::begin(self, state, Key::from(key), me, process);
                return pending.run(build, dropped).map(|value| (value, Way::Built));
            };
            if state.waits_for(me, &flight) {
                return Err(Error::new(
                    ErrorKind::Recursion,
                    "the build of a plan asks the cache for the plan that it builds",
                ));
            }
            state.waiting.push((me, Arc::clone(&flight)));
            drop(state);
            match self.wait(me, &flight, watch)? {
                Outcome::Built(value) => return Ok((value, Way::Waited)),
                Outcome::Failed(kind, message) => return Err(Error::new(kind, message)),
                Outcome::Cancelled => {}
            }
        }
    }

    fn wait(
        &self,
        me: ThreadId,
        flight: &Arc<Flight<V>>,
        watch: &dyn Fn() -> Result<()>,
    ) -> Result<Outcome<V>> {
        let mut outcome = lock(&flight.outcome);
        loop {
            if let Some(outcome) = &*outcome {
                return Ok(outcome.clone());
            }
            outcome = pause(&flight.ended, outcome);
            if outcome.is_none() {
                drop(outcome);
                if let Err(error) = watch() {
                    lock(&self.state).waiting.retain(|entry| entry.0 != me);
                    return Err(error);
                }
                outcome = lock(&flight.outcome);
            }
        }
    }
}

impl<V, S> State<V, S> {
    /// Forgets builds of a parent process, which never end in this one.
    fn forget_before_fork(&mut self, process: u32) {
        if self.flights.iter().any(|flight| flight.1.process != process) {
            self.flights.retain(|flight| flight.1.process == process);
            self.waiting.retain(|entry| entry.1.process == process);
        }
    }

    /// Returns whether a build waits for a thread, by itself or by way of others.
    fn waits_for(&self, thread: ThreadId, flight: &Arc<Flight<V>>) -> bool {
        let mut owner = flight.owner;
        loop {
            if owner == thread {
                return true;
            }
            match self.waiting.iter().find(|entry| entry.0 == owner) {
                Some((_, next)) => owner = next.owner,
                None => return false,
            }
        }
    }
}

/// A build of this thread. If it isn't ended, it has panicked.
pub(super) struct Pending<'a, V: Kept, S: BuildHasher> {
    shelf: &'a Shelf<V, S>,
    key: Key,
    flight: Arc<Flight<V>>,
    ended: bool,
}

impl<'a, V: Kept, S: BuildHasher> Pending<'a, V, S> {
    fn begin(
        shelf: &'a Shelf<V, S>,
        mut state: MutexGuard<'_, State<V, S>>,
        key: Key,
        owner: ThreadId,
        process: u32,
    ) -> Self {
        let (outcome, ended) = (Mutex::new(None), Condvar::new());
        let flight = Arc::new(Flight { owner, process, outcome, ended });
        state.flights.push((Arc::clone(&key), Arc::clone(&flight)));
        Pending { shelf, key, flight, ended: false }
    }

    /// Begins a build that may be dropped, in a process.
    #[cfg(test)]
    pub(super) fn of(shelf: &'a Shelf<V, S>, key: Key, process: u32) -> Self {
        Pending::begin(shelf, lock(&shelf.state), key, current(), process)
    }

    fn run(
        mut self,
        build: impl FnOnce() -> Result<V, Failure>,
        dropped: impl FnOnce(Dropped<V>),
    ) -> Result<V> {
        match build() {
            Ok(value) => {
                dropped(self.end(Outcome::Built(value.clone())));
                Ok(value)
            }
            Err(Failure::Failed(error)) => {
                // Another language's exception belongs to the thread that it was raised on.
                let kind = match error.kind() {
                    ErrorKind::Foreign => ErrorKind::KernelFailed,
                    kind => kind,
                };
                self.end(Outcome::Failed(kind, error.message().to_string()));
                Err(error)
            }
            Err(Failure::Cancelled(error)) => {
                self.end(Outcome::Cancelled);
                Err(error)
            }
        }
    }

    /// Keeps what was built, and wakes who waits.
    fn end(&mut self, outcome: Outcome<V>) -> Dropped<V> {
        self.ended = true;
        let mut state = lock(&self.shelf.state);
        state.flights.retain(|flight| !Arc::ptr_eq(&flight.1, &self.flight));
        // They don't wait any more, though they haven't run yet.
        state.waiting.retain(|entry| !Arc::ptr_eq(&entry.1, &self.flight));
        let dropped = match &outcome {
            Outcome::Built(value) => state.lru.put(Arc::clone(&self.key), value.clone()),
            _ => Dropped { replaced: None, evicted: Vec::new() },
        };
        drop(state);
        *lock(&self.flight.outcome) = Some(outcome);
        self.flight.ended.notify_all();
        dropped
    }
}

impl<V: Kept, S: BuildHasher> Drop for Pending<'_, V, S> {
    fn drop(&mut self) {
        if !self.ended {
            let message = "another thread's build of this plan panicked".to_string();
            self.end(Outcome::Failed(ErrorKind::KernelPanic, message));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::lru::ByteHash;
    use super::*;

    impl Kept for u8 {
        fn bytes(&self) -> u64 {
            1
        }
    }

    #[test]
    fn a_child_of_fork_builds_what_its_parent_was_building() {
        let shelf = Shelf::new(4, 100, ByteHash::default());
        let of_parent = Pending::of(&shelf, Key::from(*b"a"), u32::MAX);
        let built = shelf.get_or_build(b"a", &|| Ok(()), || Ok(7_u8), |_| ()).unwrap();
        assert_eq!(built, (7, Way::Built));
        // The parent's own end changes nothing here.
        drop(of_parent);
        assert_eq!(shelf.get(b"a"), Some(7));
    }
}
