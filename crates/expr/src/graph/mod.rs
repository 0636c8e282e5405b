//! Expressions as graphs: deduplicated nodes, operands first.
//!
//! Nodes are in one list, and an equal node isn't added again. So common subexpressions are shared
//! by construction, and every pass is a loop without recursion, for any depth.

mod operations;

use std::collections::hash_map::Entry;

use keyfold_core::{DType, Scalar};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub use operations::{Binary, Unary};

/// The index of a node in its expression.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id(pub(crate) u32);

impl Id {
    /// Returns the index; operands have lower ones than their users.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A plain number in an expression. It is weak, as a Python number is: it takes the other operand's
/// dtype if that can hold its kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Literal {
    /// `true` and `false`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// The bits of a float64, so that literals can be compared and hashed, also NaN.
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
    /// The element of the input of this index.
    Input(u32),
    /// The parameter of this index, a number passed with the call: weak, as a literal.
    Param(u32),
    /// The element's index in the result, in row-major order (int64).
    Index,
    /// The element's index along one dimension of the result, counted from the last: 0 is the last
    /// dimension (int64; 0 if the result has fewer dimensions).
    Coordinate(u32),
    /// The element of a ranked input at computed indices, one per dimension. Negative indices count
    /// from the end.
    At {
        /// The input.
        input: u32,
        /// One index per dimension.
        indices: SmallVec<[Id; 2]>,
    },
    /// A function of one operand.
    Unary(Unary, Id),
    /// A function of two operands.
    Binary(Binary, Id, Id),
    /// The second operand where the first is true, else the third.
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

    /// Returns the node with its operands replaced.
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
    /// `None` for an elementwise input, which broadcasts; else the number of dimensions of an input
    /// that is read at computed indices and doesn't broadcast.
    pub rank: Option<u32>,
}

/// Deduplicated nodes under construction.
#[derive(Clone, Default, Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    /// For each node, whether its result is a bool for all inputs.
    bools: Vec<bool>,
    known: FxHashMap<Node, Id>,
}

impl Graph {
    /// Adds a node and returns its index, or that of an equal node.
    pub fn add(&mut self, node: Node) -> Id {
        match self.known.entry(node) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let id = Id(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
                self.bools.push(results_in_bool(entry.key(), &self.bools));
                self.nodes.push(entry.key().clone());
                *entry.insert(id)
            }
        }
    }

    /// Returns the node of an index.
    #[inline]
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id.index()]
    }

    /// Returns whether the node's result is a bool for all inputs.
    pub fn is_bool(&self, id: Id) -> bool {
        self.bools[id.index()]
    }

    /// Returns all nodes, operands first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}

/// Returns whether a node's result is a bool, given `bools` of earlier nodes.
fn results_in_bool(node: &Node, bools: &[bool]) -> bool {
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

/// A scalar expression: one element of a result as a function of elements of inputs and of numbers.
///
/// [`Expr::new`] makes it from nodes; so do the builder and the parser. It has only nodes that the
/// result needs, operands first, the result last.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Expr {
    nodes: Vec<Node>,
    inputs: Vec<Input>,
    params: Vec<String>,
}

impl Expr {
    /// Returns whether it reads the place of the element that it computes.
    pub fn depends_on_index(&self) -> bool {
        self.nodes().iter().any(|node| matches!(node, Node::Index | Node::Coordinate(_)))
    }

    /// Returns the expression of the node `root` of a graph, with inputs and parameters in this
    /// order. Nodes that the root doesn't need are dropped, and the others are sorted in a
    /// canonical order: each after its operands, the first operand first. So equal expressions
    /// compare equal, independently of their construction.
    pub fn new(graph: &Graph, root: Id, inputs: Vec<Input>, params: Vec<String>) -> Expr {
        const NONE: Id = Id(u32::MAX);
        let mut places = vec![NONE; root.index() + 1];
        let mut nodes = Vec::new();
        // Pending work, the last first: visit a node, or (true) append it, after its operands.
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

    /// Returns the nodes, operands first; the last one is the result.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the result's node.
    pub fn root(&self) -> Id {
        Id(self.nodes.len() as u32 - 1)
    }

    /// Returns the inputs: tensors.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Returns the names of the parameters: numbers.
    pub fn params(&self) -> &[String] {
        &self.params
    }

    /// Returns the expression with integer parameters replaced by their values. Its list of
    /// parameters is the same.
    pub(crate) fn with_integer_params(&self, params: &[Scalar]) -> Expr {
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

    /// Returns a graph with this expression's nodes at the same indices, to add to.
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
