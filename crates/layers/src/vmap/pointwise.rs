//! Batching rules of pointwise operators: examples broadcast behind the batch dimension.

use keyfold_core::Result;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::batch::{Batch, BatchedOperand};

/// Returns the arguments with the first tensor replaced.
pub fn with_first<'v>(batch: &Batch<'_, 'v>, first: &'v Tensor) -> Vec<ValueRef<'v>> {
    let mut args = batch.args.to_vec();
    args[0] = first.into();
    args
}

/// The rule for one tensor, the first argument: the batch dimension is unchanged.
pub fn single(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let BatchedOperand { tensor, dim } = batch.operand(0)?;
    let Some(dim) = dim else { return Ok(None) };
    let result = batch.call(&with_first(batch, &tensor))?;
    batch.wrap(result, dim).map(Some)
}

/// The rule for several tensors that broadcast.
pub fn several(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let mut operands = Vec::with_capacity(3);
    for (place, arg) in batch.args.iter().enumerate() {
        if let ValueRef::Tensor(_) | ValueRef::Foreign(_) = arg {
            operands.push((place, batch.operand(place)?));
        }
    }
    let rank = operands.iter().map(|(_, operand)| operand.rank()).max().unwrap_or(0);
    let dim = common_dim(&operands, rank);
    if dim.is_none() {
        for (_, operand) in &mut operands {
            *operand = operand.clone().padded(rank)?;
        }
    }
    let mut args = batch.args.to_vec();
    for (place, operand) in &operands {
        args[*place] = (&operand.tensor).into();
    }
    let result = batch.call(&args)?;
    batch.wrap(result, dim.unwrap_or(0)).map(Some)
}

/// Returns the common batch dimension of all operands, if they broadcast unchanged: an operand
/// without a batch has at most as many dimensions as follow the batch dimension.
fn common_dim(operands: &[(usize, BatchedOperand)], rank: usize) -> Option<usize> {
    let dim = operands.iter().find_map(|(_, operand)| operand.dim)?;
    operands
        .iter()
        .all(|(_, operand)| match operand.dim {
            Some(own) => own == dim && operand.rank() == rank,
            None => operand.rank() <= rank - dim,
        })
        .then_some(dim)
}
