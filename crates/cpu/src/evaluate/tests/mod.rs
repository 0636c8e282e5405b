//! The evaluator against a naive interpreter.

mod cases;
mod naive;
mod random;
