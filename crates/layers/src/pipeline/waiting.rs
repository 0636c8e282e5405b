//! The operations that wait.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::operation::{Operation, Slot};

/// The operations that wait, by their index.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) first: usize,
    pub(super) list: VecDeque<Option<Arc<Operation>>>,
    count: usize,
}

impl Waiting {
    /// Returns an empty list whose first operation has this index.
    pub(super) fn from(first: usize) -> Waiting {
        Waiting { first, ..Waiting::default() }
    }

    /// Adds operations of higher indices.
    pub(super) fn append(&mut self, mut later: Waiting) {
        if later.count > 0 {
            self.list.resize(later.first - self.first, None);
            self.list.append(&mut later.list);
            self.count += later.count;
        }
    }

    /// Returns the index of the next recorded operation.
    pub(super) fn next(&self) -> usize {
        self.first + self.list.len()
    }

    pub(super) fn push(&mut self, operation: Arc<Operation>) {
        self.list.push_back(Some(operation));
        self.count += 1;
    }

    pub(super) fn get(&self, index: usize) -> Option<&Arc<Operation>> {
        self.list.get(index.checked_sub(self.first)?)?.as_ref()
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Arc<Operation>> {
        let taken = self.list.get_mut(index.checked_sub(self.first)?)?.take()?;
        self.count -= 1;
        while let Some(None) = self.list.front() {
            self.list.pop_front();
            self.first += 1;
        }
        Some(taken)
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns those of this index and later ones.
    pub(super) fn since(&self, index: usize) -> impl Iterator<Item = &Arc<Operation>> {
        let start = index.saturating_sub(self.first).min(self.list.len());
        self.list.range(start..).flatten()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Operation>> + Clone {
        self.list.iter().flatten()
    }

    /// Returns the bytes of pointwise results that waiting operations alone hold, less those of finished memory
    /// that they alone keep. Such results are rarely in memory together: groups don't write them.
    pub(super) fn spared_bytes(&self) -> u64 {
        let held = Held::of(self.iter());
        let pointwise = self.iter().filter(|operation| operation.evaluates.is_some());
        let slots = pointwise.flat_map(|operation| operation.results.iter().flatten());
        let results: u64 = slots.filter(|slot| !held.has(slot)).map(Slot::bytes).sum();
        results.saturating_sub(self.kept_bytes())
    }

    /// Returns the bytes of finished memory that only arguments of waiting operations hold.
    fn kept_bytes(&self) -> u64 {
        /// A memory that arguments refer to.
        struct Kept {
            references: usize,
            holders: usize,
            bytes: u64,
        }
        let mut all: FxHashMap<usize, Kept> = FxHashMap::default();
        for operation in self.iter() {
            operation.each_tensor(&mut |tensor| {
                if tensor.pending_buffer().is_none() {
                    let buffer = tensor.buffer();
                    let bytes = (buffer.len() * tensor.dtype().size()) as u64;
                    let holders = buffer.shares();
                    let known = all.entry(buffer.identity());
                    known.or_insert(Kept { references: 0, holders, bytes }).references += 1;
                }
            });
        }
        all.values().filter(|kept| kept.holders <= kept.references).map(|kept| kept.bytes).sum()
    }
}

/// The results of operations that somebody can read after they ran: there are more references to their memory than
/// the operations' arguments have.
///
/// A flush counts once, under the state's lock, so that all that it decides agrees: other threads drop tensors at any
/// time. A result that isn't held stays so, since a reference is made from another one, and only arguments have any.
#[derive(Debug)]
pub(super) struct Held {
    /// The addresses of their memory.
    memories: FxHashSet<usize>,
}

impl Held {
    pub(super) fn of<'o>(operations: impl Iterator<Item = &'o Arc<Operation>> + Clone) -> Held {
        let mut references: FxHashMap<usize, usize> = FxHashMap::default();
        for operation in operations.clone() {
            operation.each_pending(&mut |address| *references.entry(address).or_default() += 1);
        }
        let slots = operations.flat_map(|operation| operation.results.iter().flatten());
        let held = slots.filter_map(|slot| {
            let address = slot.memory.as_ptr().addr();
            let own = references.get(&address).copied().unwrap_or(0);
            (slot.memory.strong_count() > own).then_some(address)
        });
        Held { memories: held.collect() }
    }

    pub(super) fn has(&self, slot: &Slot) -> bool {
        self.memories.contains(&slot.memory.as_ptr().addr())
    }
}
