//! The choice of groups: which operations of a record are computed together.
//!
//! A record is plain data: what each operation reads and writes. Pointwise operations of one shape on
//! one device join the groups of those whose results they read, as long as the order of all reads and
//! writes stays as recorded and the limits allow it. The choice is greedy, in the order of the record.
//!
//! ```
//! use keyfold_expr::fuse::Limits;
//! use keyfold_expr::fuse::grouping::{Op, Pointwise, Read, Record, units};
//!
//! // b = f(a); c = matmul(b); d = g(b); e = h(d, c), where only e is held at the end.
//! let pointwise = Some(Pointwise { shape: 0, device: 0, nodes: 2, params: 0 });
//! let op = |pointwise, reads: &[u32], write| Op {
//!     pointwise,
//!     reads: reads.iter().map(|value| Read { value: *value, ranked: false }).collect(),
//!     writes: [write].into_iter().collect(),
//! };
//! let ops = [
//!     op(pointwise, &[0], 1),
//!     op(None, &[1], 2),
//!     op(pointwise, &[1], 3),
//!     op(pointwise, &[3, 2], 4),
//! ];
//! let held = [true, false, false, false, true];
//! let record = Record { ops: &ops, memory: &[0, 1, 2, 3, 4], held: &held };
//! let units = units(&record, &Limits::default());
//! let ops: Vec<&[usize]> = units.iter().map(|unit| &unit.ops[..]).collect();
//! // e can't join its producer: it reads the product, which reads the group's first result.
//! assert_eq!(ops, [&[0, 2][..], &[1], &[3]]);
//! ```

mod dependencies;
mod joining;
#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use super::{Limits, Source};
use dependencies::Dependencies;
use joining::Joining;

/// A pointwise operation, as far as the choice depends on it. Its result has one element for each
/// element of `shape`, and its operands broadcast to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pointwise {
    /// A number of the result's shape: equal shapes have equal numbers.
    pub shape: u32,
    /// A number of the device.
    pub device: u32,
    /// The nodes of the expression.
    pub nodes: u32,
    /// The parameters of the expression.
    pub params: u32,
}

/// An operand of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Read {
    /// The value. A value is a view of some memory: a tensor. Two views of the same elements in the
    /// same order may have one number, and others have to have two.
    pub value: u32,
    /// Whether it is read at computed indices, not element by element.
    pub ranked: bool,
}

/// A recorded operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Op {
    /// `None` for operations that aren't pointwise, and for those that can't be fused.
    pub pointwise: Option<Pointwise>,
    /// Its operands; those of a pointwise operation in the order of the expression's inputs.
    pub reads: SmallVec<[Read; 3]>,
    /// The values that it writes: new ones, or those that it changes. A pointwise operation writes one
    /// value, every element of it.
    pub writes: SmallVec<[u32; 1]>,
}

/// Recorded operations.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The operations, in the order in which they were recorded.
    pub ops: &'a [Op],
    /// For each value, the number of the memory that it is a view of.
    pub memory: &'a [u32],
    /// For each memory, whether it can be read after the record.
    pub held: &'a [bool],
}

/// Operations that are executed together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// The indices of the operations, ascending. Those of a group are its members.
    pub ops: Vec<usize>,
    /// The units that have to be finished before.
    pub after: Vec<usize>,
    /// How members are connected; `None` for an operation that isn't pointwise.
    pub group: Option<Wiring>,
}

/// The inputs, connections and results of a group, for [`Group`](super::Group).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wiring {
    /// The values that the group reads; those are its inputs.
    pub inputs: Vec<Read>,
    /// For each member, where its operands come from.
    pub sources: Vec<SmallVec<[Source; 3]>>,
    /// The members whose results are stored. It is empty if nothing needs the group.
    pub results: Vec<u32>,
}

/// Returns the units of a record, each after those that it has to wait for.
pub fn units(record: &Record<'_>, limits: &Limits) -> Vec<Unit> {
    let dependencies = Dependencies::new(record);
    let mut joining = Joining::new(record, &dependencies, limits);
    for op in 0..record.ops.len() {
        joining.join(op);
    }
    joining.finish()
}
