//! Expressions as text, which parses to an equal expression.
//!
//! Brackets are written only where the grammar needs them. A node with several uses that isn't
//! short is assigned to a name on a line of its own, so that the text's length is proportional to
//! the number of nodes.

use std::fmt::{self, Display, Formatter, Write};

use crate::functions;
use crate::graph::{Binary, Expr, Id, Literal, Node, Unary};
use crate::parse::{Level, sign};

/// The most characters of a node with several uses that is written inline.
const INLINE_LENGTH: usize = 12;

/// A pending piece of text.
enum Piece {
    Text(&'static str),
    /// A node, in brackets unless it binds at least this tightly.
    Node(Id, Level),
    /// The operand of a minus sign, with brackets around a number, which would become negative.
    Negated(Id),
}

/// Returns the function name of a unary operation.
pub(crate) fn unary_name(op: Unary) -> &'static str {
    match op {
        Unary::Neg => "-",
        op => op.name(),
    }
}

/// Returns the sign and level of a binary operation; for a call its name.
fn binary_sign(op: Binary) -> (&'static str, Level) {
    match op {
        Binary::Min => ("min", Level::Atom),
        Binary::Max => ("max", Level::Atom),
        op => sign(op).unwrap_or(("", Level::Atom)),
    }
}

fn is_negative(literal: Literal) -> bool {
    match literal {
        Literal::Bool(_) => false,
        Literal::Int(value) => value < 0,
        Literal::Float(bits) => {
            let value = f64::from_bits(bits);
            value.is_sign_negative() && !value.is_nan()
        }
    }
}

fn level(node: &Node) -> Level {
    match node {
        Node::Literal(literal) if is_negative(*literal) => Level::Sign,
        Node::Unary(Unary::Neg | Unary::Not, _) => Level::Sign,
        Node::Binary(op, ..) => binary_sign(*op).1,
        _ => Level::Atom,
    }
}

/// Returns the next level: the lowest of an operand on the side that doesn't associate.
fn above(level: Level) -> Level {
    match level {
        Level::Comparison => Level::BitOr,
        Level::BitOr => Level::BitXor,
        Level::BitXor => Level::BitAnd,
        Level::BitAnd => Level::Shift,
        Level::Shift => Level::Sum,
        Level::Sum => Level::Product,
        Level::Product => Level::Sign,
        _ => Level::Atom,
    }
}

/// The layout of a text: which nodes have names.
struct Text<'e> {
    expr: &'e Expr,
    names: Vec<Option<String>>,
}

impl<'e> Text<'e> {
    fn new(expr: &'e Expr) -> Text<'e> {
        let nodes = expr.nodes();
        let mut uses = vec![0usize; nodes.len()];
        for node in nodes {
            node.operands(|id| uses[id.index()] += 1);
        }
        let mut text = Text { expr, names: vec![None; nodes.len()] };
        let mut lengths = vec![0usize; nodes.len()];
        let mut number = 0;
        for (at, node) in nodes.iter().enumerate() {
            let mut length = text.own_length(node);
            node.operands(|id| length = length.saturating_add(lengths[id.index()] + 3));
            lengths[at] = length;
            let leaf = matches!(
                node,
                Node::Literal(_)
                    | Node::Input(_)
                    | Node::Param(_)
                    | Node::Index
                    | Node::Coordinate(_)
            );
            if uses[at] > 1 && length > INLINE_LENGTH && !leaf {
                let name = text.unused_name(&mut number);
                lengths[at] = name.len();
                text.names[at] = Some(name);
            }
        }
        text
    }

    /// Returns the approximate number of characters of a node without its operands.
    fn own_length(&self, node: &Node) -> usize {
        match node {
            Node::Literal(_) => 4,
            Node::Input(at) | Node::At { input: at, .. } => {
                self.expr.inputs()[*at as usize].name.len()
            }
            Node::Param(at) => self.expr.params()[*at as usize].len(),
            Node::Unary(op, _) => unary_name(*op).len(),
            Node::Binary(op, ..) => binary_sign(*op).0.len(),
            Node::Index | Node::Coordinate(_) | Node::Where(..) => 5,
            Node::Cast(dtype, _) => dtype.name().len(),
        }
    }

    /// Returns an unused name.
    fn unused_name(&self, number: &mut usize) -> String {
        loop {
            let name = format!("t{number}");
            *number += 1;
            let input = self.expr.inputs().iter().any(|input| input.name == name);
            if !input && !self.expr.params().contains(&name) && functions::find(&name).is_none() {
                return name;
            }
        }
    }

    fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let root = self.expr.root();
        let named = (0..self.names.len()).map(|at| Id(at as u32)).filter(|id| *id != root);
        for id in named {
            if let Some(name) = &self.names[id.index()] {
                write!(f, "{name} = ")?;
                self.value(f, id)?;
                f.write_str("; ")?;
            }
        }
        self.value(f, root)
    }

