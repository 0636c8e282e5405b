//! Graphs under canonical numbers, so that a kept plan serves every graph that differs in numbers and order alone.

use std::collections::HashMap;

use keyfold_core::Result;
use keyfold_cudnn::{CanonicalKey, Uid, ValidGraph};

/// A graph whose tensors are numbered from 1 in canonical order, without the tensors that no operation names.
#[derive(Debug)]
pub(crate) struct Numbered {
    pub(crate) graph: ValidGraph,
    pub(crate) key: CanonicalKey,
    /// The caller's numbers in that order.
    pub(crate) given: Vec<Uid>,
}

impl Numbered {
    pub(crate) fn of(graph: &ValidGraph) -> Result<Numbered> {
        let canonical = graph.spec().canonical();
        let number = |place: usize| place as Uid + 1;
        let numbers: HashMap<Uid, Uid> =
            canonical.uids.iter().enumerate().map(|(place, uid)| (*uid, number(place))).collect();
        let mut spec = graph.spec().clone();
        spec.tensors.retain(|tensor| numbers.contains_key(&tensor.uid));
        for tensor in &mut spec.tensors {
            tensor.uid = numbers[&tensor.uid];
        }
        for op in &mut spec.operations {
            for (_, uid) in op.inputs.iter_mut().chain(&mut op.outputs) {
                *uid = numbers[uid];
            }
        }
        Ok(Numbered { graph: spec.validate()?, key: canonical.key, given: canonical.uids })
    }

    /// Returns the caller's number of a tensor, or `None` for one that isn't the caller's.
    pub(crate) fn given(&self, uid: Uid) -> Option<Uid> {
        usize::try_from(uid).ok()?.checked_sub(1).and_then(|place| self.given.get(place)).copied()
    }
}
