//! Graphs that are proven.

use crate::{GraphSpec, OpSpec, TensorSpec, Uid};

/// A graph that [`GraphSpec::validate`] has found no mistake in, with its operations in an order in which
/// each one reads what is there.
#[derive(Debug, PartialEq)]
pub struct ValidGraph {
    spec: GraphSpec,
    order: Vec<usize>,
}

impl ValidGraph {
    /// Makes it of a graph that was proven, and an order of all its operations.
    pub(crate) fn new(spec: GraphSpec, order: Vec<usize>) -> ValidGraph {
        ValidGraph { spec, order }
    }

    /// Returns the graph.
    pub fn spec(&self) -> &GraphSpec {
        &self.spec
    }

    /// Returns the operations, each behind those whose results it reads.
    pub fn operations(&self) -> impl Iterator<Item = &OpSpec> {
        self.order.iter().map(|&index| &self.spec.operations[index])
    }

    /// Returns the tensor of a number, which is one of the graph's.
    pub fn tensor(&self, uid: Uid) -> &TensorSpec {
        self.spec.tensor(uid).expect("operations of a valid graph name tensors that it has")
    }
}
