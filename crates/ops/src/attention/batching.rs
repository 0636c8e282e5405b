//! Batching rules of attention: examples become one more dimension in front.

use keyfold_core::Result;
use keyfold_dispatch::Value as _;
use keyfold_layers::vmap::{Batch, BatchedOperand, wrap};
use keyfold_tensor::{Tensor, Value, ValueRef};

/// Returns an operand with all examples, each of that rank.
fn all_examples(batch: &Batch<'_, '_>, operand: BatchedOperand, rank: usize) -> Result<Tensor> {
    let tensor = operand.batched(batch.size)?;
    Ok(BatchedOperand { tensor, dim: Some(0) }.padded(rank)?.tensor)
}

/// Returns the optional operand at a position as a value, with examples of that rank.
fn optional(batch: &Batch<'_, '_>, at: usize, rank: usize) -> Result<Value> {
    match batch.args[at] {
        ValueRef::None => Ok(Value::None),
        _ => batch.operand(at)?.padded(rank).map(|operand| Value::Tensor(operand.tensor)),
    }
}

/// Wraps each result, whose examples are in front.
fn wrapped(batch: &Batch<'_, '_>, results: Value) -> Result<Option<Value>> {
    let (Value::Tuple(items) | Value::List(items)) = results else { return Ok(None) };
    let wrapped =
        items.into_iter().map(|item| wrap(item.into_tensor()?, 0, batch.level).map(Value::Tensor));
    Ok(Some(Value::Tuple(wrapped.collect::<Result<_>>()?)))
}

/// The greatest rank of the examples of query, key and value, of which the first is at a position; `None` if
/// one is no matrix.
fn rank(batch: &Batch<'_, '_>, first: usize) -> Result<Option<usize>> {
    let mut ranks = [0; 3];
    for (at, rank) in ranks.iter_mut().enumerate() {
        *rank = batch.operand(first + at)?.rank();
    }
    Ok(ranks.iter().all(|rank| *rank >= 2).then(|| ranks.into_iter().max()).flatten())
}

pub(super) fn attention(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let Some(rank) = rank(batch, 0)? else { return Ok(None) };
    let query = all_examples(batch, batch.operand(0)?, rank)?;
    let key = batch.operand(1)?.padded(rank)?.tensor;
    let value = batch.operand(2)?.padded(rank)?.tensor;
    let mask = optional(batch, 3, rank)?;
    let args = [(&query).into(), (&key).into(), (&value).into(), mask.as_ref()];
    let args: Vec<ValueRef<'_>> = args.into_iter().chain(batch.args[4..].to_vec()).collect();
    wrapped(batch, batch.call(&args)?)
}

pub(super) fn attention_backward(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let Some(rank) = rank(batch, 1)? else { return Ok(None) };
    let results: Option<Vec<BatchedOperand>> = batch.operands(5)?.into_iter().collect();
    let Some(Ok([out, logarithms])) = results.map(<[BatchedOperand; 2]>::try_from) else {
        return Ok(None);
    };
    let grad = all_examples(batch, batch.operand(0)?, rank)?;
    let query = all_examples(batch, batch.operand(1)?, rank)?;
    let key = batch.operand(2)?.padded(rank)?.tensor;
    let value = batch.operand(3)?.padded(rank)?.tensor;
    let mask = optional(batch, 4, rank)?;
    let results = [all_examples(batch, out, rank)?, all_examples(batch, logarithms, rank - 1)?];
    let args = [
        (&grad).into(),
        (&query).into(),
        (&key).into(),
        (&value).into(),
        mask.as_ref(),
        results.as_slice().into(),
        batch.args[6],
        batch.args[7],
    ];
    wrapped(batch, batch.call(&args)?)
}
