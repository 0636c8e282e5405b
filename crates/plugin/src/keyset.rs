//! Sets of dispatch keys.

/// A set of dispatch keys, with the host's bits. Named keys come from
/// [`Host::keys`](crate::Host::keys).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct KeySet(u64);

impl KeySet {
    /// The set without keys.
    pub const EMPTY: KeySet = KeySet(0);

    /// The set with these bits, which mean something in this process only.
    pub const fn from_bits(bits: u64) -> Self {
        KeySet(bits)
    }

    /// The bits, one per key; a higher bit is a higher priority.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Keys in either set.
    #[must_use]
    pub const fn union(self, other: KeySet) -> Self {
        KeySet(self.0 | other.0)
    }

    /// Keys of this set that aren't in the other.
    #[must_use]
    pub const fn without(self, other: KeySet) -> Self {
        KeySet(self.0 & !other.0)
    }

    /// Whether every key of the other set is in this one.
    pub const fn contains(self, other: KeySet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there is no key.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}
