//! The operations that wait.

use std::collections::VecDeque;
use std::sync::Arc;

use super::operation::Operation;

/// The operations that wait, by their index.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) first: usize,
    pub(super) list: VecDeque<Option<Arc<Operation>>>,
    count: usize,
}

impl Waiting {
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

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Operation>> {
        self.list.iter().flatten()
    }
}
