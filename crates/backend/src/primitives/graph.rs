//! The graph of primitives: nodes of one real dtype, each once, operands before what uses them.

use std::cell::RefCell;
use std::collections::HashMap;

use keyfold_core::DType;
use smallvec::SmallVec;

use super::Primitive;
use super::value::Value;

/// A node's place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Id(pub(super) u32);

impl Id {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which floats of a tensor: all of a real one, or one part of each complex number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Part {
    Whole,
    Real,
    Imaginary,
}

/// A number that comes with the call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Number {
    /// A parameter of the expression, which becomes part of `to`.
    Param { index: u32, to: DType, part: Part },
    /// The size of a ranked input along a dimension.
    Size { input: u32, dim: u32 },
    /// The stride of a ranked input along a dimension, in elements.
    Stride { input: u32, dim: u32 },
    /// The place of a ranked input's first element in the table that its elements are part of.
    Start { input: u32 },
}

/// The kinds of nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Node {
    /// A number, as the bits of its dtype.
    Constant(u64),
    /// A number that comes with the call.
    Number(Number),
    /// The elements of an input.
    Input { input: u32, part: Part },
    /// The same memory as another dtype of the same size.
    Bits(Id),
    /// The result of a primitive.
    Apply { primitive: Primitive, operands: SmallVec<[Id; 3]>, fault: u32 },
    /// Elements of a ranked input, by their places.
    Gather { input: u32, part: Part, index: Id },
}

/// Along which dimensions of the result a node's elements differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Spread {
    /// Along none: it is one number.
    Uniform,
    /// Along one, counted from the last.
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
pub(super) struct Entry {
    pub(super) node: Node,
    pub(super) dtype: DType,
    pub(super) spread: Spread,
}

#[derive(Default)]
struct Nodes {
    entries: Vec<Entry>,
    known: HashMap<(Node, DType, Spread), Id>,
}

/// Nodes under construction, to which [`Value`]s add.
#[derive(Default)]
pub(super) struct Graph {
    nodes: RefCell<Nodes>,
}

impl Graph {
    fn add(&self, node: Node, dtype: DType, spread: Spread) -> Value<'_> {
        let mut nodes = self.nodes.borrow_mut();
        let next = Id(nodes.entries.len() as u32);
        let id = *nodes.known.entry((node.clone(), dtype, spread)).or_insert(next);
        if id == next {
            nodes.entries.push(Entry { node, dtype, spread });
        }
        Value { graph: self, id, dtype }
    }

    fn spread(&self, id: Id) -> Spread {
        self.nodes.borrow().entries[id.index()].spread
    }

    /// The nodes; operands come before what uses them.
    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.nodes.into_inner().entries
    }

    /// The node of a value.
    pub(super) fn node(&self, value: Value<'_>) -> Node {
        self.nodes.borrow().entries[value.id.index()].node.clone()
    }

    /// A node by its place.
    pub(super) fn value(&self, id: Id) -> Value<'_> {
        let dtype = self.nodes.borrow().entries[id.index()].dtype;
        Value { graph: self, id, dtype }
    }

    /// A number by its bits.
    pub(super) fn constant(&self, bits: u64, dtype: DType) -> Value<'_> {
        self.add(Node::Constant(bits), dtype, Spread::Uniform)
    }

    /// A number that comes with the call.
    pub(super) fn number(&self, number: Number, dtype: DType) -> Value<'_> {
        self.add(Node::Number(number), dtype, Spread::Uniform)
    }

    /// The elements of an input, which has floats of `dtype` as its parts if it is complex.
    pub(super) fn input(&self, input: u32, part: Part, dtype: DType) -> Value<'_> {
        self.add(Node::Input { input, part }, dtype, Spread::Full)
    }

    /// Each element's place in row-major order, or along a dimension counted from the last.
    pub(super) fn iota(&self, along: Option<u32>) -> Value<'_> {
        let node = Node::Apply { primitive: Primitive::Iota, operands: SmallVec::new(), fault: 0 };
        self.add(node, DType::I64, along.map_or(Spread::Full, Spread::Along))
    }

    /// The memory of a value as another dtype of the same size.
    pub(super) fn bits(&self, value: Id, dtype: DType) -> Value<'_> {
        // Of bits that are taken as another dtype already, the memory is theirs.
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

    /// The result of a primitive.
    pub(super) fn apply(&self, primitive: Primitive, operands: &[Id], dtype: DType) -> Value<'_> {
        self.apply_or_fault(primitive, operands, dtype, 0)
    }

    /// The result of a primitive that may find a fault.
    pub(super) fn apply_or_fault(
        &self,
        primitive: Primitive,
        operands: &[Id],
        dtype: DType,
        fault: u32,
    ) -> Value<'_> {
        let spread = operands
            .iter()
            .fold(Spread::Uniform, |spread, operand| spread.join(self.spread(*operand)));
        let operands = SmallVec::from_slice(operands);
        self.add(Node::Apply { primitive, operands, fault }, dtype, spread)
    }

    /// Elements of a ranked input, which has floats of `dtype` as its parts if it is complex.
    pub(super) fn gather(&self, input: u32, part: Part, dtype: DType, index: Id) -> Value<'_> {
        self.add(Node::Gather { input, part, index }, dtype, self.spread(index))
    }
}
