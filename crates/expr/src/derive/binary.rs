//! The derivatives of operations on two operands, from those of the operands.

use super::Pass;
use crate::compose::{add, binary, choose, div, float, int, mul, sub, unary};
use crate::fold::as_float;
use crate::graph::{Binary, Id, Literal, Node, Unary};

impl Pass {
    pub(super) fn binary(
        &mut self,
        op: Binary,
        (a, da): (Id, Option<Id>),
        (b, db): (Id, Option<Id>),
        y: Id,
    ) -> Option<Id> {
        match op {
            Binary::Add => Some(match (da, db) {
                (Some(da), Some(db)) => add(&mut self.g, da, db),
                _ => da.or(db)?,
            }),
            Binary::Sub => Some(self.difference(da, db)?),
            Binary::Mul if a == b => {
                let half = self.times(a, da?);
                Some(add(&mut self.g, half, half))
            }
            Binary::Mul => {
                if let Some(slope) = self.gated(a, (b, db)).or_else(|| self.length(a, b)) {
                    return Some(slope);
                }
                let of_a = da.map(|da| self.times(da, b));
                let of_b = db.map(|db| self.times(a, db));
                Some(match (of_a, of_b) {
                    (Some(of_a), Some(of_b)) => add(&mut self.g, of_a, of_b),
                    _ => of_a.or(of_b)?,
                })
            }
            Binary::Div => self.quotient(da, (b, db), y),
            Binary::Mod => {
                let of_b = db.map(|db| {
                    let times = binary(&mut self.g, Binary::FloorDiv, a, b);
                    self.times(times, db)
                });
                self.difference(da, of_b)
            }
            Binary::Pow => self.power((a, da), (b, db), y),
            Binary::Min => Some(self.extreme(Binary::Gt, (a, da), (b, db))),
            Binary::Max => Some(self.extreme(Binary::Lt, (a, da), (b, db))),
            _ => None,
        }
    }

    fn difference(&mut self, da: Option<Id>, db: Option<Id>) -> Option<Id> {
        Some(match (da, db) {
            (Some(da), Some(db)) => sub(&mut self.g, da, db),
            (None, Some(db)) => unary(&mut self.g, Unary::Neg, db),
            (da, None) => da?,
        })
    }

    /// `(da - y * db) / b`
    fn quotient(&mut self, da: Option<Id>, (b, db): (Id, Option<Id>), y: Id) -> Option<Id> {
        if let Some(db) = db
            && let Some((slope, du)) = self.relative_of_exponential(b, db)
        {
            // da / b - y * (db / b), where db / b doesn't overflow.
            let of_a = da.map(|da| div(&mut self.g, da, b));
            let slope = self.times(slope, du);
            let of_b = self.times(y, slope);
            return self.difference(of_a, Some(of_b));
        }
        let of_b = db.map(|db| self.times(y, db));
        let numerator = self.difference(da, of_b)?;
        Some(div(&mut self.g, numerator, b))
    }

    /// `b * a ** (b - 1) * da + y * log(a) * db`; both are 0 for `0 ** 0`, and the second where the
    /// base is 0 and the exponent isn't negative.
    fn power(&mut self, (a, da): (Id, Option<Id>), (b, db): (Id, Option<Id>), y: Id) -> Option<Id> {
        let of_base = da.and_then(|da| {
            let slope = match *self.g.node(b) {
                Node::Literal(exponent) => self.power_of_number(a, exponent)?,
                _ => self.power_of_any(a, b),
            };
            Some(self.times(slope, da))
        });
        let of_exponent = db.map(|db| {
            let g = &mut self.g;
            let zero = int(g, 0);
            let none = binary(g, Binary::Eq, a, zero);
            let above = binary(g, Binary::Ge, b, zero);
            let flat = binary(g, Binary::And, none, above);
            let one = int(g, 1);
            let base = choose(g, flat, one, a);
            let log = unary(g, Unary::Log, base);
            let slope = mul(g, y, log);
            self.times(slope, db)
        });
        match (of_base, of_exponent) {
            (Some(of_base), Some(of_exponent)) => Some(add(&mut self.g, of_base, of_exponent)),
            (of_base, of_exponent) => of_base.or(of_exponent),
        }
    }

    /// `n * a ** (n - 1)`, nothing for 0.
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
        // Only the exponent of 0 ** 0 is changed, to one whose power is finite.
        let both = binary(g, Binary::And, none, flat);
        let one = int(g, 1);
        let exponent = choose(g, both, one, b);
        let less = sub(g, exponent, one);
        let power = binary(g, Binary::Pow, a, less);
        mul(g, b, power)
    }

    /// The derivative of the one that wins; `loses` compares the first with the second.
    fn extreme(
        &mut self,
        loses: Binary,
        (a, da): (Id, Option<Id>),
        (b, db): (Id, Option<Id>),
    ) -> Id {
        let g = &mut self.g;
        let first_loses = binary(g, loses, a, b);
        let second_loses = binary(g, loses, b, a);
        let equal = binary(g, Binary::Eq, a, b);
        let shared = match (da, db) {
            (Some(da), Some(db)) => add(g, da, db),
            (Some(slope), None) | (None, Some(slope)) => slope,
            (None, None) => return float(g, 0.0),
        };
        let half = float(g, 0.5);
        let half = self.times(half, shared);
        let (da, db) = match (da, db) {
            (Some(da), Some(db)) => (da, db),
            (Some(da), None) => {
                // Beside a NaN it wins.
                let kept = choose(&mut self.g, equal, half, da);
                let zero = float(&mut self.g, 0.0);
                return choose(&mut self.g, first_loses, zero, kept);
            }
            (_, db) => {
                let db = self.or_zero(db);
                let kept = choose(&mut self.g, equal, half, db);
                let zero = float(&mut self.g, 0.0);
                return choose(&mut self.g, second_loses, zero, kept);
            }
        };
        let kept = choose(&mut self.g, equal, half, shared);
        let kept = choose(&mut self.g, second_loses, da, kept);
        choose(&mut self.g, first_loses, db, kept)
    }
}
