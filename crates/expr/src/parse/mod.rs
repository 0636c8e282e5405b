//! Expressions from text.
//!
//! An operator-precedence parser with its own stacks (Dijkstra's shunting yard): no nesting is too
//! deep for it, and its memory is in proportion to the text.

mod complete;
mod infix;
mod lex;
mod missing;
mod names;
mod operand;
mod operators;
mod parser;

#[cfg(test)]
mod meanings;
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod properties;
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
    /// The expression that a text says; `docs/expressions.md` has the language. Every name that
    /// nothing is called by becomes an input, in order of first appearance: ranked if it is written
    /// with square brackets, else elementwise.
    ///
    /// ```
    /// use keyfold_expr::Expr;
    ///
    /// let expr = Expr::parse("t = exp(x); t / (1 + t)").unwrap();
    /// assert_eq!(expr.inputs().len(), 1);
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Expression`] with the line and a caret under the place.
    pub fn parse(text: &str) -> Result<Expr> {
        parse(text, None)
    }

    /// As [`Expr::parse`], with inputs and parameters by these names and no others; those that the
    /// text doesn't use stay in the lists.
    ///
    /// # Errors
    /// As [`Expr::parse`], and [`ErrorKind::Value`] for names that can't be used: no names at all,
    /// words of the language, the same one twice.
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
    let scope = names::Scope::new(names)?;
    if text.len() > MAX_TEXT {
        let message =
            format!("expression: the text has {} bytes; at most {MAX_TEXT} are read", text.len());
        return Err(Error::new(ErrorKind::Expression, message));
    }
    Parser::new(text, scope)
        .run()
        .map_err(|failure| failure.into_error(ErrorKind::Expression, "expression", text))
}
