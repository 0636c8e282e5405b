//! The map from tensors to values of the graph.
//!
//! Tensors have no identity, since every call makes new views. A tensor is identified by the data
//! it is a view of: address, shape, strides and dtype, and among several such values by its keys
//! and a layer's attachment. The session keeps all tensors alive that it has seen, so that no
//! address is reused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use keyfold_core::{DType, Device, layout};
use keyfold_dispatch::DispatchKeySet;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::ir::{Info, ValueId};
use crate::vmap::batch_of;

/// The identity of the data that a tensor is a view of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ViewKey {
    /// Of the first element; the buffer's identity for memory without an address, or without
    /// elements.
    address: usize,
    offset: usize,
    /// The size of each dimension with its stride, which is 0 for sizes 0 and 1.
    dims: Vec<(usize, isize)>,
    dtype: Option<DType>,
    device: Device,
    /// For an example of a batch, level and dimension of each; the other fields are the whole
    /// batch's.
    batch: Vec<(usize, usize)>,
}

impl ViewKey {
    /// Returns the batch of an example, and its position there.
    fn whole(&self) -> Option<(ViewKey, BatchAt)> {
        let mut place = self.clone();
        let (level, dim) = place.batch.pop()?;
        let size = place.sizes().get(dim).copied()?;
        Some((place, BatchAt { level, dim, size }))
    }

    /// Returns the size of each dimension: the whole's, without batch dimensions.
    fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.dims.iter().map(|(size, _)| *size).collect();
        for (_, dim) in &self.batch {
            sizes.remove(*dim);
        }
        sizes
    }
}

/// The position of an example in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchAt {
    pub(super) level: usize,
    pub(super) dim: usize,
    pub(super) size: usize,
}

/// A value of the graph from which a tensor follows by entering batches (from the whole to
/// examples) or by leaving them.
#[derive(Debug)]
pub(super) struct Across {
    pub(super) from: ValueId,
    pub(super) enters: bool,
    /// In order.
    pub(super) steps: Vec<BatchAt>,
}

/// The difference between views of the same data: the functionality keys, and the attachment's
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mark {
    keys: DispatchKeySet,
    attached: usize,
    number: u32,
}

impl Mark {
    const NONE: Mark = Mark { keys: DispatchKeySet::EMPTY, attached: 0, number: 0 };

    fn of(tensor: &Tensor) -> Mark {
        let keys = tensor.keys() - DispatchKeySet::BACKENDS;
        if keys.is_empty() {
            return Mark::NONE;
        }
        match tensor.attached() {
            Some(attached) => {
                let address = Arc::as_ptr(&attached.object).cast::<()>().addr();
                Mark { keys, attached: address, number: attached.place }
            }
            None => Mark { keys, attached: 0, number: 0 },
        }
    }
}

/// An inspected argument or result: all data to find its value, and a reference to it.
///
/// It is made without the session's lock, since inspection may need the host language's lock.
#[derive(Debug)]
pub(super) struct Inspected {
    place: ViewKey,
    mark: Mark,
    /// The addresses from its first element to the end of its last.
    memory: (usize, usize),
    pub(super) info: Info,
    pub(super) keep: Value,
}

impl Inspected {
    pub(super) fn tensor(tensor: &Tensor, keep: Value) -> Inspected {
        if let Some(batched) = batch_of(tensor) {
            // The example itself has no data, and layers make new ones at any time.
            let whole = Inspected::tensor(&batched.physical, Value::None);
            let mut place = whole.place;
            place.batch.push((batched.level, batched.dim));
            return Inspected { place, info: Info::of(tensor), keep, ..whole };
        }
        let buffer = tensor.buffer();
        let empty = tensor.numel() == 0;
        let first = tensor.address();
        let nowhere = first == 0 || empty;
        let (address, offset) = match nowhere {
            true => (buffer.identity(), tensor.offset()),
            false => (first, 0),
        };
        let memory = match layout::reach(tensor.shape(), tensor.strides()) {
            _ if empty => (0, 0),
            Ok(Some((low, high))) if !nowhere => {
                let size = tensor.dtype().size() as isize;
                (
                    first.wrapping_add_signed(low * size),
                    first.wrapping_add_signed((high + 1) * size),
                )
            }
            // Memory without addresses is identified by its buffer.
            _ => (buffer.identity(), buffer.identity() + 1),
        };
        let stepped = |size: usize| size > 1 && !empty;
        let dims = tensor.shape().iter().zip(tensor.strides());
        let dims = dims.map(|(n, stride)| (*n, if stepped(*n) { *stride } else { 0 })).collect();
        let (dtype, device) = (Some(tensor.dtype()), tensor.device());
        let place = ViewKey { address, offset, dims, dtype, device, batch: Vec::new() };
        Inspected { place, mark: Mark::of(tensor), memory, info: Info::of(tensor), keep }
    }

