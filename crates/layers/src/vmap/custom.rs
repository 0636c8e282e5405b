//! Batching rules of users: functions of the physical arguments and their batch dimensions.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{
    DispatchKey, Dispatcher, Handle, HostLock, Kernel, Override, Value as _, outside_layers,
};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::batch::Batch;
use super::batched::{batch_of_value, wrap};
use super::random;

/// The batch of a rule's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchInfo {
    /// The number of examples.
    pub size: usize,
    /// The level of the `vmap`, from 1 for the outermost.
    pub level: usize,
}

/// The batch dimension of an argument or a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchDim {
    /// None: all examples share it, or it isn't a tensor.
    None,
    /// That dimension.
    At(usize),
    /// One for each item of a list, or for each of several results.
    Each(Vec<BatchDim>),
}

impl From<Option<usize>> for BatchDim {
    fn from(dim: Option<usize>) -> Self {
        dim.map_or(BatchDim::None, BatchDim::At)
    }
}

/// A call's arguments below one level of `vmap`, with their batch dimensions.
pub struct Unwrapped<'a> {
    /// The batch.
    pub info: BatchInfo,
    /// The batch dimension of each argument.
    pub dims: Vec<BatchDim>,
    args: Vec<Physical<'a>>,
}

enum Physical<'a> {
    Same(ValueRef<'a>),
    Tensor(Box<Tensor>),
    List(Vec<Value>),
}

impl<'a> Unwrapped<'a> {
    fn of(batch: &Batch<'_, 'a>) -> Result<Self> {
        let (mut dims, mut args) = (Vec::new(), Vec::new());
        for arg in batch.args {
            let (dim, physical) = unwrap(*arg, batch.level)?;
            dims.push(dim);
            args.push(physical);
        }
        let info = BatchInfo { size: batch.size, level: batch.level };
        Ok(Unwrapped { info, dims, args })
    }

    /// Returns the physical arguments. Arguments without a batch are the caller's.
    pub fn args(&self) -> Vec<ValueRef<'_>> {
        self.args
            .iter()
            .map(|arg| match arg {
                Physical::Same(value) => *value,
                Physical::Tensor(tensor) => ValueRef::Tensor(tensor),
                Physical::List(items) => ValueRef::List(items),
            })
            .collect()
    }
}

fn unwrap(value: ValueRef<'_>, level: usize) -> Result<(BatchDim, Physical<'_>)> {
    if let ValueRef::List(_) | ValueRef::Refs(_) | ValueRef::Tensors(_) = value {
        let mut dims = Vec::new();
        let mut items = Vec::new();
        for item in value.items() {
            let (dim, physical) = unwrap(item, level)?;
            dims.push(dim);
            items.push(match physical {
                Physical::Same(value) => Value::from_ref(value)?,
                Physical::Tensor(tensor) => Value::Tensor(*tensor),
                Physical::List(items) => Value::List(items),
            });
        }
        if dims.iter().all(|dim| *dim == BatchDim::None) {
            return Ok((BatchDim::None, Physical::Same(value)));
        }
        return Ok((BatchDim::Each(dims), Physical::List(items)));
    }
    Ok(match batch_of_value(value) {
        Some(batched) if batched.level == level => {
            (BatchDim::At(batched.dim), Physical::Tensor(Box::new(batched.physical.clone())))
        }
        _ => (BatchDim::None, Physical::Same(value)),
    })
}

/// Returns the error for a rule's batch dimensions that don't fit its result.
#[cold]
fn wrong_dims(operator: &str, what: &str) -> Error {
    Error::new(ErrorKind::Return, format!("{operator}: the rule for vmap returned {what}"))
}

/// Wraps each tensor of a rule's result.
///
/// # Errors
/// [`ErrorKind::Return`] if the dimensions don't fit: another structure, a missing dimension, or
/// one whose size isn't the batch's.
pub fn wrap_result(
    operator: &str,
    info: BatchInfo,
    result: Value,
    dims: &BatchDim,
) -> Result<Value> {
    let items = match result {
        Value::Tuple(items) | Value::List(items) if matches!(dims, BatchDim::Each(dims) if dims.len() != items.len()) =>
        {
            let dims = if let BatchDim::Each(dims) = dims { dims.len() } else { 0 };
            let what = format!("{} results and {dims} batch dimensions", items.len());
            return Err(wrong_dims(operator, &what));
        }
        Value::Tuple(items) => Value::Tuple(each(operator, info, items, dims)?),
        Value::List(items) => Value::List(each(operator, info, items, dims)?),
        other => return wrap_one(operator, info, other, dims),
    };
    Ok(items)
}

