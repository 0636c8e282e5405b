//! Scalar expressions: one small language, four uses.
//!
//! An expression says what one element of a result is. From it come a kernel for the CPU (a blocked
//! SIMD evaluator), CUDA C, the symbolic derivative that Autograd uses, and fusion.

mod build;
mod compose;
pub mod cuda;
mod derive;
mod display;
pub mod eval;
mod fold;
mod functions;
mod graph;
pub mod half;
pub mod isa;
mod lower;
pub mod math;
mod parse;
#[cfg(test)]
mod random;
#[cfg(test)]
mod reference;
mod simplify;

pub use build::{Builder, Operand, Ranked, Term};
pub use derive::{ComplexGradient, Variable};
pub use graph::{Binary, Expr, Graph, Id, Input, Literal, Node, Unary};
pub use lower::{Lowered, Step, StepId, StepOp, computed};
pub use parse::{MAX_NODES, MAX_TEXT, Names};

use keyfold_core::DType;

/// The names of the dtypes.
const DTYPES: [&str; DType::ALL.len()] = {
    let mut names = [""; DType::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = DType::ALL[at].name();
        at += 1;
    }
    names
};