    /// Inspects a native tensor, whose reference can be cloned and dropped without the host
    /// language's lock.
    pub(super) fn own(tensor: &Tensor) -> Inspected {
        let mut kept = tensor.clone();
        kept.track();
        Inspected::tensor(tensor, Value::Tensor(kept))
    }

    /// Returns an object that can't be viewed, or whose class carries more than its elements; it is
    /// identified by its own address.
    fn object(address: usize, view: Option<&Tensor>, keep: Value) -> Inspected {
        let (dims, device, batch) = (Vec::new(), Device::CPU, Vec::new());
        let place = ViewKey { address, offset: 0, dims, dtype: None, device, batch };
        match view.map(|tensor| Inspected::tensor(tensor, Value::None)) {
            Some(seen) => Inspected { place, mark: Mark::NONE, keep, ..seen },
            None => {
                let (memory, info) = ((address, address + 1), Info::opaque());
                Inspected { place, mark: Mark::NONE, memory, info, keep }
            }
        }
    }

    /// Returns the description of an object of a class that a user registered.
    pub(super) fn registered(&self) -> Option<String> {
        match &self.keep {
            Value::Foreign(object) if object.is_of_registered_class() => Some(object.describe()),
            _ => None,
        }
    }

    /// Inspects a borrowed tensor; `None` for other values.
    ///
    /// # Errors
    /// If a foreign object can't be kept.
    pub(super) fn look(value: ValueRef<'_>) -> keyfold_core::Result<Option<Inspected>> {
        use keyfold_dispatch::Value as _;
        Ok(match value {
            ValueRef::Tensor(tensor) => Some(Inspected::own(tensor)),
            ValueRef::Foreign(object) if object.is_tensor() => {
                let keep = Value::from_ref(value)?;
                Some(match object.tensor() {
                    Ok(tensor) if !object.is_of_registered_class() => {
                        Inspected::tensor(tensor, keep)
                    }
                    view => Inspected::object(object.original().addr(), view.ok(), keep),
                })
            }
            _ => None,
        })
    }
}

/// A set of disjoint ranges of addresses, start to end.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    fn overlapping(&self, (start, end): (usize, usize)) -> Option<(usize, usize)> {
        let (other, other_end) = self.0.range(..end).next_back()?;
        (*other_end > start).then_some((*other, *other_end))
    }

    fn insert(&mut self, (mut start, mut end): (usize, usize)) {
        if start >= end {
            return;
        }
        // Overlapping ranges are merged, so that only the last range before an address has to be
        // checked.
        while let Some((other, other_end)) = self.overlapping((start, end)) {
            if other <= start && other_end >= end {
                return;
            }
            self.0.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.0.insert(start, end);
    }
}

/// The values of one view of data. Each write to a tensor with gradients adds a mark.
#[derive(Debug)]
struct ViewValues {
    by_mark: HashMap<Mark, ValueId>,
    /// The value that was recorded last.
    last: ValueId,
}

/// The map from tensors' data to values.
#[derive(Debug, Default)]
pub(super) struct ValueMap {
    places: HashMap<ViewKey, ViewValues>,
    /// By the batch's data, an example of it.
    examples: HashMap<ViewKey, (BatchAt, ViewKey)>,
    /// Memory whose content depends on the inputs.
    varying: Ranges,
    /// Memory of constants, which exists at the next replay.
    lasting: Ranges,
    /// Memory of tensors that the gradient graph keeps and that no recorded call made.
    hidden: Ranges,
    /// Values kept alive, so that no address is reused.
    kept: Vec<Value>,
    /// The indices in `kept` of each reference to a memory, by the buffer's identity; a constant
    /// has one more.
    shares: HashMap<usize, Vec<usize>>,
}

/// Returns the identity of the memory of a tensor's elements; for an example, its batch's.
fn memory_of(tensor: &Tensor) -> usize {
    match batch_of(tensor) {
        Some(batch) => memory_of(&batch.physical),
        None => tensor.buffer().identity(),
    }
}

impl ValueMap {
    /// Returns the tensor's value: the last one with the same data, keys and attachment, else with
    /// the same data.
    pub(super) fn find(&self, seen: &Inspected) -> Option<ValueId> {
        let all = self.places.get(&seen.place)?;
        Some(*all.by_mark.get(&seen.mark).unwrap_or(&all.last))
    }

