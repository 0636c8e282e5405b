//! Tensors put together, and parts replaced: every operand gets the batch.

use keyfold_core::Result;
use keyfold_layers::vmap::Batch;
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::arg_values::{batched_dim, int};

/// A list of tensors along a dimension of results of `rank + added` dimensions.
fn join(batch: &Batch<'_, '_>, added: usize) -> Result<Option<Value>> {
    let operands: Option<Vec<_>> = batch.operands(0)?.into_iter().collect();
    let Some(operands) = operands else { return Ok(None) };
    let rank = operands.first().map_or(0, |operand| operand.rank());
    let dim = int(batch.args[1]).and_then(|dim| batched_dim(dim, rank + added));
    let (Some(dim), true) = (dim, operands.iter().all(|o| o.rank() == rank)) else {
        return Ok(None);
    };
    let tensors: Vec<Tensor> =
        operands.into_iter().map(|o| o.batched(batch.size)).collect::<Result<_>>()?;
    let result = batch.call(&[(&tensors[..]).into(), dim.into()])?;
    batch.wrap(result, 0).map(Some)
}

pub(super) fn cat(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    join(batch, 0)
}

pub(super) fn stack(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    join(batch, 1)
}

/// `(self, src, dim, ...)`: the part of each example replaced by its source.
pub(super) fn scatter(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (target, source) = (batch.operand(0)?, batch.operand(1)?);
    let dim = int(batch.args[2]).and_then(|dim| batched_dim(dim, target.rank()));
    let Some(dim) = dim else { return Ok(None) };
    let (target, source) = (target.batched(batch.size)?, source.batched(batch.size)?);
    let mut args: Vec<ValueRef<'_>> = batch.args.to_vec();
    args[..3].copy_from_slice(&[(&target).into(), (&source).into(), dim.into()]);
    let result = batch.call(&args)?;
    batch.wrap(result, 0).map(Some)
}
