//! Sets of dispatch keys: one `u64`, highest bit first.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

use keyfold_core::Result;

use crate::key::{BACKEND_BITS, DispatchKey, RegistrationKey};
use crate::names;

/// A set of dispatch keys. Copying it copies a `u64`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DispatchKeySet(u64);

impl DispatchKeySet {
    /// The empty set.
    pub const EMPTY: DispatchKeySet = DispatchKeySet(0);
    /// The bits of all backends.
    pub const BACKENDS: DispatchKeySet = DispatchKeySet(BACKEND_BITS);

    /// Returns the empty set.
    pub const fn empty() -> Self {
        DispatchKeySet(0)
    }

    /// Returns every key of this process, including user keys.
    pub fn all() -> Self {
        names::registered()
    }

    /// Returns the set with those bits, from [`bits`](Self::bits) in this process. Bits without a
    /// key are kept, and calls find no kernel for them; use
    /// [`from_bits_truncate`](Self::from_bits_truncate) for bits of unknown origin.
    pub const fn from_bits(bits: u64) -> Self {
        DispatchKeySet(bits)
    }

    /// Returns the bits, one per key, for tables and caches in this process.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the set with those bits that belong to a registered key.
    pub fn from_bits_truncate(bits: u64) -> Self {
        DispatchKeySet(bits).intersection(names::registered())
    }

    /// Parses a name into its keys: `"AutogradCUDA"` is `{Autograd, CUDA}`.
    ///
    /// # Errors
    /// An unknown name, or an alias without bits.
    pub fn parse(name: &str) -> Result<Self> {
        name.parse::<RegistrationKey>()?.keyset()
    }

    /// Parses a name into the keys to remove from a set: `"AutogradCUDA"` removes Autograd and
    /// leaves the backend, as in PyTorch.
    ///
    /// ```
    /// use keyfold_dispatch::DispatchKeySet;
    /// let set = DispatchKeySet::parse("AutogradCPU")?;
    /// assert_eq!(set - DispatchKeySet::parse_removed("AutogradCPU")?, DispatchKeySet::parse("CPU")?);
    /// # Ok::<(), keyfold_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_removed(name: &str) -> Result<Self> {
        name.parse::<RegistrationKey>()?.removed_keys()
    }

    /// Returns whether the key is in the set.
    pub const fn contains(self, key: DispatchKey) -> bool {
        self.0 & (1 << key.bit()) != 0
    }

    /// Returns the set with the key added.
    #[must_use]
    pub const fn insert(self, key: DispatchKey) -> Self {
        DispatchKeySet(self.0 | (1 << key.bit()))
    }

    /// Returns the set without the key.
    #[must_use]
    pub const fn remove(self, key: DispatchKey) -> Self {
        DispatchKeySet(self.0 & !(1 << key.bit()))
    }

    /// Returns the keys in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        DispatchKeySet(self.0 | other.0)
    }

    /// Returns the keys in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        DispatchKeySet(self.0 & other.0)
    }

    /// Returns the keys of this set that aren't in the other.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        DispatchKeySet(self.0 & !other.0)
    }

    /// Returns the key of highest priority; `None` for the empty set.
    pub const fn highest(self) -> Option<DispatchKey> {
        if self.0 == 0 {
            None
        } else {
            Some(DispatchKey::from_bit(63 - self.0.leading_zeros() as u8))
        }
    }

    /// Returns the backend of highest priority in the set.
    pub const fn backend(self) -> Option<DispatchKey> {
        self.intersection(Self::BACKENDS).highest()
    }

    /// Returns the keys that aren't in the set, including unregistered ones.
    pub(crate) const fn complement(self) -> Self {
        DispatchKeySet(!self.0)
    }

    /// Returns the number of keys.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the keys, from the highest priority to the lowest.
    pub const fn iter(self) -> Iter {
        Iter(self)
    }
}

/// Iterates over the keys of a set, from the highest priority to the lowest.
#[derive(Clone, Debug)]
pub struct Iter(DispatchKeySet);

impl Iterator for Iter {
    type Item = DispatchKey;

    fn next(&mut self) -> Option<DispatchKey> {
        let key = self.0.highest()?;
        self.0 = self.0.remove(key);
        Some(key)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl ExactSizeIterator for Iter {}
impl FusedIterator for Iter {}

impl IntoIterator for DispatchKeySet {
    type Item = DispatchKey;
    type IntoIter = Iter;

    fn into_iter(self) -> Iter {
        self.iter()
    }
}

impl FromIterator<DispatchKey> for DispatchKeySet {
    fn from_iter<I: IntoIterator<Item = DispatchKey>>(keys: I) -> Self {
        keys.into_iter().fold(Self::EMPTY, Self::insert)
    }
}

impl<const N: usize> From<[DispatchKey; N]> for DispatchKeySet {
    fn from(keys: [DispatchKey; N]) -> Self {
        keys.into_iter().collect()
    }
}

impl From<DispatchKey> for DispatchKeySet {
    fn from(key: DispatchKey) -> Self {
        Self::EMPTY.insert(key)
    }
}

impl BitOr for DispatchKeySet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for DispatchKeySet {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.union(other);
    }
}

impl BitAnd for DispatchKeySet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        self.intersection(other)
    }
}

