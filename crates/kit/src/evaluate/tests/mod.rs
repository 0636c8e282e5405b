//! The evaluator against a naive interpreter.

mod calls;
mod cases;
mod naive;
mod non_temporal;
mod random;
mod samples;