fn each(operator: &str, info: BatchInfo, items: Vec<Value>, dims: &BatchDim) -> Result<Vec<Value>> {
    let items = items.into_iter().enumerate();
    items
        .map(|(i, item)| {
            let dim = if let BatchDim::Each(dims) = dims { &dims[i] } else { dims };
            wrap_result(operator, info, item, dim)
        })
        .collect()
}

fn wrap_one(operator: &str, info: BatchInfo, result: Value, dims: &BatchDim) -> Result<Value> {
    let dim = match dims {
        BatchDim::None => return Ok(result),
        BatchDim::At(dim) => *dim,
        BatchDim::Each(dims) => {
            return Err(wrong_dims(
                operator,
                &format!("one result and {} batch dimensions", dims.len()),
            ));
        }
    };
    let Ok(tensor) = result.as_ref().tensor() else {
        let what = format!(
            "batch dimension {dim} for a result that isn't a tensor: {}",
            Value::describe(result.as_ref())
        );
        return Err(wrong_dims(operator, &what));
    };
    match tensor.shape().get(dim) {
        Some(size) if *size == info.size => {}
        Some(size) => {
            let what = format!(
                "a result of shape {:?} and batch dimension {dim}, whose size is {size} and not the \
                 batch's, {}",
                tensor.shape(),
                info.size
            );
            return Err(wrong_dims(operator, &what));
        }
        None => {
            let what = format!(
                "a result of shape {:?} and batch dimension {dim}, which isn't there",
                tensor.shape()
            );
            return Err(wrong_dims(operator, &what));
        }
    }
    wrap(result.into_tensor()?, dim, info.level).map(Value::Tensor)
}

/// Removes the highest level from a call's arguments and runs `f` as if no vmap were running, for a
/// rule in another language. `None` if no argument is batched.
///
/// # Errors
/// The errors of the arguments and of `f`.
pub fn with_unwrapped<R>(
    context: &keyfold_dispatch::CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    f: impl FnOnce(&Unwrapped<'_>) -> Result<R>,
) -> Result<Option<R>> {
    let Some(batch) = Batch::of(context, args)? else { return Ok(None) };
    batch.check_unwritten()?;
    let unwrapped = Unwrapped::of(&batch)?;
    let _served = random::serve(batch.level);
    outside_layers(DispatchKey::Vmap.into(), || f(&unwrapped)).map(Some)
}

/// Returns a kernel at Vmap that runs a batching rule: a function of the batch, of the arguments'
/// batch dimensions, and of the physical arguments, which returns the result and its batch
/// dimensions.
pub fn rule_kernel<F>(rule: F) -> Kernel<Value>
where
    F: Fn(BatchInfo, &[BatchDim], &[ValueRef<'_>]) -> Result<(Value, BatchDim)>
        + Send
        + Sync
        + 'static,
{
    Kernel::boxed(move |context, args| {
        let done = with_unwrapped(context, args, |call| {
            let (result, dims) = rule(call.info, &call.dims, &call.args())?;
            wrap_result(context.operator().name(), call.info, result, &dims)
        })?;
        done.map_or_else(|| context.call_below(args), Ok)
    })
    .with_host_lock(HostLock::ReleaseFrom(crate::HOST_LOCK_FROM))
}

/// Registers a batching rule for an operator, in place of the loop or of an earlier rule.
///
/// # Errors
/// As [`Dispatcher::implement`].
pub fn register_rule<F>(
    dispatcher: &Dispatcher<Value>,
    operator: &str,
    rule: F,
) -> Result<Handle<Value>>
where
    F: Fn(BatchInfo, &[BatchDim], &[ValueRef<'_>]) -> Result<(Value, BatchDim)>
        + Send
        + Sync
        + 'static,
{
    let kernel = rule_kernel(rule).named(format!("vmap rule of {operator}"));
    dispatcher.implement(operator, DispatchKey::Vmap, kernel, Override::Shadow)
}
