//! Graphs that are proven.

use crate::{GraphSpec, OpSpec, Operation, Port, TensorSpec, Uid};

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

    /// Returns about how many elements a run reads, writes and multiplies: a measure of its time.
    pub fn work(&self) -> u64 {
        let elements = |uid: &Uid| self.tensor(*uid).numel().unwrap_or(i64::MAX) as u64;
        let work = |op: &OpSpec| {
            let moved: u64 =
                op.inputs.iter().chain(&op.outputs).map(|entry| elements(&entry.1)).sum();
            let size = |port: Port, axis: usize| {
                let dims = op.input(port).or(op.output(port)).map(|uid| &self.tensor(uid).dims);
                dims.and_then(|dims| dims.get(axis)).map_or(1, |&size| size as u64)
            };
            let terms = |port: Port, count: u64| {
                let uid = op.input(port).or(op.output(port));
                uid.map_or(0, |uid| elements(&uid).saturating_mul(count))
            };
            let last = |port: Port| {
                op.input(port).and_then(|uid| self.tensor(uid).dims.last()).map_or(1, |&n| n as u64)
            };
            // The elements of a filter that one output is the sum of.
            let window = |port: Port| terms(port, 1) / size(port, 0).max(1);
            let products = match &op.operation {
                Operation::ConvFprop(_) => terms(Port::Y, window(Port::W)),
                Operation::ConvDgrad(_) => terms(Port::Dy, window(Port::W)),
                Operation::ConvWgrad(_) => terms(Port::Dy, window(Port::Dw)),
                Operation::Matmul => terms(Port::C, last(Port::A)),
                Operation::GroupedMatmul => {
                    terms(Port::Token, size(Port::Weight, 0) * size(Port::Weight, 2))
                }
                Operation::Sdpa(_) | Operation::SdpaBackward(_) => terms(Port::Q, size(Port::K, 2)),
                _ => 0,
            };
            moved.saturating_add(products)
        };
        self.spec.operations.iter().map(work).fold(0, u64::saturating_add)
    }

    /// Returns the tensor of a number, which is one of the graph's.
    pub fn tensor(&self, uid: Uid) -> &TensorSpec {
        self.spec.tensor(uid).expect("operations of a valid graph name tensors that it has")
    }
}
