//! Hand-written vector-Jacobian products of expressions, where they are cheaper than the symbolic ones: they
//! read the result, or call fewer operators.

pub(super) mod binary;
pub(super) mod complex;
pub(super) mod unary_pow;
pub(super) mod where_min_max;
