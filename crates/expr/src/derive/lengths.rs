//! `hypot`: a root of squares that were divided by the power of two which multiplies it again.

use super::Pass;
use super::slope::Slope;
use crate::graph::{Binary, Id, Node, Unary};

impl Pass {
    /// The derivative of `p * sqrt((a / p) * (a / p) + (b / p) * (b / p))`, to which `p` is a number:
    /// `((a / p) * da + (b / p) * db) / sqrt(...)`, in which `p` has no part, so that its reciprocal,
    /// infinite where `p` is subnormal, isn't met. Nothing if it is no such product.
    pub(super) fn length(&mut self, p: Id, root: Id) -> Option<Slope> {
        let Node::Unary(Unary::Sqrt, sum) = *self.g.node(root) else { return None };
        let Node::Binary(Binary::Add, left, right) = *self.g.node(sum) else { return None };
        let sides = [self.side(left, p)?, self.side(right, p)?];
        if self.slopes[p.index()].is_some() {
            return None;
        }
        let [left, right] = sides.map(|(side, of)| {
            let slope = self.slopes[of.index()]?;
            Some(self.scaled(side, slope))
        });
        let numerator = self.sum(left, right)?;
        Some(self.over(numerator, root))
    }

    /// `a / p` and `a`, of `(a / p) * (a / p)`.
    fn side(&self, square: Id, p: Id) -> Option<(Id, Id)> {
        let Node::Binary(Binary::Mul, side, again) = *self.g.node(square) else { return None };
        match *self.g.node(side) {
            Node::Binary(Binary::Div, of, by) if by == p && side == again => Some((side, of)),
            _ => None,
        }
    }
}
