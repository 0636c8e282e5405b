//! Python's operators on two operands. Which row each of them calls follows from the rows' expressions.

use keyfold_dispatch::schema::Type;

use crate::row::{Gradient, Row, Rule};

/// Python's operators on two operands that the language of expressions has, too.
const SIGNS: [&str; 18] = [
    "+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "==", "!=", "<", "<=", ">",
    ">=",
];

/// One of Python's operators on a tensor and another operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    /// As Python writes it.
    pub text: &'static str,
    /// Whether the other operand is a number, and no tensor.
    pub takes_number: bool,
    /// Whether the tensor, the row's argument `self`, is the right operand.
    pub is_reflected: bool,
    /// Whether the derivative reads the elements of the tensor, so an operator in place must not replace them.
    pub saves_self: bool,
}

impl Row {
    /// The operator of Python's that the row computes: its expression is `self`, a sign and the other
    /// argument, or the same the other way round.
    pub fn sign(&self) -> Option<Sign> {
        let expression = self.expression()?.expr().to_string();
        let words: Vec<&str> = expression.split(' ').collect();
        let ([own, other], [left, sign, right]) = (&self.schema().arguments[..], &words[..]) else {
            return None;
        };
        let text = *SIGNS.iter().find(|text| *text == sign)?;
        let is_reflected = [*left, *right] == [&other.name, &own.name];
        if !is_reflected && [*left, *right] != [&own.name, &other.name] {
            return None;
        }
        let saves_self = match self.layers().derivative {
            Rule::Given(Gradient::Formula(saves, _)) => saves.iter().any(|each| each.reads(0)),
            Rule::Given(Gradient::Several(..) | Gradient::Other(_)) | Rule::Derived => true,
            Rule::Given(Gradient::Detach) | Rule::Refused(_) => false,
        };
        Some(Sign { text, takes_number: other.ty != Type::Tensor, is_reflected, saves_self })
    }
}
