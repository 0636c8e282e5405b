//! `gelu` and `silu`: what a gate lets through is bounded from below, where the gate is shut.
//!
//! `max(x, -1000.0) * sigmoid(x)` has the derivative of `x * sigmoid(x)`: below the bound `sigmoid` and
//! its derivative are 0, so that the bound's own kink has no weight, and none of its cost. Above, where
//! the gate is open, its derivative is 0 as well, and meets a bounded `x`, too: `inf * 0` is NaN.

use super::Pass;
use crate::compose::{GELU_SHUT, SILU_SHUT, above, add, binary, float, gelu_tanh_curve};
use crate::graph::{Binary, Id, Literal, Node, Unary};

/// From here on, to both sides, `exp(-(u * u))` is 0 in every format, `u` being at least half of `x`.
const BELL_ENDS: f64 = 60.0;

/// A gate that is 0 below a bound, by how it is open.
enum Gate {
    Sigmoid,
    /// `1 + erf(factor * x)`
    Erf(Id),
    /// `1 + tanh` of a curve that sees `x` within bounds: that `x`.
    Tanh(Id),
}

impl Pass {
    /// The derivative of a product of `a`, which is `max(x, bound)` or a number times that, with a
    /// gate `b` that is 0 below the bound; `db` is the gate's. Nothing if it is no such product.
    pub(super) fn gated(&mut self, a: Id, (b, db): (Id, Option<Id>)) -> Option<Id> {
        let (factor, bounded) = match *self.g.node(a) {
            Node::Binary(Binary::Mul, factor, bounded) if self.number(factor).is_some() => {
                (Some(factor), bounded)
            }
            _ => (None, a),
        };
        let Node::Binary(Binary::Max, x, bound) = *self.g.node(bounded) else { return None };
        let bound = self.number(bound)?;
        let gate = self.gate(x, bounded, bound, b)?;
        let dx = self.slopes[x.index()]?;
        let (near, db) = match gate {
            Gate::Sigmoid => (self.within(x, -SILU_SHUT), db?),
            Gate::Tanh(near) => (near, db?),
            Gate::Erf(by) => {
                // The bell of the bounded x, too, for the sake of the next derivative.
                let near = self.within(x, BELL_ENDS);
                let (of, slope) = (self.times(by, near), self.times(by, dx));
                (near, self.unary(Unary::Erf, of, slope, b)?)
            }
        };
        let (dx, near) = match factor {
            Some(factor) => (self.times(factor, dx), self.times(factor, near)),
            None => (dx, near),
        };
        let (open, turned) = (self.times(dx, b), self.times(near, db));
        Some(add(&mut self.g, open, turned))
    }

    /// What kind of gate on `x` a node is, if it is one that is shut below the bound.
    fn gate(&mut self, x: Id, bounded: Id, bound: f64, gate: Id) -> Option<Gate> {
        match *self.g.node(gate) {
            Node::Unary(Unary::Sigmoid, of) if of == x && bound <= SILU_SHUT => Some(Gate::Sigmoid),
            Node::Binary(Binary::Add, one, gate) if self.is_number(one, 1.0) => {
                match *self.g.node(gate) {
                    Node::Unary(Unary::Erf, of) if bound <= GELU_SHUT => {
                        self.scale(of, x).map(Gate::Erf)
                    }
                    Node::Unary(Unary::Tanh, of) if bound == GELU_SHUT => {
                        let (near, curve) = gelu_tanh_curve(&mut self.g, bounded);
                        (of == curve).then_some(Gate::Tanh(near))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// `x` within a bound to both sides.
    fn within(&mut self, x: Id, bound: f64) -> Id {
        let least = above(&mut self.g, x, -bound);
        let most = float(&mut self.g, bound);
        binary(&mut self.g, Binary::Min, least, most)
    }

    fn number(&self, id: Id) -> Option<f64> {
        match *self.g.node(id) {
            Node::Literal(Literal::Float(bits)) => Some(f64::from_bits(bits)),
            _ => None,
        }
    }

    /// The number from a half on that `x` is multiplied with: `1 + erf` of it is 0 below -16.
    fn scale(&self, id: Id, x: Id) -> Option<Id> {
        match *self.g.node(id) {
            Node::Binary(Binary::Mul, factor, of) => {
                let fits = of == x && self.number(factor).is_some_and(|factor| factor >= 0.5);
                fits.then_some(factor)
            }
            _ => None,
        }
    }
}
