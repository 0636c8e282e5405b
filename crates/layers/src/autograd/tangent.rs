//! Rules of forward mode: the tangents of an operator's results from the tangents of its operands.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{Operator, Override, Value as _};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::node::TensorMeta;
use crate::aten;

/// The tangents of one argument.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "one per argument, for the time of a call")]
pub enum Tangents {
    /// The argument is no tensor, or its tangent is zero.
    None,
    /// The tangent of a tensor.
    One(Tensor),
    /// The tangents of the items of a list; `None` for zero.
    Each(Vec<Option<Tensor>>),
}

/// A call and its tangents, which a rule of forward mode reads.
pub struct Forward<'c, 'a> {
    operator: &'c Operator<Value>,
    args: &'c [ValueRef<'a>],
    tangents: &'c [Tangents],
    results: &'c [Tensor],
}

/// A rule of forward mode: computes the tangents of an operator's results from the tangents of its operands
/// (the Jacobian-vector product).
pub trait Pushforward: Send + Sync {
    /// Returns one tangent per tensor among the results; `None` for zero. For an operator that writes to an
    /// argument, returns the tangent of that argument after the write; the rule is called before the write.
    ///
    /// # Errors
    /// Those of the operators that it calls.
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>>;
}

/// The rule of an operator with one result, as a plain function.
pub type Jvp = fn(&Forward<'_, '_>) -> Result<Option<Tensor>>;

impl Pushforward for Jvp {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![self(call)?])
    }
}

/// The rule of an operator that is linear in all its floating and complex tensors together: it calls the
/// operator with their tangents.
pub struct Linear;

impl Pushforward for Linear {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        let replaced = (0..call.args.len())
            .map(|at| match &call.tangents[at] {
                Tangents::None => zero_like(call.args[at]),
                Tangents::One(tangent) => Ok(Some(Value::Tensor(tangent.clone()))),
                Tangents::Each(items) => {
                    let items = call.args[at].items().zip(items).map(|(arg, tangent)| {
                        Ok(match tangent {
                            Some(tangent) => Value::Tensor(tangent.clone()),
                            None => zero_like(arg)?.map_or_else(|| Value::from_ref(arg), Ok)?,
                        })
                    });
                    Ok(Some(Value::List(items.collect::<Result<_>>()?)))
                }
            })
            .collect::<Result<Vec<_>>>()?;
        tensors(call.call_with(&replaced)?)
    }
}

/// The rule of an operator that is linear in each of its tensors: it sums the operator's results with one
/// tensor replaced by its tangent.
pub struct Multilinear;

impl Pushforward for Multilinear {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        let mut sums: Vec<Option<Tensor>> = Vec::new();
        for (at, tangents) in call.tangents.iter().enumerate() {
            let Tangents::One(tangent) = tangents else { continue };
            let mut replaced = vec![None; call.args.len()];
            replaced[at] = Some(Value::Tensor(tangent.clone()));
            let parts = tensors(call.call_with(&replaced)?)?;
            if sums.is_empty() {
                sums = parts;
                continue;
            }
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = added(sum.take(), part)?;
            }
        }
        Ok(sums)
    }
}

/// Adds two tangents, where `None` is zero.
///
/// # Errors
/// Those of the addition.
pub fn added(a: Option<Tensor>, b: Option<Tensor>) -> Result<Option<Tensor>> {
    match (a, b) {
        (Some(a), Some(b)) => aten::add(&a, &b).map(Some),
        (one, None) | (None, one) => Ok(one),
    }
}

/// Returns whether the dtype is floating or complex.
pub(super) fn is_differentiable(tensor: &Tensor) -> bool {
    tensor.dtype().is_floating() || tensor.dtype().is_complex()
}

/// Makes a tangent of zeros; `None` for a value that can't have a tangent.
fn zero_like(arg: ValueRef<'_>) -> Result<Option<Value>> {
    let Ok(tensor) = arg.tensor() else { return Ok(None) };
    if !is_differentiable(tensor) {
        return Ok(None);
    }
    zeros(&TensorMeta::of(tensor)).map(|zeros| Some(Value::Tensor(zeros)))
}

/// Makes zeros of that shape, dtype and device, with one element in memory.
pub(super) fn zeros(meta: &TensorMeta) -> Result<Tensor> {
    let zero = aten::full(&[], false, meta.dtype, meta.device)?;
    aten::expand(&zero, &aten::sizes(&meta.shape))
}

/// Returns the tensors of a result, each as a tangent.
fn tensors(value: Value) -> Result<Vec<Option<Tensor>>> {
    match value {
        Value::List(items) | Value::Tuple(items) => {
            let each: Vec<_> = items.into_iter().map(tensors).collect::<Result<_>>()?;
            Ok(each.into_iter().flatten().collect())
        }
        one => Ok(vec![Some(one.into_tensor()?)]),
    }
}

