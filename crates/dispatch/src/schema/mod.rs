//! An operator's schema: its name, arguments, defaults and returns, as text and as data.
//!
//! The grammar is PyTorch's:
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
//! [`Schema::parse`] parses it, with errors that point at the column; `Display` prints the
//! canonical text, which parses to an equal schema; [`Schema::bind`] matches a call's positional
//! arguments and keywords to the declared ones, by Python's rules and with Python's messages.
//!
//! Blanks may separate any two tokens, except inside the operator's name. Names have at most 255
//! characters, lists of fixed size at most 1024 elements.
//!
//! The parser is written by hand: the grammar has no recursion (a list contains no lists), and most
//! of the code is precise messages, which a generated parser would need as well.

mod bind;
mod check;
mod parse;
mod print;
mod scan;
#[cfg(test)]
mod tests;
mod types;

pub use bind::ArgumentSource;
pub use types::{Alias, Argument, Literal, OperatorName, Return, Schema, Type};