impl Sub for DispatchKeySet {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.difference(other)
    }
}

impl fmt::Display for DispatchKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DispatchKeySet(")?;
        for (i, key) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{key}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for DispatchKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::key::DispatchKey as K;

    #[test]
    fn dispatch_key_set_empty() {
        let set = DispatchKeySet::empty();
        assert!(set.is_empty());
        assert_eq!(set.len(), 0);
        assert_eq!(set, DispatchKeySet::default());
        assert_eq!(set.iter().next(), None);
    }

    #[test]
    fn dispatch_key_set_insert_and_contains() {
        let set = DispatchKeySet::empty().insert(K::CPU).insert(K::Autograd).insert(K::CPU);
        assert!(set.contains(K::CPU) && set.contains(K::Autograd));
        assert!(!set.contains(K::CUDA));
        assert_eq!(set.len(), 2);
    }

    #[test]
    fn dispatch_key_set_remove() {
        let set = DispatchKeySet::from([K::CPU, K::Tracer]).remove(K::Tracer).remove(K::CUDA);
        assert_eq!(set, K::CPU.into());
    }

    #[test]
    fn dispatch_key_set_highest() {
        assert_eq!(DispatchKeySet::empty().highest(), None);
        assert_eq!(DispatchKeySet::from([K::CPU]).highest(), Some(K::CPU));
        let set = DispatchKeySet::from([K::CPU, K::Autograd, K::Profiler]);
        assert_eq!(set.highest(), Some(K::Profiler));
        assert_eq!(set.backend(), Some(K::CPU));
    }

    #[test]
    fn dispatch_key_set_iter_desc_gives_priority_order() {
        let set = DispatchKeySet::from([K::CPU, K::Tracer, K::Meta, K::Autograd]);
        let keys: Vec<_> = set.iter().collect();
        assert_eq!(keys, [K::Tracer, K::Autograd, K::Meta, K::CPU]);
        assert_eq!(set.iter().len(), 4);
    }

    #[test]
    fn dispatch_key_set_union_and_intersection() {
        let a = DispatchKeySet::from([K::CPU, K::Autograd]);
        let b = DispatchKeySet::from([K::CUDA, K::Autograd]);
        assert_eq!(a | b, [K::CPU, K::CUDA, K::Autograd].into());
        assert_eq!(a & b, K::Autograd.into());
        assert_eq!(a - b, K::CPU.into());
    }

    #[test]
    fn dispatch_key_set_all_contains_every_key() {
        for key in K::ALL {
            assert!(DispatchKeySet::all().contains(key));
        }
        assert!(DispatchKeySet::all().len() >= K::ALL.len());
    }

    #[test]
    fn dispatch_key_set_from_array_literal() {
        let set: DispatchKeySet = [K::CPU, K::CUDA].into();
        assert_eq!(set.len(), 2);
        assert_eq!(set.to_string(), "DispatchKeySet(CUDA, CPU)");
    }

    #[test]
    fn names_parse_to_plain_bits() {
        let set = DispatchKeySet::parse("AutogradCUDA").unwrap();
        assert_eq!(set.to_string(), "DispatchKeySet(Autograd, CUDA)");
        assert!(DispatchKeySet::parse("CompositeExplicitAutograd").is_err());
    }

    fn keys() -> impl Strategy<Value = Vec<K>> {
        proptest::collection::vec((0..K::ALL.len()).prop_map(|i| K::ALL[i]), 0..16)
    }

    proptest! {
        #[test]
        fn algebra_matches_a_naive_set(a in keys(), b in keys()) {
            let (sa, sb): (DispatchKeySet, DispatchKeySet) =
                (a.iter().copied().collect(), b.iter().copied().collect());
            let (na, nb): (BTreeSet<K>, BTreeSet<K>) =
                (a.into_iter().collect(), b.into_iter().collect());
            let sorted = |n: BTreeSet<K>| n.into_iter().rev().collect::<Vec<_>>();
            prop_assert_eq!((sa | sb).iter().collect::<Vec<_>>(), sorted(&na | &nb));
            prop_assert_eq!((sa & sb).iter().collect::<Vec<_>>(), sorted(&na & &nb));
            prop_assert_eq!((sa - sb).iter().collect::<Vec<_>>(), sorted(&na - &nb));
            prop_assert_eq!(sa.len(), na.len());
            prop_assert_eq!(sa.highest(), na.last().copied());
        }
    }
}
