//! An expression and the programs compiled from it.

use std::sync::Arc;

use keyfold_core::{DType, Result, Scalar};
use keyfold_expr::{Expr, Specialized};

use crate::interpreter::Program;

/// An expression, with a program for each combination of dtypes that it was called with; each is
/// compiled once.
pub struct Compiled(Specialized<Program>);

impl Compiled {
    /// Holds the expression; no program is compiled yet.
    pub fn new(expr: Expr) -> Compiled {
        Compiled(Specialized::new(expr))
    }

    /// The expression.
    pub fn expr(&self) -> &Expr {
        self.0.expr()
    }

    /// Returns the program for inputs of these dtypes, parameters of these kinds, and a result of dtype
    /// `out` or, if that is `None`, of the inferred dtype.
    ///
    /// # Errors
    /// As [`keyfold_expr::Lowered::new`].
    pub fn program(
        &self,
        inputs: &[DType],
        params: &[Scalar],
        out: Option<DType>,
    ) -> Result<Arc<Program>> {
        self.0.get(inputs, params, out, |lowered| Program::new(&lowered))
    }
}
