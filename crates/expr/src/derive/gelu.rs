//! The derivatives of `gelu`, `gelu_tanh` and `silu`: products of a bounded `x` with a gate, a
//! function of `x` with values from 0 to 1.
//!
//! `max(x, -1000.0) * sigmoid(x)` gets the derivative of `x * sigmoid(x)`: below the bound
//! `sigmoid` and its derivative are 0, so the derivative of `max` has no effect and would only cost
//! time. For large `x` the gate is 1 and its derivative 0, which must not be multiplied with an
//! infinite `x`: the derivatives of `gelu` and `gelu_tanh` bound `x` on both sides. That of `silu`
//! has no second bound, which would take 8 % more time.

use std::f64::consts::FRAC_2_SQRT_PI;

use super::Differentiator;
use super::slope::Slope;
use crate::derived_functions::{
    GELU_TANH_ZERO_BELOW, GELU_ZERO_BELOW, SILU_ZERO_BELOW, binary, bounded_below, float,
    gelu_tanh_operands, mul, scaled, unary,
};
use crate::graph::{Binary, Id, Literal, Node, Unary};

/// For `|x|` above this number `exp(-(u * u))` is 0 in every format, where `|u|` is at least half
/// of `|x|`.
const GAUSSIAN_BOUND: f64 = 60.0;

impl Differentiator {
    /// Returns the derivative of `a * b`, where `a` is `max(x, bound)` or a multiple of it, and `b`
    /// a gate that is 0 below the bound, with derivative `db`. `None` for other products.
    pub(super) fn gate_product(&mut self, a: Id, (b, db): (Id, Option<Slope>)) -> Option<Slope> {
        let (factor, bounded) = match *self.g.node(a) {
            Node::Binary(Binary::Mul, factor, bounded) => (self.number(factor)?, bounded),
            _ => (1.0, a),
        };
        let Node::Binary(Binary::Max, x, bound) = *self.g.node(bounded) else { return None };
        let bound = self.number(bound)?;
        let dx = self.slopes[x.index()]?;
        let of_gate = match *self.g.node(b) {
            Node::Unary(Unary::Sigmoid, of) if of == x && bound <= SILU_ZERO_BELOW => {
                self.times_number(factor, bounded, db?)
            }
            Node::Unary(Unary::Sigmoid, of) if bound == GELU_TANH_ZERO_BELOW => {
                let (near, curve) = gelu_tanh_operands(&mut self.g, bounded);
                if of != curve {
                    return None;
                }
                self.times_number(factor, near, db?)
            }
            Node::Unary(Unary::Erfc, of) if bound <= GELU_ZERO_BELOW => {
                let by = self.scale(of, x)?;
                let slope = self.gaussian(x, by, factor);
                self.scaled(slope, dx)
            }
            _ => return None,
        };
        let factor = float(&mut self.g, factor);
        let of_x = self.scaled(factor, dx);
        let of_x = self.scaled_by(of_x, b);
        self.sum(Some(of_x), Some(of_gate))
    }

    /// Returns `x` times the derivative of `factor * erfc(by * x)`, with `x` bounded by
    /// [`GAUSSIAN_BOUND`] on both sides, so that its own derivative is 0 at infinity, too.
    fn gaussian(&mut self, x: Id, by: f64, factor: f64) -> Id {
        let g = &mut self.g;
        let least = bounded_below(g, x, -GAUSSIAN_BOUND);
        let most = float(g, GAUSSIAN_BOUND);
        let near = binary(g, Binary::Min, least, most);
        let squared = mul(g, near, near);
        let exponent = scaled(g, -(by * by), squared);
        let bell = unary(g, Unary::Exp, exponent);
        let slope = scaled(g, -factor * by * FRAC_2_SQRT_PI, bell);
        mul(g, near, slope)
    }

    /// Returns `factor * a * slope`.
    fn times_number(&mut self, factor: f64, a: Id, slope: Slope) -> Slope {
        let factor = float(&mut self.g, factor);
        let a = self.product(factor, a);
        self.scaled(a, slope)
    }

    fn number(&self, id: Id) -> Option<f64> {
        match *self.g.node(id) {
            Node::Literal(Literal::Float(bits)) => Some(f64::from_bits(bits)),
            _ => None,
        }
    }

    /// Returns the factor of `x` in `id` if it is at most -0.7, so that `erfc` of the product is 0
    /// for `x` below -40.
    fn scale(&self, id: Id, x: Id) -> Option<f64> {
        match *self.g.node(id) {
            Node::Binary(Binary::Mul, factor, of) if of == x => {
                self.number(factor).filter(|factor| *factor <= -0.7)
            }
            _ => None,
        }
    }
}
