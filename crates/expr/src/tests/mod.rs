//! Helpers of the unit tests: random expressions, and their values by a naive evaluator.

pub(crate) mod random;
pub(crate) mod reference;
