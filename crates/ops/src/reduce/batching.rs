//! Batching rules of reductions, which reduce dimensions of the example and never the batch.

use keyfold_core::Result;
use keyfold_layers::vmap::Batch;
use keyfold_tensor::{Value, ValueRef};

use crate::arg_values::{batched_dim, int, ints, is_true};
use crate::aten::{self, Aten};

/// Returns all dimensions of an example, after the batch dimension.
fn all_dims(rank: usize) -> Vec<i64> {
    (1..=rank as i64).collect()
}

/// Reduces all dimensions of each example by the overload that takes dimensions.
fn reduce_all(batch: &Batch<'_, '_>, along: &Aten, rest: &[ValueRef<'_>]) -> Result<Option<Value>> {
    let operand = batch.operand(0)?.in_front()?;
    let dims = all_dims(operand.rank());
    let mut args = vec![(&operand.tensor).into(), (&dims[..]).into()];
    args.extend_from_slice(rest);
    let result = batch.call_other(along.operator()?, &args)?;
    batch.wrap(result, 0).map(Some)
}

pub(super) fn sum(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    static ALONG: Aten = Aten::new("aten::sum.dim");
    reduce_all(batch, &ALONG, &[false.into(), batch.args[1]])
}

pub(super) fn mean(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    static ALONG: Aten = Aten::new("aten::mean.dim");
    reduce_all(batch, &ALONG, &[false.into(), batch.args[1]])
}

pub(super) fn max(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    static ALONG: Aten = Aten::new("aten::amax");
    reduce_all(batch, &ALONG, &[])
}

pub(super) fn min(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    static ALONG: Aten = Aten::new("aten::amin");
    reduce_all(batch, &ALONG, &[])
}

/// Whether any element of each example is infinite or NaN, by the operators of one element and of dimensions.
pub(super) fn has_inf_nan(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    static FINITE: Aten = Aten::new("aten::isfinite");
    static ANY: Aten = Aten::new("aten::any");
    let operand = batch.operand(0)?.in_front()?;
    let dims = all_dims(operand.rank());
    let finite = batch.call_other(FINITE.operator()?, &[(&operand.tensor).into()])?;
    let other = aten::logical_not(&finite.into_tensor()?)?;
    let args = [(&other).into(), (&dims[..]).into(), false.into()];
    batch.wrap(batch.call_other(ANY.operator()?, &args)?, 0).map(Some)
}

/// Reduces the named dimensions, or all: `(self, dim, keepdim, ...)`.
pub(super) fn reduce_dims(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let operand = batch.operand(0)?.in_front()?;
    let rank = operand.rank();
    let dims = match batch.args[1] {
        ValueRef::None => all_dims(rank),
        given => {
            let Some(given) = ints(given) else { return Ok(None) };
            let dims: Option<Vec<i64>> = given.iter().map(|d| batched_dim(*d, rank)).collect();
            let Some(dims) = dims else { return Ok(None) };
            dims
        }
    };
    let mut args = batch.args.to_vec();
    args[0] = (&operand.tensor).into();
    args[1] = (&dims[..]).into();
    let result = batch.call(&args)?;
    batch.wrap(result, 0).map(Some)
}

/// `argmax` and `argmin`: `(self, dim, keepdim)`; without `dim` the position among all elements.
pub(super) fn arg_min_max(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let operand = batch.operand(0)?.in_front()?;
    let (rank, keepdim) = (operand.rank(), is_true(batch.args[2]));
    if let Some(dim) = int(batch.args[1]) {
        let Some(dim) = batched_dim(dim, rank) else { return Ok(None) };
        let args = [(&operand.tensor).into(), dim.into(), keepdim.into()];
        let result = batch.call(&args)?;
        return batch.wrap(result, 0).map(Some);
    }
    let count: usize = operand.tensor.shape()[1..].iter().product();
    let flat = aten::reshape(&operand.tensor, &[batch.size as i64, count as i64])?;
    let mut result = batch.call(&[(&flat).into(), 1_i64.into(), false.into()])?;
    if keepdim {
        let mut sizes = vec![1; rank + 1];
        sizes[0] = batch.size as i64;
        result = Value::Tensor(aten::reshape(&result.into_tensor()?, &sizes)?);
    }
    batch.wrap(result, 0).map(Some)
}
