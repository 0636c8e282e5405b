//! A cache of an expression's compiled forms, by dtypes.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use keyfold_core::{DType, DTypeKind, Result, Scalar};
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use crate::{Expr, Lowered};

/// The key of an entry.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    inputs: SmallVec<[DType; 4]>,
    params: SmallVec<[DTypeKind; 4]>,
    out: Option<DType>,
}

/// The most entries besides the first ones; above, all of these are dropped and compiled again when
/// needed.
const CAPACITY: usize = 256;

/// The number of entries that are found without a lock.
const LOCK_FREE: usize = 16;

/// An expression and its compiled forms for the dtypes it was called with: programs of an
/// evaluator, or kernels of a device. Each is compiled once.
///
/// ```
/// use keyfold_core::DType;
/// use keyfold_expr::{Expr, Specialized};
///
/// let steps = Specialized::new(Expr::parse("x * exp(y)")?);
/// let of_floats = steps.get(&[DType::F32; 2], &[], None, |lowered| Ok(lowered.steps().len()))?;
/// let again = steps.get(&[DType::F32; 2], &[], None, |_| unreachable!("it is there"))?;
/// assert_eq!(of_floats, again);
/// # Ok::<(), keyfold_core::Error>(())
/// ```
pub struct Specialized<T> {
    expr: Arc<Expr>,
    /// The first entries, by their packed dtypes; filled in order.
    first: [OnceLock<(u64, Arc<T>)>; LOCK_FREE],
    /// The other entries.
    more: RwLock<HashMap<Key, Arc<T>, FxBuildHasher>>,
}

impl<T> Specialized<T> {
    /// Returns an empty cache.
    pub fn new(expr: impl Into<Arc<Expr>>) -> Specialized<T> {
        Specialized {
            expr: expr.into(),
            first: [const { OnceLock::new() }; LOCK_FREE],
            more: RwLock::new(HashMap::with_hasher(FxBuildHasher)),
        }
    }

    /// Returns the expression.
    pub fn expr(&self) -> &Arc<Expr> {
        &self.expr
    }

    /// Returns the compiled form for inputs of these dtypes, numbers of these kinds, and a result
    /// of dtype `out` or the default; `make` compiles the steps.
    ///
    /// # Errors
    /// As [`Lowered::new`], and the error of `make`; nothing is stored then.
    #[inline]
    pub fn get(
        &self,
        inputs: &[DType],
        params: &[Scalar],
        out: Option<DType>,
        make: impl FnOnce(Lowered) -> Result<T>,
    ) -> Result<Arc<T>> {
        let key = pack(inputs, params, out);
        if let Some(key) = key {
            for (known, made) in self.first.iter().map_while(OnceLock::get) {
                if *known == key {
                    return Ok(made.clone());
                }
            }
        }
        self.search(key, inputs, params, out, make)
    }

    /// Checks that no integer is raised to a power that is negative for these numbers.
    ///
    /// # Errors
    /// [`ErrorKind::Value`](keyfold_core::ErrorKind), and as [`Lowered::new`].
    pub fn check_powers(&self, inputs: &[DType], params: &[Scalar]) -> Result<()> {
        let kinds: SmallVec<[DTypeKind; 4]> = params.iter().map(|n| kind_of(*n)).collect();
        Lowered::new(&self.expr.with_integer_params(params), inputs, &kinds, None).map(|_| ())
    }

    #[cold]
    fn search(
        &self,
        key: Option<u64>,
        inputs: &[DType],
        params: &[Scalar],
        out: Option<DType>,
        make: impl FnOnce(Lowered) -> Result<T>,
    ) -> Result<Arc<T>> {
        let kinds: SmallVec<[DTypeKind; 4]> = params.iter().map(|n| kind_of(*n)).collect();
        let wanted = Key { inputs: inputs.into(), params: kinds, out };
        if let Some(made) = self.more.read().unwrap_or_else(PoisonError::into_inner).get(&wanted) {
            return Ok(made.clone());
        }
        // Held during compilation, so that no other thread compiles the same.
        let mut more = self.more.write().unwrap_or_else(PoisonError::into_inner);
        let mut first = self.first.iter().map_while(OnceLock::get);
        if let Some((_, made)) = first.find(|(known, _)| Some(*known) == key) {
            return Ok(made.clone());
        }
        if let Some(made) = more.get(&wanted) {
            return Ok(made.clone());
        }
        let made = Arc::new(make(Lowered::new(&self.expr, inputs, &wanted.params, out)?)?);
        if let Some(key) = key {
            for slot in &self.first {
                if slot.set((key, made.clone())).is_ok() {
                    return Ok(made);
                }
            }
        }
        if more.len() >= CAPACITY {
            more.clear();
        }
        more.insert(wanted, made.clone());
        Ok(made)
    }
}

/// Returns the key as one number, for up to 8 inputs and 4 numbers.
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

/// Returns the kind that programs are compiled for, of a number that is a parameter: integers have one
/// kind, whatever their size.
pub fn kind_of(number: Scalar) -> DTypeKind {
    match number.kind() {
        DTypeKind::UInt => DTypeKind::Int,
        kind => kind,
    }
}
