//! Tests of the parser, the printer and the binding of arguments.

mod mistakes;
mod properties;
