//! The part of the cache that threads share: one lock around the map, and one build for each key.
//!
//! A build runs outside of the lock. Its key is listed as in flight, and a thread that requests the
//! key meanwhile waits for the build. Its outcome decides how the waiting threads continue:
//!
//! - a value: each returns it;
//! - an error: each returns it, and nothing is kept, so that the next request builds again;
//! - an error because the building thread's caller cancelled: the other callers haven't cancelled,
//!   so one of the waiting threads builds, and the rest wait for it;
//! - a panic: each returns an error that says so. Another build would panic again.
//!
//! A build may request other keys. A request that would make threads wait for each other in a
//! circle is an error.

use std::hash::BuildHasher;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};

use super::lru::{Dropped, Kept, Key, Lru};
use super::sync::{Condvar, Guard, Mutex, ThreadId, current, lock, pause};

/// Why a build has no value.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It failed.
    Failed(Error),
    /// Its caller didn't want it any more.
    Cancelled(Error),
}

/// How a request got its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It was in the map.
    Hit,
    /// The caller built it.
    Built,
    /// Another thread built it, and the caller waited.
    Waited,
}

/// The outcome of a build, for the threads that wait for it.
#[derive(Clone)]
enum Outcome<V> {
    Built(V),
    Failed(ErrorKind, String),
    Cancelled,
}

/// A build in progress.
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
    /// `dropped` gets the values that were evicted or replaced.
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
            outcome = pause(&flight.ended, &flight.outcome, outcome);
            if outcome.is_none() {
                drop(outcome);
                if let Err(error) = watch() {
                    lock(&self.state).forget_waiting(me, flight);
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

    /// Forgets that a thread waits for a build.
    fn forget_waiting(&mut self, thread: ThreadId, flight: &Arc<Flight<V>>) {
        self.waiting.retain(|entry| entry.0 != thread || !Arc::ptr_eq(&entry.1, flight));
    }

    /// Returns whether a build waits for a thread, by itself or by way of others. A thread whose
    /// callback asks for a second build while it waits for a first one waits for both.
    fn waits_for(&self, thread: ThreadId, flight: &Arc<Flight<V>>) -> bool {
        let mut owners = vec![flight.owner];
        let mut next = 0;
        while let Some(&owner) = owners.get(next) {
            if owner == thread {
                return true;
            }
            for (_, awaited) in self.waiting.iter().filter(|entry| entry.0 == owner) {
                if !owners.contains(&awaited.owner) {
                    owners.push(awaited.owner);
                }
            }
            next += 1;
        }
        false
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
        mut state: Guard<'_, State<V, S>>,
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

    /// Keeps the value, and wakes the waiting threads.
    fn end(&mut self, outcome: Outcome<V>) -> Dropped<V> {
        self.ended = true;
        let mut state = lock(&self.shelf.state);
        state.flights.retain(|flight| !Arc::ptr_eq(&flight.1, &self.flight));
        // The waiting threads count as running, though none has been scheduled yet.
        state.waiting.retain(|entry| !Arc::ptr_eq(&entry.1, &self.flight));
        let dropped = match &outcome {
            Outcome::Built(value) => state.lru.put(Arc::clone(&self.key), value.clone()),
            _ => Dropped { replaced: None, evicted: Vec::new() },
        };
        drop(state);
        // In a child of fork that goes on with a build, none of the threads that waited is there,
        // and one of them may have had the lock.
        if self.flight.process == std::process::id() {
            *lock(&self.flight.outcome) = Some(outcome);
            self.flight.ended.notify_all();
        }
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
