//! Identities that change no bit of a result.
//!
//! They hold for IEEE numbers with NaN, infinities and the sign of zero, and keep the dtype of the
//! result: `x * 1` is `x` only where `x` isn't a bool, which the 1 would make a whole number of, and
//! `x * 1.0` only where `x` is a float. `x * 0` and `x + 0.0` stay what they are.

use keyfold_core::{DType, DTypeKind};

use crate::derived_functions::{float, int};
use crate::fold::{as_float, fold};
use crate::graph::{Binary, Expr, Graph, Id, Literal, Node, Unary};

/// The kind of number that a value is at least, whatever its dtype.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Least {
    /// Nothing is known: perhaps a bool, perhaps a plain number.
    Any,
    Whole,
    Float,
}

impl Least {
    fn of(dtype: DType) -> Least {
        match dtype.kind() {
            DTypeKind::Bool => Least::Any,
            DTypeKind::UInt | DTypeKind::Int => Least::Whole,
            DTypeKind::Float | DTypeKind::Complex => Least::Float,
        }
    }

    /// What a literal makes of a value that it meets.
    fn asked(literal: Literal) -> Least {
        match literal {
            Literal::Bool(_) => Least::Any,
            Literal::Int(_) => Least::Whole,
            Literal::Float(_) => Least::Float,
        }
    }
}

/// What is known of the inputs.
pub(crate) struct Assume(Vec<Least>);

impl Assume {
    /// Nothing.
    fn nothing(inputs: usize) -> Assume {
        Assume(vec![Least::Any; inputs])
    }

    /// That one input is floating: something was differentiated with respect to it.
    pub(crate) fn floating(inputs: usize, input: usize) -> Assume {
        let mut assume = Assume::nothing(inputs);
        assume.0[input] = Least::Float;
        assume
    }

    fn dtypes(inputs: usize, dtypes: &[DType]) -> Assume {
        let known = |at| dtypes.get(at).map_or(Least::Any, |dtype| Least::of(*dtype));
        Assume((0..inputs).map(known).collect())
    }
}

impl Expr {
    /// The expression with constants folded and without operations that change nothing: the same
    /// results to the bit, whatever the dtypes of the inputs are.
    #[must_use]
    pub fn simplified(&self) -> Expr {
        simplify(self, &Assume::nothing(self.inputs().len()))
    }

    /// As [`Expr::simplified`], for inputs of these dtypes: more can be left away, and `x ** 2`
    /// becomes a product, which is as exact and faster.
    #[must_use]
    pub fn simplified_for(&self, dtypes: &[DType]) -> Expr {
        simplify(self, &Assume::dtypes(self.inputs().len(), dtypes))
    }
}

pub(crate) fn simplify(expr: &Expr, assume: &Assume) -> Expr {
    let mut pass = Pass { g: Graph::default(), least: Vec::new(), assume };
    let mut places: Vec<Id> = Vec::with_capacity(expr.nodes().len());
    for node in expr.nodes() {
        let node = node.with_operands(|id| places[id.index()]);
        let id = pass.node(node);
        places.push(id);
    }
    let root = places[expr.root().index()];
    Expr::new(&pass.g, root, expr.inputs().to_vec(), expr.params().to_vec())
}

struct Pass<'a> {
    g: Graph,
    /// Of each node.
    least: Vec<Least>,
    assume: &'a Assume,
}

