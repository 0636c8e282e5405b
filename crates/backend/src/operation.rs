//! The operations of a group.

use std::hash::{Hash, Hasher};

/// An operation of a group, by its name: `sum` of the reductions.
///
/// The names of a group are an open list. An operator's row says the name that it needs, and a backend offers
/// kernels under the names that it knows; it refuses any other. So an operation is added by a row and a kernel,
/// and a backend works with versions of keyfold that have more operations than it does, or fewer.
///
/// ```
/// use keyfold_backend::Operation;
///
/// const SUM: &Operation = &Operation::new("sum");
/// assert_eq!(SUM.name(), "sum");
/// assert_ne!(SUM, &Operation::new("mean"));
/// ```
#[derive(Debug)]
pub struct Operation {
    id: u64,
    name: &'static str,
}

impl Operation {
    /// Returns the operation of that name.
    pub const fn new(name: &'static str) -> Self {
        // FNV-1a, so that comparing two operations is comparing two numbers.
        let (mut id, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
        while at < name.len() {
            id = (id ^ name.as_bytes()[at] as u64).wrapping_mul(0x100_0000_01b3);
            at += 1;
        }
        Operation { id, name }
    }

    /// Returns the name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

// Two names of a group have the same 64 bits by chance once in 10^17, so they decide alone.
impl PartialEq for Operation {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Operation {}

impl Hash for Operation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}
