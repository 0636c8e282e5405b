//! The expression itself: a graph of nodes, each once, operands before what uses them.
//!
//! Nodes are kept in one list, and a node that is there already is not added again: so common
//! subexpressions are shared by construction, every pass over an expression is one loop without
//! recursion, and no depth is too deep.

mod operations;

use std::collections::hash_map::Entry;

use keyfold_core::{DType, Scalar};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub use operations::{Binary, Unary};

/// A node's place in its expression.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id(pub(crate) u32);

impl Id {
    /// The place as a number: nodes have lower numbers than those that use them.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A plain number in an expression. It is weak, as a Python number is: it takes the dtype of what it
/// meets, where that can hold its kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Literal {
    /// `true` and `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// The bits of a float64: so that literals can be compared and hashed, NaN too.
    Float(u64),
}

impl From<Literal> for Scalar {
    fn from(literal: Literal) -> Scalar {
        match literal {
            Literal::Bool(value) => Scalar::Bool(value),
            Literal::Int(value) => Scalar::Int(value),
            Literal::Float(bits) => Scalar::Float(f64::from_bits(bits)),
        }
    }
}

/// One node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Node {
    /// A plain number.
    Literal(Literal),
    /// The element of an input, by number.
    Input(u32),
    /// A number given with the call, by number: weak, as a literal.
    Param(u32),
    /// The element's place in the result, in row-major order (int64).
    Index,
    /// The element's place along one dimension of the result, counted from the last: 0 is the last
    /// dimension (int64; 0 where the result has fewer dimensions).
    Coordinate(u32),
    /// The element of a ranked input at computed indices, one per dimension of that input. Negative
    /// indices count from the end.
    At {
        /// The input.
        input: u32,
        /// As many as the input's rank.
        indices: SmallVec<[Id; 2]>,
    },
    /// A function of one operand.
    Unary(Unary, Id),
    /// A function of two.
    Binary(Binary, Id, Id),
    /// The second where the first holds, else the third.
    Where(Id, Id, Id),
    /// The operand converted, as by `aten::to`.
    Cast(DType, Id),
}

impl Node {
    /// Calls `f` with each operand.
    #[inline]
    pub fn operands(&self, mut f: impl FnMut(Id)) {
        match self {
            Node::Literal(_)
            | Node::Input(_)
            | Node::Param(_)
            | Node::Index
            | Node::Coordinate(_) => {}
            Node::At { indices, .. } => indices.iter().copied().for_each(f),
            Node::Unary(_, a) | Node::Cast(_, a) => f(*a),
            Node::Binary(_, a, b) => {
                f(*a);
                f(*b);
            }
            Node::Where(c, a, b) => {
                f(*c);
                f(*a);
                f(*b);
            }
        }
    }

    /// The same node with its operands replaced.
    #[must_use]
    pub fn with_operands(&self, mut f: impl FnMut(Id) -> Id) -> Node {
        match self {
            Node::At { input, indices } => {
                Node::At { input: *input, indices: indices.iter().map(|id| f(*id)).collect() }
            }
            Node::Unary(op, a) => Node::Unary(*op, f(*a)),
            Node::Cast(dtype, a) => Node::Cast(*dtype, f(*a)),
            Node::Binary(op, a, b) => {
                let a = f(*a);
                Node::Binary(*op, a, f(*b))
            }
            Node::Where(c, a, b) => {
                let c = f(*c);
                let a = f(*a);
                Node::Where(c, a, f(*b))
            }
            leaf => leaf.clone(),
        }
    }
}

/// An input of an expression.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// `None` for one that is read element by element and broadcasts; else the number of dimensions
    /// of one that is read at computed indices only, and takes no part in broadcasting.
    pub rank: Option<u32>,
}

/// Nodes under construction: each is kept once.
#[derive(Clone, Default, Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    /// Of each node, whether it gives a bool whatever the inputs are.
    bools: Vec<bool>,
    known: FxHashMap<Node, Id>,
}

impl Graph {
    /// The node's place: a new one, or that of an equal node.
    pub fn add(&mut self, node: Node) -> Id {
        match self.known.entry(node) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let id = Id(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
                self.bools.push(gives_bool(entry.key(), &self.bools));
                self.nodes.push(entry.key().clone());
                *entry.insert(id)
            }
        }
    }

    /// The node at a place.
    #[inline]
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id.index()]
    }

    /// Whether the node gives a bool, whatever the inputs are.
    pub fn is_bool(&self, id: Id) -> bool {
        self.bools[id.index()]
    }

    /// All nodes; operands come before what uses them.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}

