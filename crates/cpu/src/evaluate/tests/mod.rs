//! The evaluator against a naive interpreter.

mod naive;
mod random;
mod cases;
