//! The batching rule of `matmul` and its like: one large product where only one operand is batched, else a batch of
//! products.

use keyfold_core::Result;
use keyfold_layers::vmap::{Batch, BatchedOperand};
use keyfold_tensor::{Tensor, Value};

use crate::aten::{self, Aten};

/// Multiplies two tensors.
pub(super) type Multiply<'m> = dyn Fn(&Tensor, &Tensor) -> Result<Tensor> + 'm;

pub(super) fn matmul(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    products(batch, &|a, b| batch.call(&[a.into(), b.into()])?.into_tensor())
}

/// The rule of products of operands of fixed ranks: `matmul` of the whole batch.
pub(super) fn ranked(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let ranks = match &*batch.operator().schema().name.name {
        "bmm" => (3, 3),
        "mv" => (2, 1),
        "dot" => (1, 1),
        _ => (2, 2),
    };
    let (a, b) = (batch.operand(0)?, batch.operand(1)?);
    if (a.rank(), b.rank()) != ranks || ranks == (3, 3) && a.size_at(0) != b.size_at(0) {
        // The loop raises the error for one example.
        return Ok(None);
    }
    products(batch, &|a, b| multiply(batch, a, b))
}

/// Calls `matmul` with unwrapped arguments.
pub(super) fn multiply(batch: &Batch<'_, '_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    static MATMUL: Aten = Aten::new("aten::matmul");
    batch.call_other(MATMUL.operator()?, &[a.into(), b.into()])?.into_tensor()
}

/// The rule of products of the first two arguments.
pub(super) fn products(batch: &Batch<'_, '_>, multiply: &Multiply<'_>) -> Result<Option<Value>> {
    let (a, b) = (batch.operand(0)?, batch.operand(1)?);
    let (rank_a, rank_b) = (a.rank(), b.rank());
    let left = size_at_end(&a, 0);
    let right = size_at_end(&b, usize::from(rank_b > 1));
    if left.is_none() || left != right {
        // The shapes don't match: the loop raises the error for one example.
        return Ok(None);
    }
    let result = match (a.dim, b.dim) {
        (Some(_), None) if rank_b <= 2 => rows(multiply, &a.in_front()?.tensor, &b.tensor)?,
        (None, Some(_)) if rank_b == 1 && rank_a == 1 => {
            rows(multiply, &b.in_front()?.tensor, &a.tensor)?
        }
        (None, Some(_)) if rank_b == 1 && rank_a == 2 => {
            // Each example becomes a row of one matrix.
            rows(multiply, &b.in_front()?.tensor, &aten::transpose(&a.tensor, 0, 1)?)?
        }
        _ => general(multiply, a, b)?,
    };
    batch.wrap(Value::Tensor(result), 0).map(Some)
}

/// Returns the size of an example's dimension, counted from the last one.
fn size_at_end(operand: &BatchedOperand, from_last: usize) -> Option<usize> {
    Some(operand.size_at(operand.rank().checked_sub(from_last + 1)?))
}

/// Multiplies all rows of all examples of `a` by one matrix or vector `b`.
fn rows(multiply: &Multiply<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.ndim() <= 2 {
        return multiply(a, b);
    }
    let (outer, inner) = a.shape().split_at(a.ndim() - 1);
    let mut sizes: Vec<i64> = outer.iter().map(|n| *n as i64).collect();
    let count: i64 = sizes.iter().product();
    let result = multiply(&aten::reshape(a, &[count, inner[0] as i64])?, b)?;
    sizes.extend(result.shape()[1..].iter().map(|n| *n as i64));
    aten::reshape(&result, &sizes)
}

/// Multiplies batches of matrices: both batch dimensions at the front, the examples' own batch dimensions
/// aligned.
pub(super) fn general(
    multiply: &Multiply<'_>,
    a: BatchedOperand,
    b: BatchedOperand,
) -> Result<Tensor> {
    let (row, column) = (a.rank() == 1, b.rank() == 1);
    let rank = a.rank().max(b.rank()).max(2);
    let a = matrices(a, row, -2)?.padded(rank)?.tensor;
    let b = matrices(b, column, -1)?.padded(rank)?.tensor;
    let mut result = multiply(&a, &b)?;
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
