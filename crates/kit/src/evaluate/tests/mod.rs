//! The evaluator against a naive interpreter.

mod calls;
mod cases;
mod fused;
mod naive;
mod non_temporal;
mod random;
mod samples;
