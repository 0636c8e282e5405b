//! Operators: how tightly each binds, and what waits on the parser's stack.

use keyfold_core::DType;

use crate::functions::Function;
use crate::graph::{Binary, Id};

/// How tightly an operator binds, from the loosest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Level {
    /// An open bracket: nothing reaches beyond it.
    Bracket,
    Choice,
    Or,
    And,
    Not,
    Comparison,
    BitOr,
    BitXor,
    BitAnd,
    Shift,
    Sum,
    Product,
    Sign,
    Power,
    /// Names, numbers, calls.
    Atom,
}

/// What is written between two operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Infix {
    Binary(Binary),
    And,
    Or,
}

/// The binary operators and their signs.
const SIGNS: [(&str, Binary, Level); 18] = [
    ("+", Binary::Add, Level::Sum),
    ("-", Binary::Sub, Level::Sum),
    ("*", Binary::Mul, Level::Product),
    ("/", Binary::Div, Level::Product),
    ("//", Binary::FloorDiv, Level::Product),
    ("%", Binary::Mod, Level::Product),
    ("**", Binary::Pow, Level::Power),
    ("==", Binary::Eq, Level::Comparison),
    ("!=", Binary::Ne, Level::Comparison),
    ("<", Binary::Lt, Level::Comparison),
    ("<=", Binary::Le, Level::Comparison),
    (">", Binary::Gt, Level::Comparison),
    (">=", Binary::Ge, Level::Comparison),
    ("&", Binary::And, Level::BitAnd),
    ("|", Binary::Or, Level::BitOr),
    ("^", Binary::Xor, Level::BitXor),
    ("<<", Binary::Shl, Level::Shift),
    (">>", Binary::Shr, Level::Shift),
];

/// The operator of a sign or a word.
pub(super) fn infix(written: &str) -> Option<(Infix, Level)> {
    match written {
        "and" => Some((Infix::And, Level::And)),
        "or" => Some((Infix::Or, Level::Or)),
        _ => {
            let row = SIGNS.iter().find(|(sign, ..)| *sign == written)?;
            Some((Infix::Binary(row.1), row.2))
        }
    }
}

/// How a binary operation is written; `min` and `max` are calls.
pub(crate) fn sign(op: Binary) -> Option<(&'static str, Level)> {
    SIGNS.iter().find(|(_, known, _)| *known == op).map(|(sign, _, level)| (*sign, *level))
}

/// What is written before an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Prefix {
    Minus,
    Plus,
    Invert,
    Not,
}

/// What an open bracket belongs to.
#[derive(Clone, Copy)]
pub(super) enum Open {
    /// Nothing: it groups.
    Group,
    Call(&'static Function),
    Cast(DType),
    /// `index(`
    Place,
    /// `table[`: an input.
    Read(u32),
}

/// What waits for its right operand, or for its closing bracket.
#[derive(Clone, Copy)]
pub(super) enum Waiting {
    Prefix(Prefix),
    Infix(Infix, Level),
    /// A comparison, and the comparisons before it in a chain.
    Comparison(Binary, Option<Id>),
    If,
    Else,
    Open {
        what: Open,
        /// Operands that were complete when it opened.
        below: usize,
    },
}

/// [`Waiting`] and where it is written.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) waiting: Waiting,
    pub(super) at: usize,
}

impl Entry {
    pub(super) fn level(&self) -> Level {
        match self.waiting {
            Waiting::Prefix(Prefix::Not) => Level::Not,
            Waiting::Prefix(_) => Level::Sign,
            Waiting::Infix(_, level) => level,
            Waiting::Comparison(..) => Level::Comparison,
            Waiting::If | Waiting::Else => Level::Choice,
            Waiting::Open { .. } => Level::Bracket,
        }
    }
}