impl Pass<'_> {
    /// Adds a node, or what is the same and simpler.
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

    /// Whether a literal beside a value leaves the value's dtype as it is.
    fn keeps(&self, value: Id, literal: Id) -> bool {
        self.literal(literal).is_some_and(|l| {
            Least::asked(l) <= self.least[value.index()] && self.literal(value).is_none()
        })
    }

    fn least(&self, node: &Node) -> Least {
        let of = |id: Id| self.least[id.index()];
        match *node {
            // A plain number takes the dtype of what it meets.
            Node::Literal(_) | Node::Param(_) | Node::At { .. } => Least::Any,
            Node::Input(input) => self.assume.0.get(input as usize).copied().unwrap_or(Least::Any),
            Node::Index | Node::Coordinate(_) => Least::Whole,
            Node::Unary(op, a) => match op {
                Unary::IsNan | Unary::IsFinite => Least::Any,
                _ => of(a),
            },
            Node::Binary(op, a, b) => match op {
                Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => {
                    Least::Any
                }
                _ => of(a).max(of(b)),
            },
            Node::Where(_, a, b) => of(a).max(of(b)),
            Node::Cast(dtype, _) => Least::of(dtype),
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

    /// What a float is the negative of. A whole number may have wrapped around before it met
    /// another dtype, so its sign can't be moved.
    fn negated(&self, id: Id) -> Option<Id> {
        match *self.g.node(id) {
            Node::Unary(Unary::Neg, x) if self.least[x.index()] == Least::Float => Some(x),
            _ => None,
        }
    }

    fn negative(&mut self, op: Binary, a: Id, b: Id) -> Id {
        let positive = self.binary_node(op, a, b);
        self.node(Node::Unary(Unary::Neg, positive))
    }

    /// A product or a quotient with its sign moved out, so that signs meet and cancel.
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
                // x - 0 is x; only of a positive zero, since 0 - -0.0 is 0.0 and -0.0 - -0.0, too.
                let zero = matches!(self.literal(b), Some(Literal::Int(0) | Literal::Float(0)));
                if zero && self.keeps(a, b) {
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

    /// A bool joined with a literal one, which either changes nothing (`neutral`) or decides.
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
            if !self.keeps(x, factor) {
                continue;
            }
            if self.is(factor, 1.0) {
                return Some(x);
            }
            if self.is(factor, -1.0) && self.least[x.index()] == Least::Float {
                return Some(self.node(Node::Unary(Unary::Neg, x)));
            }
        }
        self.signed(Binary::Mul, a, b)
    }

    fn quotient(&mut self, a: Id, b: Id) -> Option<Id> {
        let Some(divisor) = self.literal(b).map(as_float) else {
            return self.signed(Binary::Div, a, b);
        };
        let is_float = self.least[a.index()] == Least::Float && self.literal(a).is_none();
        if divisor == 1.0 && is_float {
            return Some(a);
        }
        if divisor == -1.0 && is_float {
            return Some(self.node(Node::Unary(Unary::Neg, a)));
        }
        // A power of two has an exact reciprocal; within what every float format holds, float16 too.
        let exact = divisor.to_bits() << 12 == 0
            && (2f64.powi(-14)..=2f64.powi(14)).contains(&divisor.abs());
        if !exact || divisor.abs() == 1.0 {
            return self.signed(Binary::Div, a, b);
        }
        let factor = float(&mut self.g, divisor.recip());
        self.grew();
        Some(self.binary_node(Binary::Mul, a, factor))
    }

    fn power(&mut self, a: Id, b: Id) -> Option<Id> {
        if !self.keeps(a, b) {
            return None;
        }
        if self.is(b, 1.0) {
            return Some(a);
        }
        if self.is(b, 2.0) {
            return Some(self.binary_node(Binary::Mul, a, a));
        }
        if self.is(b, -1.0) && self.least[a.index()] == Least::Float {
            let one = int(&mut self.g, 1);
            self.grew();
            return Some(self.binary_node(Binary::Div, one, a));
        }
        None
    }

    /// Notes what is known of literals that were added to the graph itself.
    fn grew(&mut self) {
        self.least.resize(self.g.nodes().len(), Least::Any);
    }

    fn choice(&mut self, condition: Id, a: Id, b: Id) -> Option<Id> {
        if a == b {
            return Some(a);
        }
        let Some(Literal::Bool(holds)) = self.literal(condition) else { return None };
        let (chosen, other) = if holds { (a, b) } else { (b, a) };
        self.keeps(chosen, other).then_some(chosen)
    }
}

#[cfg(test)]
mod tests;
