//! The graph of primitives: nodes of real dtypes, deduplicated, operands first.

use std::cell::RefCell;
use std::collections::HashMap;

use keyfold_core::DType;
use smallvec::SmallVec;

use super::Primitive;
use super::value::Value;

/// The index of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct NodeId(pub(super) u32);

impl NodeId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The floats of a tensor that an operand reads: all of a real tensor, or one part of each complex
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ComplexPart {
    Whole,
    Real,
    Imaginary,
}

/// A number known when the kernel is called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum CallNumber {
    /// A parameter of the expression, converted to `to`.
    Param { index: u32, to: DType, part: ComplexPart },
    /// The size of a ranked input along a dimension.
    Size { input: u32, dim: u32 },
    /// The stride of a ranked input along a dimension, in elements.
    Stride { input: u32, dim: u32 },
    /// The position of a ranked input's first element in the row of its memory.
    Start { input: u32 },
}

/// The kinds of nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Node {
    /// A constant, as the bits of its dtype.
    Constant(u64),
    /// A number known when the kernel is called.
    Number(CallNumber),
    /// The elements of an input.
    Input { input: u32, part: ComplexPart },
    /// The same memory as another dtype of the same size.
    Bits(NodeId),
    /// The result of a primitive.
    Apply { primitive: Primitive, operands: SmallVec<[NodeId; 3]>, fault: u32 },
    /// Elements of a ranked input, by their positions.
    Gather { input: u32, part: ComplexPart, index: NodeId },
}

/// The dimensions of the result along which a node's elements differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Spread {
    /// None: it is one number.
    Uniform,
    /// One, counted from the last.
    Along(u32),
    /// Along any.
    Full,
}

impl Spread {
    fn join(self, other: Spread) -> Spread {
        match (self, other) {
            (Spread::Uniform, other) | (other, Spread::Uniform) => other,
            (a, b) if a == b => a,
            _ => Spread::Full,
        }
    }
}

/// A node, its dtype and its spread.
#[derive(Clone, Debug)]
pub(super) struct NodeEntry {
    pub(super) node: Node,
    pub(super) dtype: DType,
    pub(super) spread: Spread,
}

#[derive(Default)]
struct Nodes {
    entries: Vec<NodeEntry>,
    known: HashMap<(Node, DType, Spread), NodeId>,
}

/// Nodes under construction, which [`Value`]s append to.
#[derive(Default)]
pub(super) struct Graph {
    nodes: RefCell<Nodes>,
}

impl Graph {
    fn add(&self, node: Node, dtype: DType, spread: Spread) -> Value<'_> {
        let mut nodes = self.nodes.borrow_mut();
        let next = NodeId(nodes.entries.len() as u32);
        let id = *nodes.known.entry((node.clone(), dtype, spread)).or_insert(next);
        if id == next {
            nodes.entries.push(NodeEntry { node, dtype, spread });
        }
        Value { graph: self, id, dtype }
    }

    fn spread(&self, id: NodeId) -> Spread {
        self.nodes.borrow().entries[id.index()].spread
    }

    /// Returns the nodes, operands first.
    pub(super) fn into_entries(self) -> Vec<NodeEntry> {
        self.nodes.into_inner().entries
    }

    /// Returns the node of a value.
    pub(super) fn node(&self, value: Value<'_>) -> Node {
        self.nodes.borrow().entries[value.id.index()].node.clone()
    }

    /// Returns a node by its index.
    pub(super) fn value(&self, id: NodeId) -> Value<'_> {
        let dtype = self.nodes.borrow().entries[id.index()].dtype;
        Value { graph: self, id, dtype }
    }

    /// Returns a constant by its bits.
    pub(super) fn constant(&self, bits: u64, dtype: DType) -> Value<'_> {
        self.add(Node::Constant(bits), dtype, Spread::Uniform)
    }

    /// Returns a number known when the kernel is called.
    pub(super) fn number(&self, number: CallNumber, dtype: DType) -> Value<'_> {
        self.add(Node::Number(number), dtype, Spread::Uniform)
    }

    /// Returns the elements of an input; a complex input has parts of `dtype`.
    pub(super) fn input(&self, input: u32, part: ComplexPart, dtype: DType) -> Value<'_> {
        self.add(Node::Input { input, part }, dtype, Spread::Full)
    }

    /// Returns each element's position in row-major order, or its index along a dimension counted
    /// from the last.
    pub(super) fn iota(&self, along: Option<u32>) -> Value<'_> {
        let node = Node::Apply { primitive: Primitive::Iota, operands: SmallVec::new(), fault: 0 };
        self.add(node, DType::I64, along.map_or(Spread::Full, Spread::Along))
    }

    /// Returns the memory of a value as another dtype of the same size.
    pub(super) fn bits(&self, value: NodeId, dtype: DType) -> Value<'_> {
        // Reinterpreting twice reinterprets the original memory.
        let inner = match self.nodes.borrow().entries[value.index()].node {
            Node::Bits(inner) => inner,
            _ => value,
        };
        let entry = self.value(inner);
        if entry.dtype == dtype {
            return entry;
        }
        self.add(Node::Bits(inner), dtype, self.spread(inner))
    }

    /// Returns the result of a primitive.
    pub(super) fn apply(
        &self,
        primitive: Primitive,
        operands: &[NodeId],
        dtype: DType,
    ) -> Value<'_> {
        self.apply_or_fault(primitive, operands, dtype, 0)
    }

    /// Returns the result of a primitive that may report a fault.
    pub(super) fn apply_or_fault(
        &self,
        primitive: Primitive,
        operands: &[NodeId],
        dtype: DType,
        fault: u32,
    ) -> Value<'_> {
        let spread = operands
            .iter()
            .fold(Spread::Uniform, |spread, operand| spread.join(self.spread(*operand)));
        let operands = SmallVec::from_slice(operands);
        self.add(Node::Apply { primitive, operands, fault }, dtype, spread)
    }

    /// Returns elements of a ranked input; a complex input has parts of `dtype`.
    pub(super) fn gather(
        &self,
        input: u32,
        part: ComplexPart,
        dtype: DType,
        index: NodeId,
    ) -> Value<'_> {
        self.add(Node::Gather { input, part, index }, dtype, self.spread(index))
    }
}
