//! Canonical keys: what a graph computes, as bytes that don't depend on numbers, names and order.

mod order;
mod write;

use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

use crate::{GraphSpec, Uid};
use order::Structure;
pub(crate) use write::Writer;

/// The version of the bytes of keys, which they begin with.
pub const KEY_FORMAT: u32 = 1;

/// All of a graph but names, the numbers of tensors, and the order in which tensors and operations
/// are listed.
///
/// Two graphs with equal keys are the same graph under other numbers: keys are compared whole, and
/// each of them could be read back as a graph. Two descriptions of one graph have equal keys with
/// two exceptions, in which the key depends on uids: refinement leaves tensors equal that can't be
/// exchanged without changing the graph, or it leaves hundreds of equal tensors.
///
/// Strides of dimensions of size 1 are left out, since no element lies there. An alignment of
/// more than 16 bytes counts as 16. Floats count by their bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CanonicalKey(Vec<u8>);

impl CanonicalKey {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Returns the key's digest.
    pub fn signature(&self) -> Signature {
        CanonicalKey::signature_of(&self.0)
    }

    pub(crate) fn signature_of(bytes: &[u8]) -> Signature {
        Signature(xxh3_128(bytes))
    }
}

/// A graph's key, and which of the graph's tensors are which of the key's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical {
    /// The key.
    pub key: CanonicalKey,
    /// The number of each tensor, in the key's order: tensors at one place of two graphs with equal
    /// keys play the same part in them.
    pub uids: Vec<Uid>,
}

/// XXH3 with 128 bits of a canonical key: for logs and names of files, never for equality.
///
/// It prints as 32 hexadecimal digits, which are the same in every process and every version of
/// keyfold that has the same [`KEY_FORMAT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature(pub u128);

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::LowerHex for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl GraphSpec {
    /// Returns the canonical key, also of a graph that isn't valid.
    pub fn canonical(&self) -> Canonical {
        let structure = Structure::of(self);
        let order = structure.order();
        let key = CanonicalKey(structure.write(&order));
        Canonical { key, uids: order.into_iter().map(|node| structure.uids[node]).collect() }
    }

    /// Returns the signature: the digest of the canonical key.
    ///
    /// ```
    /// use keyfold_cudnn::GraphSpec;
    /// assert_eq!(GraphSpec::default().signature().to_string().len(), 32);
    /// ```
    pub fn signature(&self) -> Signature {
        self.canonical().key.signature()
    }
}
