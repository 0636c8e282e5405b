//! The derivative of a node, with the condition of a branch that wasn't taken.

use super::Differentiator;
use crate::derived_functions::{add, binary, choose, div, float, sub, unary};
use crate::graph::{Binary, Id, Node, Unary};

/// A derivative: `value`, but 0 where the bool `off` is true, for any `value`.
///
/// Factors and divisors apply to `value` alone, so that the 0 of a branch not taken is never
/// multiplied with infinity. A slope is settled, `where(off, 0.0, value)`, before it is added to
/// another one, and at the end.
#[derive(Clone, Copy)]
pub(super) struct Slope {
    pub(super) value: Id,
    pub(super) off: Option<Id>,
}

impl From<Id> for Slope {
    fn from(value: Id) -> Slope {
        Slope { value, off: None }
    }
}

/// The condition under which a slope is 0, since its branch wasn't taken.
#[derive(Clone, Copy, PartialEq)]
enum Off {
    Never,
    Where(Id),
    Always,
}

impl Off {
    fn of(slope: Option<Slope>) -> Off {
        match slope {
            None => Off::Always,
            Some(Slope { off: None, .. }) => Off::Never,
            Some(Slope { off: Some(off), .. }) => Off::Where(off),
        }
    }
}

impl Differentiator {
    /// Returns `where(off, 0.0, value)`.
    pub(super) fn settled(&mut self, slope: Slope) -> Id {
        let Some(off) = slope.off else { return slope.value };
        let zero = float(&mut self.g, 0.0);
        match *self.g.node(off) {
            Node::Unary(Unary::Not, on) => choose(&mut self.g, on, slope.value, zero),
            _ => choose(&mut self.g, off, zero, slope.value),
        }
    }

    pub(super) fn settled_or_zero(&mut self, slope: Option<Slope>) -> Id {
        match slope {
            Some(slope) => self.settled(slope),
            None => float(&mut self.g, 0.0),
        }
    }

    /// Returns `factor * slope`.
    pub(super) fn scaled(&mut self, factor: Id, slope: Slope) -> Slope {
        Slope { value: self.product(factor, slope.value), ..slope }
    }

    /// Returns `slope * factor`, in this order.
    pub(super) fn scaled_by(&mut self, slope: Slope, factor: Id) -> Slope {
        Slope { value: self.product(slope.value, factor), ..slope }
    }

    /// Returns `slope / divisor`.
    pub(super) fn divided(&mut self, slope: Slope, divisor: Id) -> Slope {
        Slope { value: div(&mut self.g, slope.value, divisor), ..slope }
    }

    pub(super) fn negative(&mut self, slope: Slope) -> Slope {
        Slope { value: unary(&mut self.g, Unary::Neg, slope.value), ..slope }
    }

    pub(super) fn sum(&mut self, a: Option<Slope>, b: Option<Slope>) -> Option<Slope> {
        match (a, b) {
            (Some(a), Some(b)) => {
                let (a, b, off) = self.addends(a, b);
                Some(Slope { value: add(&mut self.g, a, b), off })
            }
            (a, b) => a.or(b),
        }
    }

    pub(super) fn difference(&mut self, a: Option<Slope>, b: Option<Slope>) -> Option<Slope> {
        match (a, b) {
            (Some(a), Some(b)) => {
                let (a, b, off) = self.addends(a, b);
                Some(Slope { value: sub(&mut self.g, a, b), off })
            }
            (None, Some(b)) => Some(self.negative(b)),
            (a, None) => a,
        }
    }

    /// Returns the values of two slopes to be added, and the condition under which both are off.
    fn addends(&mut self, a: Slope, b: Slope) -> (Id, Id, Option<Id>) {
        if a.off == b.off {
            return (a.value, b.value, a.off);
        }
        let off = match (a.off, b.off) {
            (Some(a), Some(b)) => Some(binary(&mut self.g, Binary::And, a, b)),
            _ => None,
        };
        (self.settled(a), self.settled(b), off)
    }

    /// Returns the slope of the branch that a condition selects; a missing one is 0.
    pub(super) fn choice(
        &mut self,
        condition: Id,
        a: Option<Slope>,
        b: Option<Slope>,
    ) -> Option<Slope> {
        let value = match (a, b) {
            (Some(a), Some(b)) if a.value == b.value => a.value,
            (Some(a), Some(b)) => choose(&mut self.g, condition, a.value, b.value),
            (a, b) => a.or(b)?.value,
        };
        let off = match (Off::of(a), Off::of(b)) {
            (a, b) if a == b => match a {
                Off::Where(off) => Some(off),
                _ => None,
            },
            (Off::Where(a), Off::Where(b)) => Some(choose(&mut self.g, condition, a, b)),
            (a, Off::Never) => Some(self.combined(Binary::And, condition, a)),
            (a, Off::Always) => {
                let other = unary(&mut self.g, Unary::Not, condition);
                Some(self.combined(Binary::Or, other, a))
            }
            (Off::Never, b) => {
                let other = unary(&mut self.g, Unary::Not, condition);
                Some(self.combined(Binary::And, other, b))
            }
            (Off::Always, b) => Some(self.combined(Binary::Or, condition, b)),
        };
        Some(Slope { value, off })
    }

    /// Returns a condition combined by and (or) with the `off` of a slope; the condition alone if
    /// that is always (never) true.
    fn combined(&mut self, op: Binary, condition: Id, off: Off) -> Id {
        match off {
            Off::Where(off) => binary(&mut self.g, op, condition, off),
            Off::Never | Off::Always => condition,
        }
    }
}
