//! Derivatives of operators that are expressions, where a formula does better than the symbolic one: it
//! reads the result, or calls fewer operators.

pub(super) mod binary;
pub(super) mod complex;
pub(super) mod unary_pow;
pub(super) mod where_min_max;