/// Whether a node gives a bool, where `bools` says it of those before.
fn gives_bool(node: &Node, bools: &[bool]) -> bool {
    use Binary::{And, Eq, Ge, Gt, Le, Lt, Ne, Or, Xor};
    match node {
        Node::Literal(Literal::Bool(_)) => true,
        Node::Unary(Unary::IsNan | Unary::IsFinite, _) => true,
        Node::Binary(Eq | Ne | Lt | Le | Gt | Ge, ..) => true,
        Node::Cast(dtype, _) => *dtype == DType::Bool,
        Node::Unary(Unary::Not, a) => bools[a.index()],
        Node::Binary(And | Or | Xor, a, b) | Node::Where(_, a, b) => {
            bools[a.index()] && bools[b.index()]
        }
        _ => false,
    }
}

/// A scalar expression: what one element of a result is, given the elements of inputs and numbers.
///
/// It is made by [`Expr::new`] from nodes, by the builder, or by parsing; holds only nodes that the
/// result needs, operands first, the result last.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Expr {
    nodes: Vec<Node>,
    inputs: Vec<Input>,
    params: Vec<String>,
}

impl Expr {
    /// The expression whose value is the node `root` of a graph, of inputs and parameters in this
    /// order. Nodes that the root doesn't need are left behind, and the others are put in one order
    /// that depends on the expression alone: each follows its operands, the first operand first. So
    /// expressions are equal where they say the same, however they were built.
    pub fn new(graph: &Graph, root: Id, inputs: Vec<Input>, params: Vec<String>) -> Expr {
        const NONE: Id = Id(u32::MAX);
        let mut places = vec![NONE; root.index() + 1];
        let mut nodes = Vec::new();
        // What to do, the last first: visit a node, or (true) place it, after its operands.
        let mut stack = vec![(root, false)];
        while let Some((id, operands_done)) = stack.pop() {
            if places[id.index()] != NONE {
                continue;
            }
            let node = &graph.nodes[id.index()];
            if operands_done {
                places[id.index()] = Id(nodes.len() as u32);
                nodes.push(node.with_operands(|id| places[id.index()]));
            } else {
                stack.push((id, true));
                let first = stack.len();
                node.operands(|id| stack.push((id, false)));
                stack[first..].reverse();
            }
        }
        Expr { nodes, inputs, params }
    }

    /// The nodes, operands before what uses them, the last one the result.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The result's node.
    pub fn root(&self) -> Id {
        Id(self.nodes.len() as u32 - 1)
    }

    /// The inputs: tensors.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The names of the parameters: numbers.
    pub fn params(&self) -> &[String] {
        &self.params
    }

    /// The same expression with those parameters that are whole numbers written into it. It has the same
    /// parameters.
    pub(crate) fn with_whole_numbers(&self, params: &[Scalar]) -> Expr {
        let literal = |node: &Node| match node {
            Node::Param(at) => match params.get(*at as usize) {
                Some(Scalar::Int(number)) => Node::Literal(Literal::Int(*number)),
                _ => node.clone(),
            },
            _ => node.clone(),
        };
        let nodes = self.nodes.iter().map(literal).collect();
        Expr { nodes, inputs: self.inputs.clone(), params: self.params.clone() }
    }

    /// A graph with this expression's nodes, at the same places: to build on.
    pub fn to_graph(&self) -> Graph {
        let mut graph = Graph::default();
        for node in &self.nodes {
            graph.add(node.clone());
        }
        graph
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_nodes_are_one() {
        let mut graph = Graph::default();
        let x = graph.add(Node::Input(0));
        let unused = graph.add(Node::Unary(Unary::Log, x));
        let a = graph.add(Node::Unary(Unary::Exp, x));
        let b = graph.add(Node::Unary(Unary::Exp, x));
        assert_eq!(a, b);
        assert_ne!(a, unused);
        let root = graph.add(Node::Binary(Binary::Mul, a, b));
        let input = Input { name: "x".into(), rank: None };
        let expr = Expr::new(&graph, root, vec![input], vec![]);
        assert_eq!(expr.nodes().len(), 3);
        assert_eq!(expr.nodes()[2], Node::Binary(Binary::Mul, Id(1), Id(1)));
        assert_eq!(expr.root().index(), 2);
    }
}
