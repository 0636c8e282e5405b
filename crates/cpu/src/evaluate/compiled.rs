//! An expression and the programs made of it.

use std::sync::{Arc, RwLock};

use keyfold_core::{DType, DTypeKind, Result, Scalar};
use keyfold_expr::eval::Program;
use keyfold_expr::{Expr, Lowered};
use smallvec::SmallVec;

/// What a program is made for.
struct Entry {
    inputs: SmallVec<[DType; 4]>,
    params: SmallVec<[DTypeKind; 4]>,
    out: Option<DType>,
    program: Arc<Program>,
}

/// An expression, and its programs for the dtypes that it met: each is made once.
pub struct Compiled {
    expr: Expr,
    known: RwLock<Vec<Entry>>,
}

impl Compiled {
    /// No program is made yet.
    pub const fn new(expr: Expr) -> Compiled {
        Compiled { expr, known: RwLock::new(Vec::new()) }
    }

    /// The expression.
    pub fn expr(&self) -> &Expr {
        &self.expr
    }

    /// The program for inputs of these dtypes, numbers of these kinds, and a result of dtype `out`
    /// or the one that follows.
    ///
    /// # Errors
    /// As [`Lowered::new`].
    pub fn program(
        &self,
        inputs: &[DType],
        params: &[Scalar],
        out: Option<DType>,
    ) -> Result<Arc<Program>> {
        let known = self.known.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        for entry in known.iter() {
            if entry.out == out
                && entry.inputs[..] == *inputs
                && entry.params.len() == params.len()
                && entry.params.iter().zip(params).all(|(kind, number)| *kind == kind_of(*number))
            {
                return Ok(entry.program.clone());
            }
        }
        drop(known);
        self.make(inputs, params, out)
    }

    #[cold]
    fn make(
        &self,
        inputs: &[DType],
        params: &[Scalar],
        out: Option<DType>,
    ) -> Result<Arc<Program>> {
        let params: SmallVec<[DTypeKind; 4]> = params.iter().map(|n| kind_of(*n)).collect();
        let lowered = Lowered::new(&self.expr, inputs, &params, out)?;
        let program = Arc::new(Program::new(&lowered));
        let entry = Entry { inputs: inputs.into(), params, out, program: program.clone() };
        self.known.write().unwrap_or_else(std::sync::PoisonError::into_inner).push(entry);
        Ok(program)
    }
}

/// The kind of a number; whole numbers are of one kind, whatever their size.
fn kind_of(number: Scalar) -> DTypeKind {
    match number.kind() {
        DTypeKind::UInt => DTypeKind::Int,
        kind => kind,
    }
}
