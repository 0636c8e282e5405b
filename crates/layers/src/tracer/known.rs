//! Which value of the graph a tensor is.
//!
//! Tensors have no identity of their own: a view is made anew for every call. What tells them apart
//! is the data that they are views of, so a value is found by address, shape, strides and dtype, and
//! among several by its keys and what a layer attached. The session keeps alive whatever it saw,
//! so that no address is used again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use keyfold_core::{DType, Device, layout};
use keyfold_dispatch::DispatchKeySet;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::ir::{Info, ValueId};
use crate::vmap::batch_of;

/// The data that a tensor is a view of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    /// Of the first element; a number for the memory where it has no address or no elements.
    address: usize,
    offset: usize,
    /// The size of each dimension with its stride; dimensions that nobody steps along have none.
    dims: Vec<(usize, isize)>,
    dtype: Option<DType>,
    device: Device,
    /// For an example of a batch, level and dimension of each; all else is the whole batch's.
    batch: Vec<(usize, usize)>,
}

impl Place {
    /// Of an example: the batch that it stands for.
    fn whole(&self) -> Option<(Place, BatchAt)> {
        let mut place = self.clone();
        let (level, dim) = place.batch.pop()?;
        let size = place.sizes().get(dim).copied()?;
        Some((place, BatchAt { level, dim, size }))
    }

    /// The size of each dimension: those of the whole, less those that count examples.
    fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.dims.iter().map(|(size, _)| *size).collect();
        for (_, dim) in &self.batch {
            sizes.remove(*dim);
        }
        sizes
    }
}

/// How an example lies in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchAt {
    pub(super) level: usize,
    pub(super) dim: usize,
    pub(super) size: usize,
}

/// A value of the graph that a tensor follows from by entering batches (from the whole to examples)
/// or by leaving them.
#[derive(Debug)]
pub(super) struct Across {
    pub(super) from: ValueId,
    pub(super) enters: bool,
    /// In the order of the steps.
    pub(super) steps: Vec<BatchAt>,
}

/// What tells views of the same data apart: the functionality keys, and the attachment's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// An argument or result that was looked at: everything that finds its value, and a share in it.
///
/// It is made without the session's lock, since looking may need the lock of the host language.
#[derive(Debug)]
pub(super) struct Seen {
    place: Place,
    mark: Mark,
    /// The addresses from its first to its last element, end excluded.
    memory: (usize, usize),
    pub(super) info: Info,
    pub(super) keep: Value,
}

impl Seen {
    pub(super) fn tensor(tensor: &Tensor, keep: Value) -> Seen {
        if let Some(batched) = batch_of(tensor) {
            // The example itself has no data: layers make it anew as they please.
            let whole = Seen::tensor(&batched.physical, Value::None);
            let mut place = whole.place;
            place.batch.push((batched.level, batched.dim));
            return Seen { place, info: Info::of(tensor), keep, ..whole };
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
            // Whatever shares it, where there are no addresses.
            _ => (buffer.identity(), buffer.identity() + 1),
        };
        let stepped = |size: usize| size > 1 && !empty;
        let dims = tensor.shape().iter().zip(tensor.strides());
        let dims = dims.map(|(n, stride)| (*n, if stepped(*n) { *stride } else { 0 })).collect();
        let (dtype, device) = (Some(tensor.dtype()), tensor.device());
        let place = Place { address, offset, dims, dtype, device, batch: Vec::new() };
        Seen { place, mark: Mark::of(tensor), memory, info: Info::of(tensor), keep }
    }

    /// A tensor with a share in it that can be cloned and dropped without the lock of the host
    /// language.
    pub(super) fn own(tensor: &Tensor) -> Seen {
        Seen::tensor(tensor, Value::Tensor(tensor.clone().into_tracked()))
    }

    /// An object that can't be viewed, or whose class says more than its elements do, is itself and
    /// nothing else.
    fn object(address: usize, view: Option<&Tensor>, keep: Value) -> Seen {
        let (dims, device, batch) = (Vec::new(), Device::CPU, Vec::new());
        let place = Place { address, offset: 0, dims, dtype: None, device, batch };
        match view.map(|tensor| Seen::tensor(tensor, Value::None)) {
            Some(seen) => Seen { place, mark: Mark::NONE, keep, ..seen },
            None => {
                let (memory, info) = ((address, address + 1), Info::opaque());
                Seen { place, mark: Mark::NONE, memory, info, keep }
            }
        }
    }

    /// The description of an object of a class that a user registered.
    pub(super) fn registered(&self) -> Option<String> {
        match &self.keep {
            Value::Foreign(object) if object.is_of_registered_class() => Some(object.describe()),
            _ => None,
        }
    }

    /// Looks at a borrowed tensor; `None` for what isn't one.
    ///
    /// # Errors
    /// When a foreign object can't be kept.
    pub(super) fn look(value: ValueRef<'_>) -> keyfold_core::Result<Option<Seen>> {
        use keyfold_dispatch::Value as _;
        Ok(match value {
            ValueRef::Tensor(tensor) => Some(Seen::own(tensor)),
            ValueRef::Foreign(object) if object.is_tensor() => {
                let keep = Value::from_ref(value)?;
                Some(match object.tensor() {
                    Ok(tensor) if !object.is_of_registered_class() => Seen::tensor(tensor, keep),
                    view => Seen::object(object.original().addr(), view.ok(), keep),
                })
            }
            _ => None,
        })
    }
}

