//! An expression and the programs made of it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use keyfold_core::{DType, DTypeKind, Result, Scalar};
use keyfold_expr::{Expr, Lowered};
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use crate::eval::Program;

/// What a program is made for.
#[derive(PartialEq, Eq, Hash)]
struct Wanted {
    inputs: SmallVec<[DType; 4]>,
    params: SmallVec<[DTypeKind; 4]>,
    out: Option<DType>,
}

/// How many programs are kept beside the first ones; then all are forgotten, and made again when
/// they are needed.
const MOST: usize = 256;

/// Programs that are found without a lock.
const FIRST: usize = 16;

/// An expression, and its programs for the dtypes that it met: each is made once.
pub struct Compiled {
    expr: Expr,
    /// The first ones, by their packed dtypes; filled from the start.
    first: [OnceLock<(u64, Arc<Program>)>; FIRST],
    /// The others.
    more: RwLock<HashMap<Wanted, Arc<Program>, FxBuildHasher>>,
}

impl Compiled {
    /// No program is made yet.
    pub const fn new(expr: Expr) -> Compiled {
        Compiled {
            expr,
            first: [const { OnceLock::new() }; FIRST],
            more: RwLock::new(HashMap::with_hasher(FxBuildHasher)),
        }
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
    #[inline]
    pub fn program(
        &self,
        inputs: &[DType],
        params: &[Scalar],
        out: Option<DType>,
    ) -> Result<Arc<Program>> {
        let key = pack(inputs, params, out);
        if let Some(key) = key {
            for (known, program) in self.first.iter().map_while(OnceLock::get) {
                if *known == key {
                    return Ok(program.clone());
                }
            }
        }
        self.search(key, inputs, params, out)
    }

    #[cold]
    fn search(
        &self,
        key: Option<u64>,
        inputs: &[DType],
        params: &[Scalar],
        out: Option<DType>,
    ) -> Result<Arc<Program>> {
        let kinds: SmallVec<[DTypeKind; 4]> = params.iter().map(|n| kind_of(*n)).collect();
        let wanted = Wanted { inputs: inputs.into(), params: kinds, out };
        if let Some(program) = self.more.read().unwrap_or_else(PoisonError::into_inner).get(&wanted)
        {
            return Ok(program.clone());
        }
        // Held to the end, so that nobody else makes the same.
        let mut more = self.more.write().unwrap_or_else(PoisonError::into_inner);
        let mut first = self.first.iter().map_while(OnceLock::get);
        if let Some((_, program)) = first.find(|(known, _)| Some(*known) == key) {
            return Ok(program.clone());
        }
        if let Some(program) = more.get(&wanted) {
            return Ok(program.clone());
        }
        let lowered = Lowered::new(&self.expr, inputs, &wanted.params, out)?;
        let program = Arc::new(Program::new(&lowered)?);
        if let Some(key) = key {
            for slot in &self.first {
                if slot.set((key, program.clone())).is_ok() {
                    return Ok(program);
                }
            }
        }
        if more.len() >= MOST {
            more.clear();
        }
        more.insert(wanted, program.clone());
        Ok(program)
    }
}

/// What a program is made for as one number, for up to 8 inputs and 4 numbers.
#[inline]
fn pack(inputs: &[DType], params: &[Scalar], out: Option<DType>) -> Option<u64> {
    if inputs.len() > 8 || params.len() > 4 {
        return None;
    }
    let mut key = (inputs.len() * 5 + params.len()) as u64;
    key = key << 5 | out.map_or(0, |dtype| dtype as u64 + 1);
    for number in params {
        key = key << 3 | kind_of(*number) as u64;
    }
    for dtype in inputs {
        key = key << 4 | *dtype as u64;
    }
    Some(key)
}

/// The kind of a number; whole numbers are of one kind, whatever their size.
fn kind_of(number: Scalar) -> DTypeKind {
    match number.kind() {
        DTypeKind::UInt => DTypeKind::Int,
        kind => kind,
    }
}
