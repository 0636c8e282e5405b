//! The evaluator against a naive interpreter.

mod calls;
mod cases;
mod naive;
mod random;
mod samples;
