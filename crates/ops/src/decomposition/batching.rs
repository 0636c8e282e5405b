//! Batching rules of decompositions: the examples' matrices are one stack.

use keyfold_core::Result;
use keyfold_layers::vmap::{Batch, BatchedOperand};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::checks::is_vector;
use crate::aten;

/// Wraps the results of a call.
fn wrapped(batch: &Batch<'_, '_>, result: Value) -> Result<Option<Value>> {
    match result {
        Value::Tuple(results) => {
            let one = |result| match result {
                Value::None => Ok(Value::None),
                tensor => batch.wrap(tensor, 0),
            };
            Ok(Some(Value::Tuple(results.into_iter().map(one).collect::<Result<_>>()?)))
        }
        one => batch.wrap(one, 0).map(Some),
    }
}

/// Operators of one tensor.
pub(super) fn one(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let x = batch.operand(0)?.in_front()?;
    if x.rank() < 2 {
        return Ok(None);
    }
    let mut args: Vec<ValueRef<'_>> = batch.args.to_vec();
    args[0] = (&x.tensor).into();
    wrapped(batch, batch.call(&args)?)
}

/// Returns an operand whose examples have that rank, all of its examples in front.
fn aligned(batch: &Batch<'_, '_>, operand: BatchedOperand, rank: usize) -> Result<Tensor> {
    let tensor = operand.batched(batch.size)?;
    Ok(BatchedOperand { tensor, dim: Some(0) }.padded(rank)?.tensor)
}

/// Linear systems.
pub(super) fn systems(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (a, b) = (batch.operand(0)?, batch.operand(1)?);
    let sizes = |x: &BatchedOperand| (0..x.rank()).map(|d| x.size_at(d)).collect::<Vec<_>>();
    let (of_a, of_b) = (sizes(&a), sizes(&b));
    if of_a.len() < 2 || of_b.is_empty() {
        return Ok(None);
    }
    let vector = !batch.operator().name().contains("triangular") && is_vector(&of_a, &of_b);
    let rank = of_a.len().max(of_b.len() + usize::from(vector));
    let b = match vector {
        true => {
            let b = b.in_front()?;
            BatchedOperand { tensor: aten::unsqueeze(&b.tensor, -1)?, dim: b.dim }
        }
        false => b,
    };
    let (a, b) = (aligned(batch, a, rank)?, aligned(batch, b, rank)?);
    let mut args: Vec<ValueRef<'_>> = batch.args.to_vec();
    (args[0], args[1]) = ((&a).into(), (&b).into());
    let mut result = batch.call(&args)?;
    if vector {
        let row = |x: Value| aten::squeeze(&x.into_tensor()?, -1).map(Value::Tensor);
        result = match result {
            Value::Tuple(mut results) => {
                let first = results.remove(0);
                results.insert(0, row(first)?);
                Value::Tuple(results)
            }
            one => row(one)?,
        };
    }
    wrapped(batch, result)
}