impl<'c, 'a> Forward<'c, 'a> {
    pub(super) fn new(
        operator: &'c Operator<Value>,
        args: &'c [ValueRef<'a>],
        tangents: &'c [Tangents],
        results: &'c [Tensor],
    ) -> Self {
        Forward { operator, args, tangents, results }
    }

    /// Returns the operator.
    pub fn operator(&self) -> &'c Operator<Value> {
        self.operator
    }

    /// Returns the arguments, without the tangents of this level.
    pub fn args(&self) -> &'c [ValueRef<'a>] {
        self.args
    }

    /// Returns the tensors among the results; none for an operator that writes to an argument.
    pub fn results(&self) -> &'c [Tensor] {
        self.results
    }

    /// Returns the result of an operator with one result.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] where the operator writes to an argument.
    pub fn result(&self) -> Result<&'c Tensor> {
        self.results.first().ok_or_else(|| {
            let message = format!(
                "{}: the rule runs before the write, so it has no result",
                self.operator.name()
            );
            Error::new(ErrorKind::Gradient, message)
        })
    }

    /// Returns the tensor argument at a position.
    ///
    /// # Errors
    /// Where the argument is no tensor.
    pub fn tensor(&self, argument: usize) -> Result<&Tensor> {
        self.args[argument].tensor()
    }

    /// Returns the tangents of the argument at a position.
    pub fn tangents(&self, argument: usize) -> &'c Tangents {
        &self.tangents[argument]
    }

    /// Returns the tangent of the tensor argument at a position; `None` for zero.
    pub fn tangent(&self, argument: usize) -> Option<&'c Tensor> {
        match &self.tangents[argument] {
            Tangents::One(tangent) => Some(tangent),
            _ => None,
        }
    }

    /// As [`tangent`](Self::tangent), with a tensor of zeros in place of `None`.
    ///
    /// # Errors
    /// Where the argument is no tensor, and [`ErrorKind::Memory`].
    pub fn tangent_or_zeros(&self, argument: usize) -> Result<Tensor> {
        match self.tangent(argument) {
            Some(tangent) => Ok(tangent.clone()),
            None => zeros(&TensorMeta::of(self.tensor(argument)?)),
        }
    }

    /// Calls the operator with some arguments replaced.
    fn call_with(&self, replaced: &[Option<Value>]) -> Result<Value> {
        let args = self.args.iter().zip(replaced);
        let args: Vec<ValueRef<'_>> =
            args.map(|(arg, other)| other.as_ref().map_or(*arg, Value::as_ref)).collect();
        self.operator.call(&args)
    }
}

/// A rule that was registered for an existing operator.
struct Registered {
    number: u64,
    operator: Weak<Operator<Value>>,
    rule: Arc<dyn Pushforward>,
}

/// The registered rules. Of several for one operator the last one serves.
static REGISTERED: RwLock<Vec<Registered>> = RwLock::new(Vec::new());

/// Registers a rule of forward mode for an operator, in place of the rule in its row, if any. Returns the
/// registration's number for [`remove_tangent`].
///
/// # Errors
/// [`ErrorKind::Registration`] where a rule is registered already and `mode` is [`Override::Error`].
pub fn register_tangent(
    operator: &Arc<Operator<Value>>,
    rule: Arc<dyn Pushforward>,
    mode: Override,
) -> Result<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if mode == Override::Error && has_registered_tangent(operator) {
        return Err(Error::new(
            ErrorKind::Registration,
            format!(
                "{} has a rule for tangents already; remove it first, or register with override \
                 \"shadow\" or \"replace\"",
                operator.name()
            ),
        ));
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let replaced = |entry: &mut Registered| {
        let same = std::ptr::eq(entry.operator.as_ptr(), Arc::as_ptr(operator));
        mode == Override::Replace && same || entry.operator.strong_count() == 0
    };
    let gone: Vec<Registered> = {
        let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        let gone = registered.extract_if(.., replaced).collect();
        registered.push(Registered { number, operator: Arc::downgrade(operator), rule });
        gone
    };
    // Dropped after the lock is released: a rule may own the last reference to an object of the host language.
    drop(gone);
    Ok(number)
}

/// Removes a registered rule and returns whether it existed.
pub fn remove_tangent(number: u64) -> bool {
    let removed = {
        let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        let at = registered.iter().position(|entry| entry.number == number);
        at.map(|at| registered.remove(at))
    };
    removed.is_some()
}

/// Returns whether the rule of that number is still registered.
pub fn is_tangent_registered(number: u64) -> bool {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    registered.iter().any(|entry| entry.number == number)
}

/// Returns whether a rule is registered for an operator.
pub fn has_registered_tangent(operator: &Operator<Value>) -> bool {
    registered(operator).is_some()
}

/// Returns the rule that is registered for an operator.
pub(super) fn registered(operator: &Operator<Value>) -> Option<Arc<dyn Pushforward>> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let of = |entry: &&Registered| std::ptr::eq(entry.operator.as_ptr(), operator);
    registered.iter().rev().find(of).map(|entry| Arc::clone(&entry.rule))
}
