//! Scalar expressions: one small language, four uses.
//!
//! An expression says what one element of a result is. From it come a kernel for the CPU (a blocked
//! SIMD evaluator), CUDA C, the symbolic derivative that Autograd uses, and fusion.

pub mod eval;
mod graph;
pub mod half;
pub mod isa;
mod lower;
pub mod math;

pub use graph::{Binary, Expr, Graph, Id, Input, Literal, Node, Unary};
pub use lower::{Lowered, Step, StepId, StepOp, computed};
