//! The loop: the operator runs once per example, and results are stacked.

use std::cell::Cell;

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Return;
use keyfold_tensor::device::random::set_state;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::batch::{Batch, BatchedOperand};
use super::batched::{batch_of_value, wrap};
use super::collect::{collect, from_meta};
use super::random;
use crate::aten;

/// The source of an argument's tensors for each example.
enum ExampleSource<'a> {
    /// The argument itself, not batched; it may be the caller's own object.
    Same(ValueRef<'a>),
    Batch(Box<BatchedOperand>),
    List(Vec<ExampleSource<'a>>),
}

impl<'a> ExampleSource<'a> {
    fn of(value: ValueRef<'a>, level: usize) -> ExampleSource<'a> {
        if let ValueRef::List(_) | ValueRef::Refs(_) | ValueRef::Tensors(_) = value {
            let items: Vec<_> = value.items().map(|item| ExampleSource::of(item, level)).collect();
            if items.iter().all(|item| matches!(item, ExampleSource::Same(_))) {
                return ExampleSource::Same(value);
            }
            return ExampleSource::List(items);
        }
        match batch_of_value(value) {
            Some(batched) if batched.level == level => {
                ExampleSource::Batch(Box::new(BatchedOperand {
                    tensor: batched.physical.clone(),
                    dim: Some(batched.dim),
                }))
            }
            _ => ExampleSource::Same(value),
        }
    }

    /// Appends the result of `slice` for each batch, in order.
    fn slices<T>(
        &self,
        slice: &dyn Fn(&BatchedOperand) -> Result<T>,
        into: &mut Vec<T>,
    ) -> Result<()> {
        match self {
            ExampleSource::Same(_) => {}
            ExampleSource::Batch(operand) => into.push(slice(operand)?),
            ExampleSource::List(items) => {
                items.iter().try_for_each(|item| item.slices(slice, into))?;
            }
        }
        Ok(())
    }
}

/// Calls the operator with one example's tensors in place of the batches.
fn call_with(
    batch: &Batch<'_, '_>,
    sources: &[ExampleSource<'_>],
    slices: &[Tensor],
) -> Result<Value> {
    let mut rest = slices.iter();
    let mut next = || rest.next().map_or(ValueRef::None, ValueRef::Tensor);
    let mut lists: Vec<Vec<ValueRef<'_>>> = Vec::new();
    let mut flat = Vec::with_capacity(sources.len());
    for source in sources {
        flat.push(match source {
            ExampleSource::Same(value) => *value,
            ExampleSource::Batch(_) => next(),
            ExampleSource::List(items) => {
                lists.push(
                    items
                        .iter()
                        .map(|item| match item {
                            ExampleSource::Same(value) => *value,
                            // Schemas have no lists of lists.
                            _ => next(),
                        })
                        .collect(),
                );
                ValueRef::None
            }
        });
    }
    let mut lists = lists.iter();
    for (arg, source) in flat.iter_mut().zip(sources) {
        if let ExampleSource::List(_) = source {
            *arg = lists.next().map_or(ValueRef::None, |items| ValueRef::Refs(items));
        }
    }
    batch.call(&flat)
}

/// Returns the arguments that are also the results, if the schema declares that the operator writes to
/// each of them and returns it: `f_(Tensor(a!) self) -> Tensor(a!)`.
fn written_results(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let schema = batch.operator().schema();
    let place = |result: &Return| {
        let returned = result.alias.as_ref().filter(|alias| alias.write)?;
        schema.arguments.iter().position(|argument| {
            argument.alias.as_ref().is_some_and(|alias| alias.write && alias.sets == returned.sets)
        })
    };
    let Some(places) = schema.returns.iter().map(place).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let mut results = places.into_iter().map(|place| Value::from_ref(batch.args[place]));
    match schema.returns.len() {
        0 => Ok(None),
        1 => results.next().transpose(),
        _ => results.collect::<Result<_>>().map(|all| Some(Value::Tuple(all))),
    }
}

/// Runs the operator on each example of the batch. The examples' results are stacked; values other
/// than tensors must be equal.
///
/// # Errors
/// The calls' errors; [`ErrorKind::Gradient`] for a write while an argument requires grad;
/// [`ErrorKind::Return`] for results that can't be combined, and [`ErrorKind::NotSupported`] for an
/// empty batch if no Meta kernel determines the shapes.
pub(crate) fn loop_over_examples(batch: &Batch<'_, '_>) -> Result<Value> {
    batch.check_unwritten()?;
    let sources: Vec<_> =
        batch.args.iter().map(|arg| ExampleSource::of(*arg, batch.level)).collect();
    if batch.size == 0 {
        return empty(batch);
    }
    let returned = written_results(batch)?;
    let mut results = Vec::with_capacity(if returned.is_some() { 0 } else { batch.size });
    let repeated = random::repeated(batch.level, batch.args)?;
    let _served = random::serve(batch.level);
    // All examples of a batch at once: the gradients of views that are made one by one are as large as
    // the batch, each.
    let mut examples = Vec::new();
    let unbind = |operand: &BatchedOperand| {
        let views = aten::unbind(&operand.tensor, operand.dim.unwrap_or(0) as i64)?;
        Ok(views.into_iter())
    };
    sources.iter().try_for_each(|source| source.slices(&unbind, &mut examples))?;
    let mut slices = Vec::with_capacity(examples.len());
    for _ in 0..batch.size {
        repeated.iter().try_for_each(|state| set_state(*state))?;
        slices.clear();
        slices.extend(examples.iter_mut().filter_map(Iterator::next));
        let result = call_with(batch, &sources, &slices)?;
        if returned.is_none() {
            results.push(result);
        }
    }
    match returned {
        Some(written) => Ok(written),
        None => collect(batch, results),
    }
}

/// Returns the results for an empty batch, with shapes from the operator's Meta kernel.
fn empty(batch: &Batch<'_, '_>) -> Result<Value> {
    if let Some(written) = written_results(batch)? {
        return Ok(written);
    }
    let unknown = |why: &str| {
        Error::new(
            ErrorKind::NotSupported,
            format!(
                "{}: the batch has 0 examples, so the operator can't be called to learn what its \
                 results look like ({why}); register a Meta kernel or a rule for vmap, or leave \
                 empty batches out",
                batch.operator().name()
            ),
        )
    };
    if batch.writes() {
        return Err(unknown("it writes to an argument"));
    }
    // All tensors move to meta, including unbatched ones.
    let all: Vec<_> = batch.args.iter().map(|arg| every_tensor(*arg)).collect();
    let device = Cell::new(Device::default());
    let on_meta = |operand: &BatchedOperand| {
        device.set(operand.tensor.device());
        Tensor::meta(operand.tensor.shape(), operand.tensor.dtype())
    };
    let mut metas = Vec::new();
    all.iter().try_for_each(|source| source.slices(&on_meta, &mut metas))?;
    let result = call_with(batch, &all, &metas).map_err(|error| match error.kind() {
        ErrorKind::MissingKernel => unknown("it has no Meta kernel"),
        _ => error,
    })?;
    from_meta(&result, device.get(), batch.level)
}

/// Returns the argument with a marker for each tensor; an example has the same shapes.
fn every_tensor(arg: ValueRef<'_>) -> ExampleSource<'_> {
    match arg {
        ValueRef::List(_) | ValueRef::Refs(_) | ValueRef::Tensors(_) => {
            ExampleSource::List(arg.items().map(every_tensor).collect())
        }
        ValueRef::Tensor(_) | ValueRef::Foreign(_) => match arg.tensor() {
            Ok(tensor) => {
                ExampleSource::Batch(Box::new(BatchedOperand { tensor: tensor.clone(), dim: None }))
            }
            Err(_) => ExampleSource::Same(arg),
        },
        other => ExampleSource::Same(other),
    }
}

/// Wraps a stacked result.
pub(super) fn wrap_front(tensor: Tensor, level: usize) -> Result<Value> {
    wrap(tensor, 0, level).map(Value::Tensor)
}
