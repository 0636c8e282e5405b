//! The sequences that are known, in all pipelines of the process, by the form of their first call.

use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use rustc_hash::{FxBuildHasher, FxHashMap, FxHasher};
use smallvec::SmallVec;

use super::{Call, Sequence};
use crate::pipeline::known::CallForm;

/// The most entries. The one that was used least recently goes first.
const ENTRIES: usize = 64;

/// The most sequences that begin alike.
const ALIKE: usize = 8;

/// The number of programs that leave a sequence, after which it isn't tried again.
const MOST_MISMATCHES: u32 = 8;

/// The most programs that are learned, or that can't be, without one being replayed: numbers may be others each time.
const CREDIT: u32 = 16;

/// Tells flushes apart: equal signatures are probably one program's.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Signature {
    first: u64,
    last: u64,
    len: usize,
}

impl Signature {
    pub(super) fn new(first: &CallForm, last: &CallForm, len: usize) -> Signature {
        Signature { first: sign(first), last: sign(last), len }
    }
}

/// Returns a number that equal forms have in common, and others rarely.
fn sign(form: &CallForm) -> u64 {
    let mut hasher = FxHasher::default();
    form.key.hash(&mut hasher);
    hasher.finish()
}

/// Where they are used up, one of so many flushes is learned: what prevented it, such as a profile, may have ended.
const AGAIN: u32 = 64;

/// The signatures that are remembered of programs that begin alike.
const SEEN: usize = 4;

/// The programs whose first calls have one form: their signatures and their sequences.
struct Entry {
    /// The signatures of the last programs, the latest one first.
    seen: SmallVec<[Signature; SEEN]>,
    credit: u32,
    /// The flushes since it was used up, or since the last one of them that was learned.
    skipped: u32,
    /// The time of the last flush.
    used: u64,
    sequences: Vec<Arc<Sequence>>,
}

impl Entry {
    /// Returns whether a flush may be learned.
    fn may_learn(&mut self) -> bool {
        if self.credit > 0 {
            return true;
        }
        self.skipped = (self.skipped + 1) % AGAIN;
        self.skipped == 0
    }
}

struct Known {
    entries: FxHashMap<u64, Entry>,
    /// The number of flushes so far.
    time: u64,
    /// The entry of the sequence that was replayed last.
    last: Option<u64>,
}

static KNOWN: Mutex<Known> =
    Mutex::new(Known { entries: FxHashMap::with_hasher(FxBuildHasher), time: 0, last: None });

/// While another thread looks, nothing is known.
fn known() -> Option<MutexGuard<'static, Known>> {
    KNOWN.try_lock().ok()
}

impl Known {
    /// Returns the entry of a flush that begins with a call of this form.
    fn used(&mut self, first: u64) -> Option<&mut Entry> {
        self.time += 1;
        let entry = self.entries.get_mut(&first)?;
        entry.used = self.time;
        Some(entry)
    }

    /// Adds an entry; returns the one that goes for it.
    fn add(&mut self, seen: Signature) -> Option<Entry> {
        let least = || self.entries.iter().min_by_key(|(_, entry)| entry.used);
        let full = self.entries.len() == ENTRIES;
        let old = full.then(least).flatten().map(|(first, _)| *first);
        let old = old.and_then(|first| self.entries.remove(&first));
        let (first, seen) = (seen.first, SmallVec::from_elem(seen, 1));
        let entry =
            Entry { seen, credit: CREDIT, skipped: 0, used: self.time, sequences: Vec::new() };
        self.entries.insert(first, entry);
        old
    }
}

/// Notes a flush of this signature. Returns whether it is one of the last that began alike, so that its calls may be
/// learned, and sequences that aren't known any more, to be dropped without a lock.
pub(super) fn note_flush(signature: Signature) -> (bool, Vec<Arc<Sequence>>) {
    let Some(mut known) = known() else { return (false, Vec::new()) };
    match known.used(signature.first) {
        Some(entry) => {
            let known = entry.seen.iter().position(|one| *one == signature);
            match known {
                Some(at) => entry.seen[..=at].rotate_right(1),
                None => {
                    entry.seen.truncate(SEEN - 1);
                    entry.seen.insert(0, signature);
                }
            }
            (known.is_some() && entry.may_learn(), Vec::new())
        }
        None => (false, known.add(signature).map_or(Vec::new(), |old| old.sequences)),
    }
}

