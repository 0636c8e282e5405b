//! Batching rules of `cat`, `stack` and the scatters of views: every operand gets the batch dimension.

use keyfold_core::Result;
use keyfold_layers::vmap::Batch;
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::arg_values::{batched_dim, int};

/// `(tensors, dim)`, where `dim` is a dimension of a result with `added` more dimensions than the operands.
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

/// `(self, src, dim, ...)`: replaces the part of each example by its source.
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
