//! Simplification by identities that preserve results bit by bit.
//!
//! They hold for IEEE numbers with NaN, infinities and signed zeros, and keep the dtype of the
//! result: `x * 1` is `x` only if `x` isn't a bool, which the 1 would convert to an integer, and `x
//! * 1.0` only if `x` is a float. `x * 0` and `x + 0.0` are kept.

use keyfold_core::{DType, DTypeKind};

use crate::derived_functions::{float, int};
use crate::fold::{as_float, fold};
use crate::graph::{Binary, Expr, Graph, Id, Literal, Node, Unary};

/// The least kind of number that a value has, for all dtypes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum LeastKind {
    /// Unknown: perhaps a bool, perhaps a plain number.
    Any,
    Integer,
    Float,
}

impl LeastKind {
    fn of(dtype: DType) -> LeastKind {
        match dtype.kind() {
            DTypeKind::Bool => LeastKind::Any,
            DTypeKind::UInt | DTypeKind::Int => LeastKind::Integer,
            DTypeKind::Float | DTypeKind::Complex => LeastKind::Float,
        }
    }

    /// Returns the least kind that an operation with a literal results in.
    fn promoted_by(literal: Literal) -> LeastKind {
        match literal {
            Literal::Bool(_) => LeastKind::Any,
            Literal::Int(_) => LeastKind::Integer,
            Literal::Float(_) => LeastKind::Float,
        }
    }
}

/// Assumptions about the inputs.
pub(crate) struct Assume(Vec<LeastKind>);

impl Assume {
    /// Returns no assumptions.
    fn none(inputs: usize) -> Assume {
        Assume(vec![LeastKind::Any; inputs])
    }

    /// Assumes that one input is floating, since the expression was differentiated with respect to
    /// it.
    pub(crate) fn floating(inputs: usize, input: usize) -> Assume {
        let mut assume = Assume::none(inputs);
        assume.0[input] = LeastKind::Float;
        assume
    }

    fn dtypes(inputs: usize, dtypes: &[DType]) -> Assume {
        let known = |at| dtypes.get(at).map_or(LeastKind::Any, |dtype| LeastKind::of(*dtype));
        Assume((0..inputs).map(known).collect())
    }
}

impl Expr {
    /// Folds constants and removes operations without effect: the results are the same bit by bit,
    /// for all dtypes of the inputs.
    #[must_use]
    pub fn simplified(&self) -> Expr {
        simplify(self, &Assume::none(self.inputs().len()))
    }

    /// As [`Expr::simplified`], for inputs of these dtypes: more can be removed, and `x ** 2`
    /// becomes a product, which is as accurate and faster.
    #[must_use]
    pub fn simplified_for(&self, dtypes: &[DType]) -> Expr {
        simplify(self, &Assume::dtypes(self.inputs().len(), dtypes))
    }
}

pub(crate) fn simplify(expr: &Expr, assume: &Assume) -> Expr {
    let mut pass = Simplifier { g: Graph::default(), least: Vec::new(), assume };
    let mut places: Vec<Id> = Vec::with_capacity(expr.nodes().len());
    for node in expr.nodes() {
        let node = node.with_operands(|id| places[id.index()]);
        let id = pass.node(node);
        places.push(id);
    }
    let root = places[expr.root().index()];
    Expr::new(&pass.g, root, expr.inputs().to_vec(), expr.params().to_vec())
}

struct Simplifier<'a> {
    g: Graph,
    /// By node.
    least: Vec<LeastKind>,
    assume: &'a Assume,
}

