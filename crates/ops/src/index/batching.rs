//! Batching rules of indexing.

use keyfold_core::{DType, Result};
use keyfold_layers::vmap::{Batch, BatchedOperand, move_dim};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::arg_values::{batched_dim, int};
use crate::aten::{self, Aten};

static INDEX: Aten = Aten::new("aten::index.Tensor");

/// Makes an index of the examples' numbers that broadcasts over `rank` further dimensions.
fn numbers(batch: &Batch<'_, '_>, like: &Tensor, rank: usize) -> Result<Tensor> {
    static ARANGE: Aten = Aten::new("aten::arange");
    let none = ValueRef::None;
    let args = [0_i64.into(), (batch.size as i64).into(), 1_i64.into(), none, like.device().into()];
    let numbers = ARANGE.call(&args)?;
    let mut sizes = vec![1; rank + 1];
    sizes[0] = batch.size as i64;
    aten::reshape(&numbers, &sizes)
}

/// `(self, dim, index)` with an index of one dimension.
pub(super) fn index_select(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (x, index) = (batch.operand(0)?, batch.operand(2)?);
    let dim = int(batch.args[1]).and_then(|dim| batched_dim(dim, x.rank()));
    let (Some(dim), 1) = (dim, index.rank()) else { return Ok(None) };
    match (x.dim, index.dim) {
        (_, None) => {
            let x = x.in_front()?.tensor;
            let result = batch.call(&[(&x).into(), dim.into(), (&index.tensor).into()])?;
            batch.wrap(result, 0).map(Some)
        }
        (None, _) => {
            // The indexed dimension is split in two; the first is the batch.
            let (index, own) = (index.in_front()?.tensor, dim as usize - 1);
            let count = index.shape()[1] as i64;
            let flat = aten::reshape(&index, &[batch.size as i64 * count])?;
            let args = [(&x.tensor).into(), (own as i64).into(), (&flat).into()];
            let picked = batch.call(&args)?.into_tensor()?;
            let mut sizes: Vec<i64> = picked.shape().iter().map(|n| *n as i64).collect();
            sizes.splice(own..=own, [batch.size as i64, count]);
            batch.wrap(Value::Tensor(aten::reshape(&picked, &sizes)?), own).map(Some)
        }
        _ => {
            let x = move_dim(&x.in_front()?.tensor, dim as usize, 1)?;
            let index = index.in_front()?.tensor;
            let rows = numbers(batch, &index, 1)?;
            let indices = [rows, index];
            let picked =
                batch.call_other(INDEX.operator()?, &[(&x).into(), (&indices[..]).into()])?;
            let picked = move_dim(&picked.into_tensor()?, 1, dim as usize)?;
            batch.wrap(Value::Tensor(picked), 0).map(Some)
        }
    }
}

/// `(self, dim, index, source)`, with one index for all examples.
pub(super) fn index_add(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (x, index, source) = (batch.operand(0)?, batch.operand(2)?, batch.operand(3)?);
    let dim = int(batch.args[1]).and_then(|dim| batched_dim(dim, x.rank()));
    let (Some(dim), None) = (dim, index.dim) else { return Ok(None) };
    let (x, source) = (x.batched(batch.size)?, source.batched(batch.size)?);
    let args = [(&x).into(), dim.into(), (&index.tensor).into(), (&source).into()];
    let result = batch.call(&args)?;
    batch.wrap(result, 0).map(Some)
}

/// `(self, dim, index)` or `(self, dim, index, src)`, of equal ranks.
pub(super) fn gather(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let dim = int(batch.args[1]);
    let mut tensors = Vec::with_capacity(3);
    let rank = batch.operand(0)?.rank();
    for place in [0, 2, 3].into_iter().take_while(|place| *place < batch.args.len()) {
        let operand = batch.operand(place)?;
        if operand.rank() != rank {
            return Ok(None);
        }
        tensors.push((place, operand.batched(batch.size)?));
    }
    let Some(dim) = dim.and_then(|dim| batched_dim(dim, rank)) else { return Ok(None) };
    let mut args = batch.args.to_vec();
    args[1] = dim.into();
    for (place, tensor) in &tensors {
        args[*place] = tensor.into();
    }
    let result = batch.call(&args)?;
    batch.wrap(result, 0).map(Some)
}

/// `(self, indices)` with integer indices. The indexed dimensions become one group of dimensions: at the first
/// indexed one if they are adjacent, else at the front.
pub(super) fn index(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let x = batch.operand(0)?;
    let given = batch.operands(1)?;
    if given.iter().flatten().any(|index| index.tensor.dtype() == DType::Bool) {
        return Ok(None);
    }
    let indexed: Vec<usize> = (0..given.len()).filter(|d| given[*d].is_some()).collect();
    let Some(first) = indexed.first().copied() else { return Ok(None) };
    let adjacent = indexed.iter().enumerate().all(|(i, d)| *d == first + i);
    let group = given.iter().flatten().map(BatchedOperand::rank).max().unwrap_or(0);
    let batched_index = given.iter().flatten().any(|index| index.dim.is_some());
    let mut indices: Vec<Value> = Vec::with_capacity(given.len() + 1);
    let x_batched = x.dim.is_some();
    let x = x.in_front()?.tensor;
    for index in given {
        indices.push(match index {
            None => Value::None,
            Some(index) => Value::Tensor(index.padded(group)?.tensor),
        });
    }
    if x_batched {
        let rows = match batched_index {
            true => Value::Tensor(numbers(batch, &x, group)?),
            false => Value::None,
        };
        indices.insert(0, rows);
    }
    let picked = batch.call(&[(&x).into(), (&indices[..]).into()])?.into_tensor()?;
    let (result, dim) = match (x_batched, batched_index) {
        // The batch isn't indexed, so it comes after a group at the front.
        (true, false) => (picked, if adjacent { 0 } else { group }),
        // The batch is the group's first dimension.
        (false, _) => (picked, if adjacent { first } else { 0 }),
        // The batch is indexed, which moves the group to the front, as non-adjacent indexed dimensions do. The
        // dimensions before the group move back before it.
        (true, true) => {
            let mut result = picked;
            let before = if adjacent { first } else { 0 };
            // Dimensions: the batch, the group, those before the group, those after it.
            for i in 0..before {
                result = move_dim(&result, 1 + group + i, 1 + i)?;
            }
            (result, 0)
        }
    };
    batch.wrap(Value::Tensor(result), dim).map(Some)
}
