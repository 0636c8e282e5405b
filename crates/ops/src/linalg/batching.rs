//! The batching rule of `matmul`: one large product where only one operand is batched, else a batch of
//! products.

use keyfold_core::Result;
use keyfold_layers::vmap::{Batch, BatchedOperand};
use keyfold_tensor::{Tensor, Value};

use crate::aten;

pub(super) fn matmul(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (a, b) = (batch.operand(0)?, batch.operand(1)?);
    let (rank_a, rank_b) = (a.rank(), b.rank());
    let left = size_at_end(&a, 0);
    let right = size_at_end(&b, usize::from(rank_b > 1));
    if left.is_none() || left != right {
        // The shapes don't match: the loop raises the error for one example.
        return Ok(None);
    }
    let result = match (a.dim, b.dim) {
        (Some(_), None) if rank_b <= 2 => rows(batch, &a.in_front()?.tensor, &b.tensor)?,
        (None, Some(_)) if rank_b == 1 && rank_a == 1 => {
            rows(batch, &b.in_front()?.tensor, &a.tensor)?
        }
        (None, Some(_)) if rank_b == 1 && rank_a == 2 => {
            // Each example becomes a row of one matrix.
            rows(batch, &b.in_front()?.tensor, &aten::transpose(&a.tensor, 0, 1)?)?
        }
        _ => general(batch, a, b)?,
    };
    batch.wrap(Value::Tensor(result), 0).map(Some)
}

/// Returns the size of an example's dimension, counted from the last one.
fn size_at_end(operand: &BatchedOperand, from_last: usize) -> Option<usize> {
    Some(operand.size_at(operand.rank().checked_sub(from_last + 1)?))
}

fn product(batch: &Batch<'_, '_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    batch.call(&[a.into(), b.into()])?.into_tensor()
}

/// Multiplies all rows of all examples of `a` by one matrix or vector `b`.
fn rows(batch: &Batch<'_, '_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.ndim() <= 2 {
        return product(batch, a, b);
    }
    let (outer, inner) = a.shape().split_at(a.ndim() - 1);
    let mut sizes: Vec<i64> = outer.iter().map(|n| *n as i64).collect();
    let count: i64 = sizes.iter().product();
    let result = product(batch, &aten::reshape(a, &[count, inner[0] as i64])?, b)?;
    sizes.extend(result.shape()[1..].iter().map(|n| *n as i64));
    aten::reshape(&result, &sizes)
}

/// Multiplies batches of matrices: both batch dimensions at the front, the examples' own batch dimensions
/// aligned.
fn general(batch: &Batch<'_, '_>, a: BatchedOperand, b: BatchedOperand) -> Result<Tensor> {
    let (row, column) = (a.rank() == 1, b.rank() == 1);
    let rank = a.rank().max(b.rank()).max(2);
    let a = matrices(a, row, -2)?.padded(rank)?.tensor;
    let b = matrices(b, column, -1)?.padded(rank)?.tensor;
    let mut result = product(batch, &a, &b)?;
    if column {
        result = aten::squeeze(&result, -1)?;
    }
    if row {
        result = aten::squeeze(&result, if column { -1 } else { -2 })?;
    }
    Ok(result)
}

/// Converts vectors to matrices of one row or one column.
fn matrices(operand: BatchedOperand, vector: bool, at: i64) -> Result<BatchedOperand> {
    let operand = operand.in_front()?;
    if !vector {
        return Ok(operand);
    }
    Ok(BatchedOperand { tensor: aten::unsqueeze(&operand.tensor, at)?, dim: operand.dim })
}
