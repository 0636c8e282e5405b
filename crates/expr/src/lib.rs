//! Scalar expressions: one language for four uses.
//!
//! An expression computes one element of a result. Its uses are CPU kernels, CUDA C and OpenCL C,
//! symbolic derivatives for Autograd, and fusion. This crate has the language: the parser, the
//! builder, types, derivatives, simplification, and the emitter of source text ([`source`]). Code
//! for a device is made from [`Lowered`], the steps of an expression in one dtype each: by the
//! emitter here, and by the CPU's evaluator in `keyfold-kit`.
//!
//! ```
//! use keyfold_core::DType;
//! use keyfold_expr::source::{self, Options};
//! use keyfold_expr::{Expr, Lowered};
//!
//! let expr = Expr::parse("x * exp(y)")?;
//! assert_eq!(expr.derivative(0)?.to_string(), "exp(y)");
//!
//! let lowered = Lowered::new(&expr, &[DType::F32, DType::F64], &[], None)?;
//! assert_eq!(lowered.result(), DType::F64);
//! assert!(source::emit(&lowered, &Options::new(&expr))?.text.contains("exp(y_value)"));
//! # Ok::<(), keyfold_core::Error>(())
//! ```

#![forbid(unsafe_code)]

mod build;
pub mod coefficients;
mod derive;
mod derived_functions;
mod display;
mod fold;
mod functions;
pub mod fuse;
mod graph;
mod lower;
mod parse;
mod simplify;
pub mod source;
mod specialized;
#[cfg(test)]
mod tests;

pub use build::{Builder, Ranked, Term, TermOperand};
pub use derive::{ComplexGradient, Variable};
pub use functions::functions;
pub use graph::{Binary, Expr, Graph, Id, Input, Literal, Node, Unary};
pub use lower::{Lowered, Signature, Step, StepId, StepOp, computed, undefined};
pub use parse::{MAX_NODES, MAX_TEXT, Names};
pub use specialized::{Specialized, kind_of};

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