/// Notes that a flush of this signature couldn't be learned: after some, the next ones aren't looked at.
pub(super) fn note_unlearned(signature: Signature) {
    if let Some(mut known) = known()
        && let Some(entry) = known.entries.get_mut(&signature.first)
    {
        entry.credit = entry.credit.saturating_sub(1);
    }
}

/// Adds a sequence, in place of the one that was used least recently if there are many.
pub(super) fn keep(sequence: Sequence) {
    let Some(first) = sequence.first() else { return };
    let mut old = Vec::new();
    if let Some(mut known) = known()
        && let Some(entry) = known.entries.get_mut(&first)
    {
        entry.credit = entry.credit.saturating_sub(1);
        old.extend(entry.sequences.extract_if(.., |one| one.is_outdated()));
        if entry.sequences.len() == ALIKE {
            old.extend(entry.sequences.pop());
        }
        entry.sequences.insert(0, Arc::new(sequence));
    }
    // Without the lock: a kernel's destructor may run any code.
    drop(old);
}

/// Returns a sequence that begins with a call of this form.
pub(super) fn beginning_with(form: &CallForm) -> Option<Arc<Sequence>> {
    let known = known()?;
    let entry = known.entries.get(&sign(form))?;
    entry.sequences.iter().find(|one| !one.is_outdated()).cloned()
}

/// Returns a sequence that begins as the one that was replayed last does, if its first call fits.
pub(super) fn beginning_as_last(fits: impl Fn(&Call) -> bool) -> Option<Arc<Sequence>> {
    let known = known()?;
    let entry = known.entries.get(known.last.as_ref()?)?;
    let begins = |one: &&Arc<Sequence>| one.calls.first().is_some_and(&fits) && !one.is_outdated();
    entry.sequences.iter().find(begins).cloned()
}

/// Returns another sequence that agrees with the first calls of one. `may_fit` is asked before its calls are compared,
/// and `fits` afterwards.
pub(super) fn instead_of(
    (sequence, count): (&Arc<Sequence>, usize),
    may_fit: impl Fn(&Sequence) -> bool,
    mut fits: impl FnMut(&Sequence) -> bool,
) -> Option<Arc<Sequence>> {
    let first = sequence.first()?;
    let known = known()?;
    let entry = known.entries.get(&first)?;
    let agrees = |one: &&Arc<Sequence>| {
        !Arc::ptr_eq(one, sequence)
            && may_fit(one)
            && !one.is_outdated()
            && one.agrees(sequence, count)
            && fits(one)
    };
    entry.sequences.iter().find(agrees).cloned()
}

/// Notes that a sequence was replayed: it is the first to be tried.
pub(super) fn note_replay(sequence: &Arc<Sequence>) {
    sequence.mismatches.store(0, Ordering::Relaxed);
    if let Some(first) = sequence.first()
        && let Some(mut known) = known()
    {
        known.last = Some(first);
        if let Some(entry) = known.used(first)
            && let Some(at) = entry.sequences.iter().position(|one| Arc::ptr_eq(one, sequence))
        {
            entry.credit = CREDIT;
            entry.sequences[..=at].rotate_right(1);
        }
    }
}

impl Sequence {
    fn first(&self) -> Option<u64> {
        self.calls.first().map(|call| sign(&call.form))
    }

    /// Returns whether it isn't tried any more: programs leave it, or kernels were registered since.
    pub(super) fn is_outdated(&self) -> bool {
        self.mismatches.load(Ordering::Relaxed) >= MOST_MISMATCHES || !self.is_current()
    }

    /// Returns whether no kernel was registered or removed since.
    pub(super) fn is_current(&self) -> bool {
        self.dispatchers.iter().all(|(dispatcher, known)| dispatcher.generation() == *known)
    }

    /// Returns whether the first `count` calls are those of another sequence.
    fn agrees(&self, other: &Sequence, count: usize) -> bool {
        let (Some(own), Some(others)) = (self.calls.get(..count), other.calls.get(..count)) else {
            return false;
        };
        own.iter().zip(others).all(|(own, other)| {
            own.form.key == other.form.key
                && own.tensors == other.tensors
                && own.keyset == other.keyset
                && own.context.is_same(&other.context)
        })
    }
}
