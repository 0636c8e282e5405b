//! Sets of dispatch keys.

/// A set of dispatch keys, as the host's bits. [`Host::keys`](crate::Host::keys) parses names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct KeySet(u64);

impl KeySet {
    /// The empty set.
    pub const EMPTY: KeySet = KeySet(0);

    /// Returns the set with these bits, which are valid in this process only.
    pub const fn from_bits(bits: u64) -> Self {
        KeySet(bits)
    }

    /// Returns the bits, one per key; a higher bit is a higher priority.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the keys that are in either set.
    #[must_use]
    pub const fn union(self, other: KeySet) -> Self {
        KeySet(self.0 | other.0)
    }

    /// Returns the keys of this set that aren't in the other.
    #[must_use]
    pub const fn without(self, other: KeySet) -> Self {
        KeySet(self.0 & !other.0)
    }

    /// Returns whether every key of the other set is in this one.
    pub const fn contains(self, other: KeySet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}