impl Simplifier<'_> {
    /// Adds a node or a simpler equivalent.
    fn node(&mut self, node: Node) -> Id {
        let folded = fold(&node, |id| self.literal(id));
        if let Some(literal) = folded {
            return self.add(Node::Literal(literal));
        }
        let simpler = match node {
            Node::Unary(op, a) => self.unary(op, a),
            Node::Binary(op, a, b) => self.binary(op, a, b),
            Node::Where(condition, a, b) => self.choice(condition, a, b),
            Node::Cast(dtype, a) => match *self.g.node(a) {
                Node::Cast(inner, _) if inner == dtype => Some(a),
                _ => None,
            },
            _ => None,
        };
        match simpler {
            Some(id) => id,
            None => self.add(node),
        }
    }

    fn add(&mut self, node: Node) -> Id {
        let least = self.least(&node);
        let id = self.g.add(node);
        if id.index() == self.least.len() {
            self.least.push(least);
        }
        id
    }

    fn literal(&self, id: Id) -> Option<Literal> {
        match self.g.node(id) {
            Node::Literal(literal) => Some(*literal),
            _ => None,
        }
    }

    fn is(&self, id: Id, value: f64) -> bool {
        self.literal(id).is_some_and(|literal| as_float(literal) == value)
    }

    /// Returns whether an operation with a literal keeps the value's dtype.
    fn keeps_dtype(&self, value: Id, literal: Id) -> bool {
        self.literal(literal).is_some_and(|l| {
            LeastKind::promoted_by(l) <= self.least[value.index()] && self.literal(value).is_none()
        })
    }

    fn least(&self, node: &Node) -> LeastKind {
        let of = |id: Id| self.least[id.index()];
        match *node {
            // A plain number takes the other operand's dtype.
            Node::Literal(_) | Node::Param(_) | Node::At { .. } => LeastKind::Any,
            Node::Input(input) => {
                self.assume.0.get(input as usize).copied().unwrap_or(LeastKind::Any)
            }
            Node::Index | Node::Coordinate(_) => LeastKind::Integer,
            Node::Unary(op, a) => match op {
                Unary::IsNan | Unary::IsFinite => LeastKind::Any,
                _ => of(a),
            },
            Node::Binary(op, a, b) => match op {
                Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => {
                    LeastKind::Any
                }
                _ => of(a).max(of(b)),
            },
            Node::Where(_, a, b) => of(a).max(of(b)),
            Node::Cast(dtype, _) => LeastKind::of(dtype),
        }
    }

    fn unary(&mut self, op: Unary, a: Id) -> Option<Id> {
        match (op, self.g.node(a).clone()) {
            (Unary::Neg, Node::Unary(Unary::Neg, x)) => Some(x),
            (Unary::Not, Node::Unary(Unary::Not, x)) => Some(x),
            (Unary::Not, Node::Binary(Binary::Eq, x, y)) => {
                Some(self.binary_node(Binary::Ne, x, y))
            }
            (Unary::Not, Node::Binary(Binary::Ne, x, y)) => {
                Some(self.binary_node(Binary::Eq, x, y))
            }
            (Unary::Abs, Node::Unary(Unary::Abs, _)) => Some(a),
            (Unary::Conj, Node::Unary(Unary::Conj, x)) => Some(x),
            (Unary::Conj | Unary::Real, Node::Unary(Unary::Abs | Unary::Real | Unary::Imag, _)) => {
                Some(a)
            }
            (Unary::Abs, Node::Unary(Unary::Neg, x)) => {
                self.negated(a)?;
                Some(self.node(Node::Unary(Unary::Abs, x)))
            }
            _ => None,
        }
    }

    fn binary_node(&mut self, op: Binary, a: Id, b: Id) -> Id {
        self.node(Node::Binary(op, a, b))
    }

    /// Returns the operand of a negated float. An integer's sign can't be moved, since it may have
    /// wrapped before a conversion.
    fn negated(&self, id: Id) -> Option<Id> {
        match *self.g.node(id) {
            Node::Unary(Unary::Neg, x) if self.least[x.index()] == LeastKind::Float => Some(x),
            _ => None,
        }
    }

    fn negative(&mut self, op: Binary, a: Id, b: Id) -> Id {
        let positive = self.binary_node(op, a, b);
        self.node(Node::Unary(Unary::Neg, positive))
    }

    /// Returns a product or a quotient with its sign moved out, so that signs can cancel.
    fn signed(&mut self, op: Binary, a: Id, b: Id) -> Option<Id> {
        match (self.negated(a), self.negated(b)) {
            (Some(a), Some(b)) => Some(self.binary_node(op, a, b)),
            (Some(a), None) => Some(self.negative(op, a, b)),
            (None, Some(b)) => Some(self.negative(op, a, b)),
            (None, None) => None,
        }
    }

    fn binary(&mut self, op: Binary, a: Id, b: Id) -> Option<Id> {
        match op {
            Binary::Add => {
                // a + -b is a - b.
                let negated = self.negated(b)?;
                Some(self.binary_node(Binary::Sub, a, negated))
            }
            Binary::Sub => {
                // x - 0 is x, but only for a positive zero: 0 - -0.0 is 0.0, and so is -0.0 - -0.0.
                let zero = matches!(self.literal(b), Some(Literal::Int(0) | Literal::Float(0)));
                if zero && self.keeps_dtype(a, b) {
                    return Some(a);
                }
                let negated = self.negated(b)?;
                Some(self.binary_node(Binary::Add, a, negated))
            }
            Binary::Mul => self.product(a, b),
            Binary::Div => self.quotient(a, b),
            Binary::Pow => self.power(a, b),
            Binary::Min | Binary::Max | Binary::And | Binary::Or if a == b => Some(a),
            Binary::And => self.with_bool(a, b, true),
            Binary::Or => self.with_bool(a, b, false),
            _ => None,
        }
    }

    /// Returns a bool combined with a bool literal, which either has no effect (`neutral`) or
    /// determines the result.
    fn with_bool(&self, a: Id, b: Id, neutral: bool) -> Option<Id> {
        for (x, literal) in [(a, b), (b, a)] {
            if let Some(Literal::Bool(value)) = self.literal(literal)
                && self.g.is_bool(x)
            {
                return Some(if value == neutral { x } else { literal });
            }
        }
        None
    }

    fn product(&mut self, a: Id, b: Id) -> Option<Id> {
        for (x, factor) in [(a, b), (b, a)] {
            if !self.keeps_dtype(x, factor) {
                continue;
            }
            if self.is(factor, 1.0) {
                return Some(x);
            }
            if self.is(factor, -1.0) && self.least[x.index()] == LeastKind::Float {
                return Some(self.node(Node::Unary(Unary::Neg, x)));
            }
        }
        self.signed(Binary::Mul, a, b)
    }

    fn quotient(&mut self, a: Id, b: Id) -> Option<Id> {
        let Some(divisor) = self.literal(b).map(as_float) else {
            return self.signed(Binary::Div, a, b);
        };
        let is_float = self.least[a.index()] == LeastKind::Float && self.literal(a).is_none();
        if divisor == 1.0 && is_float {
            return Some(a);
        }
        if divisor == -1.0 && is_float {
            return Some(self.node(Node::Unary(Unary::Neg, a)));
        }
        // A power of two has an exact reciprocal; within the range of every float format, float16
        // too.
        let exact = divisor.to_bits() << 12 == 0
            && (2f64.powi(-14)..=2f64.powi(14)).contains(&divisor.abs());
        if !exact || divisor.abs() == 1.0 {
            return self.signed(Binary::Div, a, b);
        }
        let factor = float(&mut self.g, divisor.recip());
        self.extend_to_new_nodes();
        Some(self.binary_node(Binary::Mul, a, factor))
    }

    fn power(&mut self, a: Id, b: Id) -> Option<Id> {
        if !self.keeps_dtype(a, b) {
            return None;
        }
        if self.is(b, 1.0) {
            return Some(a);
        }
        if self.is(b, 2.0) {
            return Some(self.binary_node(Binary::Mul, a, a));
        }
        if self.is(b, -1.0) && self.least[a.index()] == LeastKind::Float {
            let one = int(&mut self.g, 1);
            self.extend_to_new_nodes();
            return Some(self.binary_node(Binary::Div, one, a));
        }
        None
    }

    /// Extends the assumptions to literals added directly to the graph.
    fn extend_to_new_nodes(&mut self) {
        self.least.resize(self.g.nodes().len(), LeastKind::Any);
    }

    fn choice(&mut self, condition: Id, a: Id, b: Id) -> Option<Id> {
        if a == b {
            return Some(a);
        }
        let Some(Literal::Bool(holds)) = self.literal(condition) else { return None };
        let (chosen, other) = if holds { (a, b) } else { (b, a) };
        self.keeps_dtype(chosen, other).then_some(chosen)
    }
}

#[cfg(test)]
mod tests;
