//! An expression and the programs made of it.

use std::sync::Arc;

use keyfold_core::{DType, Result, Scalar};
use keyfold_expr::{Expr, Specialized};

use crate::eval::Program;

/// An expression, and its programs for the dtypes that it met: each is made once.
pub struct Compiled(Specialized<Program>);

impl Compiled {
    /// No program is made yet.
    pub const fn new(expr: Expr) -> Compiled {
        Compiled(Specialized::new(expr))
    }

    /// The expression.
    pub fn expr(&self) -> &Expr {
        self.0.expr()
    }

    /// The program for inputs of these dtypes, numbers of these kinds, and a result of dtype `out`
    /// or the one that follows.
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
