//! The evaluator against a naive interpreter.

mod calls;
mod cases;
mod naive;
mod ragged;
mod random;
mod samples;
