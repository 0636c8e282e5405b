//! Counts the references to a tensor's memory that recordings keep, which nothing else reads or
//! writes through.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use keyfold_tensor::{Tensor, Value};

use crate::vmap::{Batched, batch_of};

/// The references to one tensor's memory found so far.
pub(super) struct MemoryRefs<'t> {
    pub(super) of: &'t Tensor,
    found: usize,
    /// The batches whose examples are kept, by level and address, with the number of times.
    batches: BTreeMap<usize, HashMap<*const Batched, (Arc<Batched>, usize)>>,
}

impl<'t> MemoryRefs<'t> {
    pub(super) fn of(tensor: &'t Tensor) -> Self {
        MemoryRefs { of: tensor, found: 0, batches: BTreeMap::new() }
    }

    /// Adds a value that a recording keeps.
    pub(super) fn add(&mut self, kept: &Value) {
        if let Value::Tensor(tensor) = kept {
            self.add_tensor(tensor);
        }
    }

    fn add_tensor(&mut self, kept: &Tensor) {
        let Some(batch) = batch_of(kept) else {
            self.found += usize::from(kept.buffer().is_same_memory(self.of.buffer()));
            return;
        };
        let level = self.batches.entry(batch.level).or_default();
        level.entry(Arc::as_ptr(&batch)).or_insert((batch, 0)).1 += 1;
    }

    /// Returns the number of references. A batch counts if all of its examples are kept ones: an
    /// example that the function holds is a reader itself.
    pub(super) fn count(mut self) -> usize {
        while let Some((_, batches)) = self.batches.pop_last() {
            for (batch, times) in batches.into_values() {
                // One more reference is held here.
                if Arc::strong_count(&batch) == times + 1 {
                    self.add_tensor(&batch.physical);
                }
            }
        }
        self.found
    }
}
