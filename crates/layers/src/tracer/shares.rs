//! How many shares of a tensor's memory recordings keep: values that nobody else reads or writes
//! through.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use keyfold_tensor::{Tensor, Value};

use crate::vmap::{Batched, batch_of};

/// Shares of the memory of one tensor, as they are found.
pub(super) struct Shares<'t> {
    pub(super) of: &'t Tensor,
    found: usize,
    /// The batches whose examples are kept, by level and address: how often each is.
    batches: BTreeMap<usize, HashMap<*const Batched, (Arc<Batched>, usize)>>,
}

impl<'t> Shares<'t> {
    pub(super) fn of(tensor: &'t Tensor) -> Self {
        Shares { of: tensor, found: 0, batches: BTreeMap::new() }
    }

    /// Looks at a value that a recording keeps.
    pub(super) fn add(&mut self, kept: &Value) {
        if let Value::Tensor(tensor) = kept {
            self.add_tensor(tensor);
        }
    }

    fn add_tensor(&mut self, kept: &Tensor) {
        let Some(batch) = batch_of(kept) else {
            self.found += usize::from(kept.buffer().shares_with(self.of.buffer()));
            return;
        };
        let level = self.batches.entry(batch.level).or_default();
        level.entry(Arc::as_ptr(&batch)).or_insert((batch, 0)).1 += 1;
    }

    /// How many there are. A batch counts whose examples are all kept ones: an example that the
    /// function holds is a reader of its own.
    pub(super) fn count(mut self) -> usize {
        while let Some((_, batches)) = self.batches.pop_last() {
            for (batch, times) in batches.into_values() {
                // One more is held here.
                if Arc::strong_count(&batch) == times + 1 {
                    self.add_tensor(&batch.physical);
                }
            }
        }
        self.found
    }
}
