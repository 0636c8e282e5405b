//! Operators with their levels, and the entries of the parser's stack.

use keyfold_core::DType;

use crate::functions::Function;
use crate::graph::{Binary, Id};

/// The precedence of an operator, loosest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Level {
    /// An open bracket, below every operator.
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

/// An operator between two operands.
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

/// Returns the operator of a sign or a keyword.
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

/// Returns the sign of a binary operation; `None` for `min` and `max`, which are calls.
pub(crate) fn sign(op: Binary) -> Option<(&'static str, Level)> {
    SIGNS.iter().find(|(_, known, _)| *known == op).map(|(sign, _, level)| (*sign, *level))
}

/// An operator before an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Prefix {
    Minus,
    Plus,
    Invert,
    Not,
}

/// The construct that an open bracket belongs to.
#[derive(Clone, Copy)]
pub(super) enum Open {
    /// Grouping.
    Group,
    Call(&'static Function),
    Cast(DType),
    /// `index(`
    Coordinate,
    /// `table[`, for an input.
    Read(u32),
}

/// A pending entry: an operator without its right operand, or an open bracket.
#[derive(Clone, Copy)]
pub(super) enum Pending {
    Prefix(Prefix),
    Infix(Infix, Level),
    /// A comparison, and the conjunction of earlier ones in its chain.
    Comparison(Binary, Option<Id>),
    If,
    Else,
    Open {
        what: Open,
        /// The number of complete operands below it.
        below: usize,
    },
}

/// A [`Pending`] and its position in the text.
#[derive(Clone, Copy)]
pub(super) struct StackEntry {
    pub(super) waiting: Pending,
    pub(super) at: usize,
}

impl StackEntry {
    pub(super) fn level(&self) -> Level {
        match self.waiting {
            Pending::Prefix(Prefix::Not) => Level::Not,
            Pending::Prefix(_) => Level::Sign,
            Pending::Infix(_, level) => level,
            Pending::Comparison(..) => Level::Comparison,
            Pending::If | Pending::Else => Level::Choice,
            Pending::Open { .. } => Level::Bracket,
        }
    }
}
