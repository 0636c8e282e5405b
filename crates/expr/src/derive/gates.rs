//! `gelu` and `silu`: what a gate lets through is bounded from below, where the gate is shut.
//!
//! `max(x, -1000.0) * sigmoid(x)` has the derivative of `x * sigmoid(x)`: below the bound `sigmoid` and
//! its derivative are 0, so that the bound's own kink has no weight, and none of its cost.

use super::Pass;
use crate::compose::{GELU_SHUT, SILU_SHUT};
use crate::graph::{Binary, Id, Literal, Node, Unary};

impl Pass {
    /// What `x` is in a product of `a`, which is `max(x, bound)` or a number times that, with a gate
    /// `b` that is 0 below the bound.
    pub(super) fn behind_gate(&self, a: Id, b: Id) -> Option<Id> {
        let bounded = match *self.g.node(a) {
            Node::Binary(Binary::Mul, factor, bounded) if self.number(factor).is_some() => bounded,
            _ => a,
        };
        let Node::Binary(Binary::Max, x, bound) = *self.g.node(bounded) else { return None };
        let bound = self.number(bound)?;
        let is_gate = match *self.g.node(b) {
            Node::Unary(Unary::Sigmoid, of) => of == x && bound <= SILU_SHUT,
            Node::Binary(Binary::Add, one, gate) if self.is_number(one, 1.0) => {
                matches!(*self.g.node(gate), Node::Unary(Unary::Erf, of)
                    if bound <= GELU_SHUT && self.is_scaled(of, x))
            }
            _ => false,
        };
        is_gate.then_some(x)
    }

    /// The derivative of such an `a` as if it had no bound.
    pub(super) fn gated(&mut self, a: Id, x: Id) -> Option<Id> {
        let dx = self.slopes[x.index()]?;
        Some(match *self.g.node(a) {
            Node::Binary(Binary::Mul, factor, _) => self.times(factor, dx),
            _ => dx,
        })
    }

    fn number(&self, id: Id) -> Option<f64> {
        match *self.g.node(id) {
            Node::Literal(Literal::Float(bits)) => Some(f64::from_bits(bits)),
            _ => None,
        }
    }

    /// Whether a node is `x` times a number from a half on: then `1 + erf` of it is 0 below -16.
    fn is_scaled(&self, id: Id, x: Id) -> bool {
        match *self.g.node(id) {
            Node::Binary(Binary::Mul, factor, of) => {
                of == x && self.number(factor).is_some_and(|factor| factor >= 0.5)
            }
            _ => false,
        }
    }
}
