//! Derivatives of operators that are expressions, where a formula does better than the symbolic one: it
//! reads the result, or calls fewer operators.

pub(super) mod arithmetic;
pub(super) mod choice;
pub(super) mod complex;
pub(super) mod functions;
