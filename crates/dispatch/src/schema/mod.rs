//! An operator's schema: its name, arguments, defaults and returns, as text and as data.
//!
//! The grammar is the one that the field writes its operators in:
//!
//! ```text
//! schema   = name "(" [arguments] ")" "->" returns
//! name     = [ident "::"] ident ["." ident]              ns::name.overload
//! arguments = argument {"," argument}                    "*" in place of one: keyword-only from here
//! argument = type ident ["=" literal]
//! type     = base [alias] {"?" | "[" [size] "]"}         Tensor(a!)? and int[2], Tensor?[], int[]?
//! alias    = "(" set ["!"] ["->" set] ")"                set = "*" | ident {"|" ident}
//! returns  = "(" [return {"," return}] ")" | return      return = type [ident]
//! literal  = "None" | "True" | "False" | number | string | ident | "[" [literal {"," literal}] "]"
//! ```
//!
//! [`Schema::parse`] reads it, with errors that point at the column; `Display` prints the canonical
//! text, which parses to an equal schema; [`Schema::bind`] matches a call's positional arguments
//! and keywords to the declared ones, by Python's rules and in Python's words.
//!
//! Blanks may stand between any two tokens, except inside the operator's name; names have at most
//! 255 characters, lists of fixed size at most 1024 elements.
//!
//! The parser is written by hand: the grammar has no recursion (a list holds no lists), and the
//! precise messages are most of the code whichever way the rest is written.

mod bind;
mod check;
#[cfg(test)]
mod mistakes;
mod parse;
mod print;
#[cfg(test)]
mod properties;
mod scan;
mod types;

pub use bind::Source;
pub use types::{Alias, Argument, Literal, OperatorName, Return, Schema, Type};
