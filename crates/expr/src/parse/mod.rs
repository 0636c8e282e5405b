//! The parser of expressions.
//!
//! An operator-precedence parser with explicit stacks (Dijkstra's shunting yard): nesting depth is
//! unlimited, and memory is proportional to the text.

mod complete;
mod infix;
mod lex;
mod missing;
mod names;
mod operand;
mod operators;
mod parser;

#[cfg(test)]
mod tests;

use std::str::FromStr;

use keyfold_core::{Error, ErrorKind, Result};

pub use names::Names;
pub(crate) use names::refuse_name;
pub(crate) use operators::{Level, sign};
use parser::Parser;

use crate::graph::Expr;

/// The longest text that is parsed, in bytes.
pub const MAX_TEXT: usize = 16 << 20;

/// The most nodes that a parsed expression may have.
pub const MAX_NODES: usize = 1_000_000;

impl Expr {
    /// Parses an expression; `docs/expressions.md` describes the language. Every undefined name
    /// becomes an input, in order of first use: ranked if followed by square brackets, else
    /// elementwise.
    ///
    /// ```
    /// use keyfold_expr::Expr;
    ///
    /// let expr = Expr::parse("t = exp(x); t / (1 + t)").unwrap();
    /// assert_eq!(expr.inputs().len(), 1);
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Expression`] with the line and a caret under the position.
    pub fn parse(text: &str) -> Result<Expr> {
        parse(text, None)
    }

    /// As [`Expr::parse`], with exactly these inputs and parameters; unused ones stay in the lists.
    ///
    /// # Errors
    /// As [`Expr::parse`], and [`ErrorKind::Value`] for invalid names: not an identifier, a
    /// keyword, a duplicate.
    pub fn parse_with(text: &str, names: &Names) -> Result<Expr> {
        parse(text, Some(names))
    }
}

impl FromStr for Expr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Expr> {
        Expr::parse(text)
    }
}

fn parse(text: &str, names: Option<&Names>) -> Result<Expr> {
    let scope = names::NameScope::new(names)?;
    if text.len() > MAX_TEXT {
        let message =
            format!("expression: the text has {} bytes; at most {MAX_TEXT} are read", text.len());
        return Err(Error::new(ErrorKind::Expression, message));
    }
    Parser::new(text, scope)
        .run()
        .map_err(|failure| failure.into_error(ErrorKind::Expression, "expression", text))
}