    /// Maps the tensor to this value from now on.
    pub(super) fn insert(&mut self, seen: Inspected, id: ValueId) {
        let Inspected { place, mark, keep, .. } = seen;
        let mut example = place.clone();
        while let Some((batch, at)) = example.whole() {
            self.examples.insert(batch.clone(), (at, example));
            example = batch;
        }
        let new = || ViewValues { by_mark: HashMap::new(), last: id };
        let all = self.places.entry(place).or_insert_with(new);
        all.by_mark.insert(mark, id);
        all.last = id;
        self.keep(keep);
    }

    fn keep(&mut self, value: Value) {
        self.note_share(&value);
        self.kept.push(value);
    }

    /// Records a reference of the value that is kept next.
    fn note_share(&mut self, value: &Value) {
        if let Value::Tensor(tensor) = value {
            self.shares.entry(memory_of(tensor)).or_default().push(self.kept.len());
        }
    }

    /// Returns the value from which it follows by entering or leaving batches, if there is one.
    pub(super) fn across(&self, seen: &Inspected) -> Option<Across> {
        self.by_entering(&seen.place).or_else(|| self.by_leaving(&seen.place))
    }

    /// For an example: from the nearest known batch.
    fn by_entering(&self, place: &ViewKey) -> Option<Across> {
        let (mut steps, mut example) = (Vec::new(), place.clone());
        while let Some((batch, at)) = example.whole() {
            steps.insert(0, at);
            if let Some(from) = self.last_at(&batch) {
                return Some(Across { from, enters: true, steps });
            }
            example = batch;
        }
        None
    }

    /// For a batch: from the nearest known example.
    fn by_leaving(&self, place: &ViewKey) -> Option<Across> {
        let (mut steps, mut batch) = (Vec::new(), place);
        while let Some((at, example)) = self.examples.get(batch) {
            steps.insert(0, *at);
            if let Some(from) = self.last_at(example) {
                return Some(Across { from, enters: false, steps });
            }
            batch = example;
        }
        None
    }

    fn last_at(&self, place: &ViewKey) -> Option<ValueId> {
        Some(self.places.get(place)?.last)
    }

    /// Keeps a tensor that the gradient graph keeps. It is unknown to the graph, unless a recorded
    /// call makes it later.
    pub(super) fn hide(&mut self, seen: &Inspected) {
        if self.find(seen).is_none() && self.across(seen).is_none() {
            self.hidden.insert(seen.memory);
            self.keep(seen.keep.clone());
        }
    }

    /// Returns whether its memory overlaps that of a hidden tensor.
    pub(super) fn overlaps_hidden(&self, seen: &Inspected) -> bool {
        self.hidden.overlapping(seen.memory).is_some()
    }

    /// Marks the content of its memory as dependent on the inputs.
    pub(super) fn mark_dependent(&mut self, seen: &Inspected) {
        self.varying.insert(seen.memory);
    }

    /// Returns whether its memory overlaps memory that depends on the inputs.
    pub(super) fn depends_on_inputs(&self, seen: &Inspected) -> bool {
        self.varying.overlapping(seen.memory).is_some()
    }

    /// Marks its memory as a constant's. The graph keeps it too, and it is [inserted](Self::insert)
    /// next.
    pub(super) fn mark_constant(&mut self, seen: &Inspected) {
        self.lasting.insert(seen.memory);
        self.note_share(&seen.keep);
    }

    /// Returns whether its memory overlaps a constant's.
    pub(super) fn overlaps_constant(&self, seen: &Inspected) -> bool {
        self.lasting.overlapping(seen.memory).is_some()
    }

    /// Returns the values that keep a tensor's memory alive in the recording, one per reference.
    pub(super) fn kept_of(&self, tensor: &Tensor) -> impl Iterator<Item = &Value> {
        let places = self.shares.get(&tensor.buffer().identity());
        places.into_iter().flatten().map(|place| &self.kept[*place])
    }

    /// Takes all content out, to be dropped without a lock.
    pub(super) fn take(&mut self) -> ValueMap {
        std::mem::take(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_become_one() {
        let mut ranges = Ranges::default();
        for range in [(100, 200), (300, 400), (150, 160), (200, 210), (500, 600)] {
            ranges.insert(range);
        }
        assert_eq!(ranges.overlapping((199, 200)), Some((100, 200)));
        assert_eq!(ranges.overlapping((210, 300)), None);
        assert_eq!(ranges.overlapping((0, 100)), None);
        ranges.insert((205, 350));
        assert_eq!(ranges.overlapping((250, 251)), Some((200, 400)));
        ranges.insert((0, 1000));
        assert_eq!(ranges.0, BTreeMap::from([(0, 1000)]));
    }
}
