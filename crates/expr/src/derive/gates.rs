//! `gelu` and `silu`: what a gate lets through is bounded from below, where the gate is shut.
//!
//! `max(x, -1000.0) * sigmoid(x)` has the derivative of `x * sigmoid(x)`: below the bound `sigmoid` and
//! its derivative are 0, so that the bound's own kink has no weight, and none of its cost. Above, where
//! the gate is open, its derivative is 0 as well, and must not meet an infinite `x`: in those of `gelu`
//! `x` is bounded to both sides. `silu`'s is too short a computation for a second bound, which would
//! take 8 % more time.

use std::f64::consts::FRAC_2_SQRT_PI;

use super::Pass;
use super::slope::Slope;
use crate::compose::{
    GELU_SHUT, GELU_TANH_SHUT, SILU_SHUT, above, binary, float, gelu_tanh_curve, mul, scaled, unary,
};
use crate::graph::{Binary, Id, Literal, Node, Unary};

/// From here on, to both sides, `exp(-(u * u))` is 0 in every format, `u` being at least half of `x`.
const BELL_ENDS: f64 = 60.0;

impl Pass {
    /// The derivative of a product of `a`, which is `max(x, bound)` or a number times that, with a
    /// gate `b` that is 0 below the bound; `db` is the gate's. Nothing if it is no such product.
    pub(super) fn gated(&mut self, a: Id, (b, db): (Id, Option<Slope>)) -> Option<Slope> {
        let (factor, bounded) = match *self.g.node(a) {
            Node::Binary(Binary::Mul, factor, bounded) => (self.number(factor)?, bounded),
            _ => (1.0, a),
        };
        let Node::Binary(Binary::Max, x, bound) = *self.g.node(bounded) else { return None };
        let bound = self.number(bound)?;
        let dx = self.slopes[x.index()]?;
        let turned = match *self.g.node(b) {
            Node::Unary(Unary::Sigmoid, of) if of == x && bound <= SILU_SHUT => {
                self.times_number(factor, bounded, db?)
            }
            Node::Unary(Unary::Sigmoid, of) if bound == GELU_TANH_SHUT => {
                let (near, curve) = gelu_tanh_curve(&mut self.g, bounded);
                if of != curve {
                    return None;
                }
                self.times_number(factor, near, db?)
            }
            Node::Unary(Unary::Erfc, of) if bound <= GELU_SHUT => {
                let by = self.scale(of, x)?;
                let slope = self.bell(x, by, factor);
                self.scaled(slope, dx)
            }
            _ => return None,
        };
        let factor = float(&mut self.g, factor);
        let open = self.scaled(factor, dx);
        let open = self.scaled_by(open, b);
        self.sum(Some(open), Some(turned))
    }

    /// `x` times the derivative of `factor * erfc(by * x)`, of an `x` within the bell's ends: so that the
    /// next derivative is 0 at infinity, too.
    fn bell(&mut self, x: Id, by: f64, factor: f64) -> Id {
        let g = &mut self.g;
        let least = above(g, x, -BELL_ENDS);
        let most = float(g, BELL_ENDS);
        let near = binary(g, Binary::Min, least, most);
        let squared = mul(g, near, near);
        let exponent = scaled(g, -(by * by), squared);
        let bell = unary(g, Unary::Exp, exponent);
        let slope = scaled(g, -factor * by * FRAC_2_SQRT_PI, bell);
        mul(g, near, slope)
    }

    /// `factor * a * slope`
    fn times_number(&mut self, factor: f64, a: Id, slope: Slope) -> Slope {
        let factor = float(&mut self.g, factor);
        let a = self.times(factor, a);
        self.scaled(a, slope)
    }

    fn number(&self, id: Id) -> Option<f64> {
        match *self.g.node(id) {
            Node::Literal(Literal::Float(bits)) => Some(f64::from_bits(bits)),
            _ => None,
        }
    }

    /// The number from -0.7 on downwards that `x` is multiplied with: `erfc` of it is 0 below -40.
    fn scale(&self, id: Id, x: Id) -> Option<f64> {
        match *self.g.node(id) {
            Node::Binary(Binary::Mul, factor, of) if of == x => {
                self.number(factor).filter(|factor| *factor <= -0.7)
            }
            _ => None,
        }
    }
}
