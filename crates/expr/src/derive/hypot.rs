//! The derivative of `hypot`: a square root of squares, scaled by a power of two.

use super::Differentiator;
use super::slope::Slope;
use crate::graph::{Binary, Id, Node, Unary};

impl Differentiator {
    /// Returns the derivative of `p * sqrt((a / p) * (a / p) + (b / p) * (b / p))` for a constant
    /// `p`: `((a / p) * da + (b / p) * db) / sqrt(...)`. It doesn't use the reciprocal of `p`,
    /// which is infinite for a subnormal `p`. `None` for other products.
    pub(super) fn hypot(&mut self, p: Id, root: Id) -> Option<Slope> {
        let Node::Unary(Unary::Sqrt, sum) = *self.g.node(root) else { return None };
        let Node::Binary(Binary::Add, left, right) = *self.g.node(sum) else { return None };
        let sides = [self.scaled_square(left, p)?, self.scaled_square(right, p)?];
        if self.slopes[p.index()].is_some() {
            return None;
        }
        let [left, right] = sides.map(|(side, of)| {
            let slope = self.slopes[of.index()]?;
            Some(self.scaled(side, slope))
        });
        let numerator = self.sum(left, right)?;
        Some(self.divided(numerator, root))
    }

    /// Returns `a / p` and `a` of `(a / p) * (a / p)`.
    fn scaled_square(&self, square: Id, p: Id) -> Option<(Id, Id)> {
        let Node::Binary(Binary::Mul, side, again) = *self.g.node(square) else { return None };
        match *self.g.node(side) {
            Node::Binary(Binary::Div, of, by) if by == p && side == again => Some((side, of)),
            _ => None,
        }
    }
}