    /// Writes a node with all operands, except for those with names.
    fn value(&self, f: &mut Formatter<'_>, id: Id) -> fmt::Result {
        let mut pieces = Vec::new();
        self.node(f, id, &mut pieces)?;
        while let Some(piece) = pieces.pop() {
            let (id, least, negated) = match piece {
                Piece::Text(text) => {
                    f.write_str(text)?;
                    continue;
                }
                Piece::Node(id, least) => (id, least, false),
                Piece::Negated(id) => (id, Level::Sign, true),
            };
            let node = &self.expr.nodes()[id.index()];
            let number = matches!(node, Node::Literal(literal) if is_number(*literal));
            if let Some(name) = &self.names[id.index()] {
                f.write_str(name)?;
            } else if level(node) < least || (negated && number) {
                f.write_char('(')?;
                pieces.push(Piece::Text(")"));
                self.node(f, id, &mut pieces)?;
            } else {
                self.node(f, id, &mut pieces)?;
            }
        }
        Ok(())
    }

    /// Writes the beginning of a node, and pushes the rest onto the stack.
    fn node(&self, f: &mut Formatter<'_>, id: Id, pieces: &mut Vec<Piece>) -> fmt::Result {
        let whole = |id: &Id| Piece::Node(*id, Level::Bracket);
        match &self.expr.nodes()[id.index()] {
            Node::Literal(Literal::Bool(true)) => f.write_str("True"),
            Node::Literal(Literal::Bool(false)) => f.write_str("False"),
            Node::Literal(Literal::Int(value)) => write!(f, "{value}"),
            Node::Literal(Literal::Float(bits)) => match f64::from_bits(*bits) {
                value if value.is_nan() => f.write_str("nan"),
                value => write!(f, "{value:?}"),
            },
            Node::Input(at) => f.write_str(&self.expr.inputs()[*at as usize].name),
            Node::Param(at) => f.write_str(&self.expr.params()[*at as usize]),
            Node::Index => f.write_str("index"),
            Node::Coordinate(dimension) => write!(f, "index({dimension})"),
            Node::At { input, indices } => {
                f.write_str(&self.expr.inputs()[*input as usize].name)?;
                f.write_char('[')?;
                pieces.push(Piece::Text("]"));
                call(pieces, indices.iter().map(whole));
                Ok(())
            }
            Node::Unary(Unary::Neg, a) => {
                pieces.push(Piece::Negated(*a));
                f.write_char('-')
            }
            Node::Unary(Unary::Not, a) => {
                pieces.push(Piece::Node(*a, Level::Sign));
                f.write_char('~')
            }
            Node::Unary(op, a) => {
                write!(f, "{}(", unary_name(*op))?;
                pieces.push(Piece::Text(")"));
                pieces.push(whole(a));
                Ok(())
            }
            Node::Cast(dtype, a) => {
                write!(f, "{dtype}(")?;
                pieces.push(Piece::Text(")"));
                pieces.push(whole(a));
                Ok(())
            }
            Node::Where(condition, a, b) => {
                f.write_str("where(")?;
                pieces.push(Piece::Text(")"));
                call(pieces, [condition, a, b].into_iter().map(whole));
                Ok(())
            }
            Node::Binary(op @ (Binary::Min | Binary::Max), a, b) => {
                write!(f, "{}(", binary_sign(*op).0)?;
                pieces.push(Piece::Text(")"));
                call(pieces, [a, b].into_iter().map(whole));
                Ok(())
            }
            Node::Binary(op, a, b) => {
                let (sign, level) = binary_sign(*op);
                let (left, right) = match level {
                    Level::Power => (Level::Atom, Level::Sign),
                    // Without brackets it would be a chained comparison.
                    Level::Comparison => (above(level), above(level)),
                    _ => (level, above(level)),
                };
                pieces.push(Piece::Node(*b, right));
                pieces.push(Piece::Text(" "));
                pieces.push(Piece::Text(sign));
                pieces.push(Piece::Text(" "));
                pieces.push(Piece::Node(*a, left));
                Ok(())
            }
        }
    }
}

fn is_number(literal: Literal) -> bool {
    match literal {
        Literal::Bool(_) => false,
        Literal::Int(value) => value >= 0,
        Literal::Float(bits) => !f64::from_bits(bits).is_nan() && !is_negative(literal),
    }
}

/// Pushes operands with commas between them onto the stack, the first on top.
fn call(pieces: &mut Vec<Piece>, operands: impl DoubleEndedIterator<Item = Piece>) {
    for (at, operand) in operands.rev().enumerate() {
        if at > 0 {
            pieces.push(Piece::Text(", "));
        }
        pieces.push(operand);
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Text::new(self).write(f)
    }
}
