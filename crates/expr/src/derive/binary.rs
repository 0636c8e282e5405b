//! The derivatives of functions of two operands.

use super::Differentiator;
use super::slope::Slope;
use crate::derived_functions::{binary, choose, float, int, mul, sub, unary};
use crate::fold::as_float;
use crate::graph::{Binary, Id, Literal, Node, Unary};

impl Differentiator {
    pub(super) fn binary(
        &mut self,
        op: Binary,
        (a, da): (Id, Option<Slope>),
        (b, db): (Id, Option<Slope>),
        y: Id,
    ) -> Option<Slope> {
        match op {
            Binary::Add => self.sum(da, db),
            Binary::Sub => self.difference(da, db),
            Binary::Mul if a == b => {
                let half = self.scaled(a, da?);
                self.sum(Some(half), Some(half))
            }
            Binary::Mul => {
                if let Some(slope) = self.gate_product(a, (b, db)).or_else(|| self.hypot(a, b)) {
                    return Some(slope);
                }
                let of_a = da.map(|da| self.scaled_by(da, b));
                let of_b = db.map(|db| self.scaled(a, db));
                self.sum(of_a, of_b)
            }
            Binary::Div => self.quotient(da, (b, db), y),
            Binary::Mod => {
                let of_b = db.map(|db| {
                    let times = binary(&mut self.g, Binary::FloorDiv, a, b);
                    self.scaled(times, db)
                });
                self.difference(da, of_b)
            }
            Binary::Pow => self.power((a, da), (b, db), y),
            Binary::Min => self.extreme(Binary::Gt, (a, da), (b, db)),
            Binary::Max => self.extreme(Binary::Lt, (a, da), (b, db)),
            _ => None,
        }
    }

    /// Returns `(da - y * db) / b`.
    fn quotient(
        &mut self,
        da: Option<Slope>,
        (b, db): (Id, Option<Slope>),
        y: Id,
    ) -> Option<Slope> {
        if let Some(db) = db
            && let Some((slope, du)) = self.log_derivative_of_exponential(b, db)
        {
            // da / b - y * (db / b), without overflow of db / b.
            let of_a = da.map(|da| self.divided(da, b));
            let slope = self.scaled(slope, du);
            let of_b = self.scaled(y, slope);
            return self.difference(of_a, Some(of_b));
        }
        let of_b = db.map(|db| self.scaled(y, db));
        let numerator = self.difference(da, of_b)?;
        Some(self.divided(numerator, b))
    }

    /// Returns `b * a ** (b - 1) * da + y * log(a) * db`. Both terms are 0 for `0 ** 0`, and the
    /// second also where the base is 0 and the exponent isn't negative.
    fn power(
        &mut self,
        (a, da): (Id, Option<Slope>),
        (b, db): (Id, Option<Slope>),
        y: Id,
    ) -> Option<Slope> {
        let of_base = da.and_then(|da| {
            let slope = match *self.g.node(b) {
                Node::Literal(exponent) => self.power_of_number(a, exponent)?,
                _ => self.power_of_any(a, b),
            };
            Some(self.scaled(slope, da))
        });
        let of_exponent = db.map(|db| {
            let g = &mut self.g;
            let zero = int(g, 0);
            let none = binary(g, Binary::Eq, a, zero);
            let above = self.nonnegative(b);
            let g = &mut self.g;
            let flat = binary(g, Binary::And, none, above);
            let one = int(g, 1);
            let base = choose(g, flat, one, a);
            let log = unary(g, Unary::Log, base);
            let slope = mul(g, y, log);
            self.scaled(slope, db)
        });
        self.sum(of_base, of_exponent)
    }

    /// Returns `n * a ** (n - 1)`; `None` for n = 0.
    fn power_of_number(&mut self, a: Id, exponent: Literal) -> Option<Id> {
        let n = as_float(exponent);
        let g = &mut self.g;
        if n == 0.0 {
            return None;
        }
        let less = match exponent {
            Literal::Int(n) => int(g, n.checked_sub(1)?),
            _ => float(g, n - 1.0),
        };
        let power = match n - 1.0 {
            0.0 => return Some(float(g, 1.0)),
            1.0 => a,
            _ => binary(g, Binary::Pow, a, less),
        };
        let factor = g.add(Node::Literal(exponent));
        Some(mul(g, factor, power))
    }

    fn power_of_any(&mut self, a: Id, b: Id) -> Id {
        let g = &mut self.g;
        let zero = int(g, 0);
        let none = binary(g, Binary::Eq, a, zero);
        let flat = binary(g, Binary::Eq, b, zero);
        // Only where the base is 0 and the exponent 0, the exponent is replaced by one with a
        // finite power.
        let both = binary(g, Binary::And, none, flat);
        let one = int(g, 1);
        let exponent = choose(g, both, one, b);
        let less = sub(g, exponent, one);
        let power = binary(g, Binary::Pow, a, less);
        mul(g, b, power)
    }

    /// Returns the derivative of the selected operand, also for NaN; equal operands contribute half
    /// each. `loses` compares the first with the second.
    fn extreme(
        &mut self,
        loses: Binary,
        (a, da): (Id, Option<Slope>),
        (b, db): (Id, Option<Slope>),
    ) -> Option<Slope> {
        let g = &mut self.g;
        let first_loses = binary(g, loses, a, b);
        let second_loses = binary(g, loses, b, a);
        let equal = binary(g, Binary::Eq, a, b);
        let half = float(g, 0.5);
        let shared = self.sum(da, db);
        let half = shared.map(|shared| self.scaled(half, shared));
        match (da, db) {
            (da, None) => {
                let kept = self.choice(equal, half, da);
                self.choice(first_loses, None, kept)
            }
            (None, db) => {
                let kept = self.choice(equal, half, db);
                self.choice(second_loses, None, kept)
            }
            (da, db) => {
                let kept = self.choice(equal, half, shared);
                let kept = self.choice(second_loses, da, kept);
                self.choice(first_loses, db, kept)
            }
        }
    }
}
