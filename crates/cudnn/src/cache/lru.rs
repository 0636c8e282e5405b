//! A map that evicts its least recently used entries, for one thread.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A key: compared whole, whatever its digest is.
pub(crate) type Key = Arc<[u8]>;

/// A value of the map.
pub(crate) trait Kept: Clone {
    /// Returns how much of the map's bound it takes, in bytes.
    fn bytes(&self) -> u64;

    /// Returns whether it holds no plan, so that a request for one builds it.
    fn is_marker(&self) -> bool {
        false
    }
}

/// The hasher of a [`PlanCache`](crate::PlanCache) unless another is given: XXH3 with 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByteHash(u64);

impl BuildHasher for ByteHash {
    type Hasher = ByteHash;

    fn build_hasher(&self) -> ByteHash {
        *self
    }
}

impl Hasher for ByteHash {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_usize(&mut self, _length: usize) {
        // The length of a slice, which XXH3 mixes in itself.
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The end of the list.
const NONE: usize = usize::MAX;

/// A place in the list of entries by last use.
struct Slot<V> {
    /// The entry; `None` in a place that is free.
    entry: Option<(Key, V)>,
    newer: usize,
    older: usize,
}

/// A map with bounds on the number of its entries and their bytes.
pub(super) struct Lru<V, S> {
    slots: Vec<Slot<V>>,
    places: HashMap<Key, usize, S>,
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
    bytes: u64,
    most_entries: usize,
    most_bytes: u64,
}

impl<V: Kept, S: BuildHasher> Lru<V, S> {
    pub(super) fn new(most_entries: usize, most_bytes: u64, hasher: S) -> Lru<V, S> {
        Lru {
            slots: Vec::new(),
            places: HashMap::with_hasher(hasher),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            bytes: 0,
            most_entries,
            most_bytes,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn bounds(&self) -> (usize, u64) {
        (self.most_entries, self.most_bytes)
    }

    /// Returns the entry, which is now the one used last.
    pub(super) fn get(&mut self, key: &[u8]) -> Option<&V> {
        let place = *self.places.get(key)?;
        if place != self.newest {
            self.unlink(place);
            self.link(place);
        }
        self.slots[place].entry.as_ref().map(|entry| &entry.1)
    }

    /// Keeps a value as the one used last, and returns what is kept no longer: the value that had
    /// the key, those beyond the bounds, or the value itself where it is beyond them alone.
    ///
    /// The caller drops them when it holds no lock.
    pub(super) fn put(&mut self, key: Key, value: V) -> Dropped<V> {
        let replaced = self.remove(&key);
        if value.bytes() > self.most_bytes {
            return Dropped { replaced, evicted: vec![value] };
        }
        self.bytes += value.bytes();
        let slot = Slot { entry: Some((Arc::clone(&key), value)), newer: NONE, older: NONE };
        let place = match self.free.pop() {
            Some(place) => {
                self.slots[place] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.link(place);
        self.places.insert(key, place);
        Dropped { replaced, evicted: self.evict() }
    }

    /// Sets the bounds, and returns what is beyond them.
    pub(super) fn set_bounds(&mut self, most_entries: usize, most_bytes: u64) -> Vec<V> {
        (self.most_entries, self.most_bytes) = (most_entries, most_bytes);
        self.evict()
    }

    /// Forgets everything, and returns it.
    pub(super) fn clear(&mut self) -> Vec<V> {
        self.places.clear();
        self.free.clear();
        (self.newest, self.oldest, self.bytes) = (NONE, NONE, 0);
        self.slots.drain(..).filter_map(|slot| slot.entry.map(|entry| entry.1)).collect()
    }

    /// Returns the values, the one used last first.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        let mut place = self.newest;
        std::iter::from_fn(move || {
            let slot = self.slots.get(place)?;
            place = slot.older;
            slot.entry.as_ref().map(|entry| &entry.1)
        })
    }

    fn evict(&mut self) -> Vec<V> {
        let mut evicted = Vec::new();
        while self.len() > self.most_entries || self.bytes > self.most_bytes {
            let oldest = self.slots[self.oldest].entry.as_ref();
            let key = Arc::clone(&oldest.expect("what is in the list has an entry").0);
            evicted.extend(self.remove(&key));
        }
        evicted
    }

    fn remove(&mut self, key: &[u8]) -> Option<V> {
        let place = self.places.remove(key)?;
        self.unlink(place);
        self.free.push(place);
        let (_, value) = self.slots[place].entry.take()?;
        self.bytes -= value.bytes();
        Some(value)
    }

    fn unlink(&mut self, place: usize) {
        let Slot { newer, older, .. } = self.slots[place];
        match self.slots.get_mut(newer) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(older) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
    }

    /// Links a place that is in no list as the newest.
    fn link(&mut self, place: usize) {
        (self.slots[place].newer, self.slots[place].older) = (NONE, self.newest);
        match self.slots.get_mut(self.newest) {
            Some(slot) => slot.newer = place,
            None => self.oldest = place,
        }
        self.newest = place;
    }
}

/// What a change drops.
pub(crate) struct Dropped<V> {
    /// The value that had the key before.
    pub(super) replaced: Option<V>,
    /// The values beyond the bounds.
    pub(super) evicted: Vec<V>,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Item {
        name: u32,
        bytes: u64,
    }

    impl Kept for Item {
        fn bytes(&self) -> u64 {
            self.bytes
        }
    }

    /// A list of keys and items, the one used last behind all others.
    struct Naive {
        list: Vec<(u8, Item)>,
        most_entries: usize,
        most_bytes: u64,
    }

    impl Naive {
        fn get(&mut self, key: u8) -> Option<Item> {
            let index = self.list.iter().position(|entry| entry.0 == key)?;
            let entry = self.list.remove(index);
            self.list.push(entry.clone());
            Some(entry.1)
        }

        fn put(&mut self, key: u8, item: Item) -> Vec<Item> {
            self.list.retain(|entry| entry.0 != key);
            if item.bytes > self.most_bytes {
                return vec![item];
            }
            self.list.push((key, item));
            self.evict()
        }

        fn evict(&mut self) -> Vec<Item> {
            let mut evicted = Vec::new();
            while self.list.len() > self.most_entries || self.bytes() > self.most_bytes {
                evicted.push(self.list.remove(0).1);
            }
            evicted
        }

        fn bytes(&self) -> u64 {
            self.list.iter().map(|entry| entry.1.bytes).sum()
        }
    }

    /// Gives every key one digest, or one of two.
    #[derive(Clone, Copy)]
    struct Collisions(u64);

    impl BuildHasher for Collisions {
        type Hasher = Collisions;

        fn build_hasher(&self) -> Collisions {
            *self
        }
    }

    impl Hasher for Collisions {
        fn write(&mut self, bytes: &[u8]) {
            self.0 &= u64::from(bytes[0]);
        }

        fn write_usize(&mut self, _length: usize) {}

        fn finish(&self) -> u64 {
            self.0
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Get(u8),
        Put(u8, u64),
        Bounds(usize, u64),
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0_u8..12).prop_map(Step::Get),
            8 => (0_u8..12, 0_u64..12).prop_map(|(key, bytes)| Step::Put(key, bytes)),
            1 => (1_usize..8, 1_u64..40).prop_map(|(entries, bytes)| Step::Bounds(entries, bytes)),
            1 => Just(Step::Clear),
        ];
        prop::collection::vec(step, 0..200)
    }

    fn key(name: u8) -> Key {
        Arc::from([name, 7, 7])
    }

    fn follows_the_naive_one<S: BuildHasher>(steps: &[Step], hasher: S) {
        let mut lru = Lru::new(4, 24, hasher);
        let mut naive = Naive { list: Vec::new(), most_entries: 4, most_bytes: 24 };
        for (name, step) in steps.iter().enumerate() {
            match *step {
                Step::Get(k) => assert_eq!(lru.get(&key(k)).cloned(), naive.get(k)),
                Step::Put(k, bytes) => {
                    let item = Item { name: name as u32, bytes };
                    assert_eq!(lru.put(key(k), item.clone()).evicted, naive.put(k, item));
                }
                Step::Bounds(entries, bytes) => {
                    (naive.most_entries, naive.most_bytes) = (entries, bytes);
                    assert_eq!(lru.set_bounds(entries, bytes), naive.evict());
                }
                Step::Clear => {
                    let mut cleared = lru.clear();
                    cleared.sort_by_key(|item| item.name);
                    let mut list: Vec<Item> = naive.list.drain(..).map(|entry| entry.1).collect();
                    list.sort_by_key(|item| item.name);
                    assert_eq!(cleared, list);
                }
            }
            let values: Vec<Item> = lru.values().cloned().collect();
            let list: Vec<Item> = naive.list.iter().rev().map(|entry| entry.1.clone()).collect();
            assert_eq!(values, list, "after step {name}");
            assert_eq!((lru.len(), lru.bytes), (naive.list.len(), naive.bytes()));
        }
        assert!(lru.slots.len() <= 8, "places are used again");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn an_lru_does_what_a_naive_one_does(steps in steps()) {
            follows_the_naive_one(&steps, ByteHash::default());
        }

        #[test]
        fn collisions_of_digests_mix_nothing_up(steps in steps()) {
            follows_the_naive_one(&steps, Collisions(0));
            follows_the_naive_one(&steps, Collisions(1));
        }
    }
}
