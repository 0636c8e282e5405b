//! Batching rules of views.

use keyfold_core::Result;
use keyfold_layers::vmap::{Batch, BatchedOperand};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::arg_values::{batched_dim, int, ints};
use crate::aten;

/// Calls the operator with the batch dimension at the front, and with other further arguments.
fn in_front(
    batch: &Batch<'_, '_>,
    operand: &BatchedOperand,
    rest: &[ValueRef<'_>],
) -> Result<Option<Value>> {
    let mut args = vec![ValueRef::Tensor(&operand.tensor)];
    args.extend_from_slice(rest);
    let result = batch.call(&args)?;
    batch.wrap(result, 0).map(Some)
}

/// Returns the example, whose shape validates the arguments.
fn example<'a>(batch: &Batch<'_, 'a>) -> Result<&'a Tensor> {
    batch.args[0].tensor()
}

pub(super) fn reshape(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let Some(sizes) = ints(batch.args[1]) else { return Ok(None) };
    // The reshape of one example resolves the size -1 and validates the sizes.
    let Ok(example) = example(batch)?.reshape(&sizes) else { return Ok(None) };
    let mut sizes = vec![batch.size as i64];
    sizes.extend(example.shape().iter().map(|n| *n as i64));
    in_front(batch, &batch.operand(0)?.in_front()?, &[(&sizes[..]).into()])
}

pub(super) fn transpose(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let operand = batch.operand(0)?.in_front()?;
    let dim = |place: usize| batched_dim(int(batch.args[place])?, operand.rank());
    let (Some(a), Some(b)) = (dim(1), dim(2)) else { return Ok(None) };
    in_front(batch, &operand, &[a.into(), b.into()])
}

pub(super) fn permute(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let operand = batch.operand(0)?.in_front()?;
    let Some(given) = ints(batch.args[1]) else { return Ok(None) };
    let mut dims = vec![0];
    for dim in given {
        let Some(dim) = batched_dim(dim, operand.rank()) else { return Ok(None) };
        dims.push(dim);
    }
    if dims.len() != operand.rank() + 1 {
        return Ok(None);
    }
    in_front(batch, &operand, &[(&dims[..]).into()])
}

pub(super) fn unsqueeze(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let operand = batch.operand(0)?.in_front()?;
    let dim = int(batch.args[1]).and_then(|dim| batched_dim(dim, operand.rank() + 1));
    let Some(dim) = dim else { return Ok(None) };
    in_front(batch, &operand, &[dim.into()])
}

/// Removes the dimensions of size 1, except the batch dimension.
pub(super) fn squeeze(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let operand = batch.operand(0)?.in_front()?;
    let mut tensor = operand.tensor;
    for dim in (1..tensor.ndim()).rev() {
        if tensor.shape()[dim] == 1 {
            tensor = aten::squeeze(&tensor, dim as i64)?;
        }
    }
    batch.wrap(Value::Tensor(tensor), 0).map(Some)
}

/// Operators whose second argument is a dimension and whose further arguments don't depend on the batch.
pub(crate) fn one_dim(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let operand = batch.operand(0)?.in_front()?;
    let dim = int(batch.args[1]).and_then(|dim| batched_dim(dim, operand.rank()));
    let Some(dim) = dim else { return Ok(None) };
    let mut rest = batch.args[1..].to_vec();
    rest[0] = dim.into();
    in_front(batch, &operand, &rest)
}

pub(super) fn expand(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let operand = batch.operand(0)?;
    let Some(given) = ints(batch.args[1]) else { return Ok(None) };
    let Some(added) = given.len().checked_sub(operand.rank()) else { return Ok(None) };
    if given[..added].contains(&-1) {
        return Ok(None);
    }
    let operand = operand.padded(given.len())?;
    let mut sizes = vec![batch.size as i64];
    sizes.extend(given);
    in_front(batch, &operand, &[(&sizes[..]).into()])
}

pub(super) fn flip(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let operand = batch.operand(0)?.in_front()?;
    let Some(given) = ints(batch.args[1]) else { return Ok(None) };
    let dims: Option<Vec<i64>> = given.iter().map(|d| batched_dim(*d, operand.rank())).collect();
    let Some(dims) = dims else { return Ok(None) };
    in_front(batch, &operand, &[(&dims[..]).into()])
}

/// Makes the tensor contiguous with the batch dimension at the front, which makes each example contiguous.
pub(super) fn contiguous(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let tensor = batch.operand(0)?.in_front()?.tensor;
    let result = batch.call(&[(&tensor).into()])?;
    batch.wrap(result, 0).map(Some)
}