/// Memory: ranges of addresses, start to end, none of which overlap.
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
        // Ranges that overlap become one, so that the last before an address decides.
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

/// The values that tensors were found to be.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// In the order of recording: the last one counts.
    places: HashMap<Place, Vec<(Mark, ValueId)>>,
    /// An example that stands for a batch, by the batch.
    examples: HashMap<Place, (BatchAt, Place)>,
    /// Memory whose content follows from the inputs.
    varying: Ranges,
    /// Memory of constants, which is still there at the next replay.
    lasting: Ranges,
    /// Memory of tensors that the graph of derivatives keeps and that no recorded call made.
    hidden: Ranges,
    /// What must outlive the session, so that no address is used twice.
    kept: Vec<Value>,
    /// The places in `kept` of each share of a memory, by the buffer's identity: a constant has another share.
    shares: HashMap<usize, Vec<usize>>,
}

/// The identity of the memory that a tensor's elements are in; of an example, its batch's.
fn memory_of(tensor: &Tensor) -> usize {
    match batch_of(tensor) {
        Some(batch) => memory_of(&batch.physical),
        None => tensor.buffer().identity(),
    }
}

impl Known {
    /// The value that it is: the last one with the same data, keys and attachment, or with the
    /// same data.
    pub(super) fn find(&self, seen: &Seen) -> Option<ValueId> {
        let all = self.places.get(&seen.place)?;
        let exact = all.iter().rev().find(|(mark, _)| *mark == seen.mark);
        exact.or(all.last()).map(|(_, id)| *id)
    }

    /// From now on it is this value.
    pub(super) fn insert(&mut self, seen: Seen, id: ValueId) {
        let Seen { place, mark, keep, .. } = seen;
        let mut example = place.clone();
        while let Some((batch, at)) = example.whole() {
            self.examples.insert(batch.clone(), (at, example));
            example = batch;
        }
        let all = self.places.entry(place).or_default();
        all.retain(|(other, _)| *other != mark);
        all.push((mark, id));
        self.keep(keep);
    }

    fn keep(&mut self, value: Value) {
        self.note_share(&value);
        self.kept.push(value);
    }

    /// Notes a share of the value that is kept next.
    fn note_share(&mut self, value: &Value) {
        if let Value::Tensor(tensor) = value {
            self.shares.entry(memory_of(tensor)).or_default().push(self.kept.len());
        }
    }

    /// The value that it follows from by entering or leaving batches, if there is one.
    pub(super) fn across(&self, seen: &Seen) -> Option<Across> {
        self.by_entering(&seen.place).or_else(|| self.by_leaving(&seen.place))
    }

    /// From the nearest batch that is known, for an example.
    fn by_entering(&self, place: &Place) -> Option<Across> {
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

    /// From the nearest example that is known, for a batch.
    fn by_leaving(&self, place: &Place) -> Option<Across> {
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

    fn last_at(&self, place: &Place) -> Option<ValueId> {
        Some(self.places.get(place)?.last()?.1)
    }

    /// Keeps a tensor that the graph of derivatives keeps: unless a recorded call makes it still, the
    /// graph that is recorded doesn't know it.
    pub(super) fn hide(&mut self, seen: &Seen) {
        if self.find(seen).is_none() && self.across(seen).is_none() {
            self.hidden.insert(seen.memory);
            self.keep(seen.keep.clone());
        }
    }

    /// Whether its memory, or a part of it, is such a tensor's.
    pub(super) fn hides(&self, seen: &Seen) -> bool {
        self.hidden.overlapping(seen.memory).is_some()
    }

    /// The content of its memory follows from the inputs.
    pub(super) fn vary(&mut self, seen: &Seen) {
        self.varying.insert(seen.memory);
    }

    /// Whether its memory, or a part of it, follows from the inputs.
    pub(super) fn varies(&self, seen: &Seen) -> bool {
        self.varying.overlapping(seen.memory).is_some()
    }

    /// It is a constant, which the graph holds too, and is [inserted](Self::insert) next.
    pub(super) fn last(&mut self, seen: &Seen) {
        self.lasting.insert(seen.memory);
        self.note_share(&seen.keep);
    }

    /// Whether its memory, or a part of it, is a constant's.
    pub(super) fn lasts(&self, seen: &Seen) -> bool {
        self.lasting.overlapping(seen.memory).is_some()
    }

    /// The values that the recording keeps of a tensor's memory, one for each share.
    pub(super) fn kept_of(&self, tensor: &Tensor) -> impl Iterator<Item = &Value> {
        let places = self.shares.get(&tensor.buffer().identity());
        places.into_iter().flatten().map(|place| &self.kept[*place])
    }

    /// Takes everything out, to be dropped without a lock.
    pub(super) fn take(&mut self) -> Known {
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
