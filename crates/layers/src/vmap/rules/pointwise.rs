//! Operators that work element by element: examples' shapes broadcast, batches stand in front.

use keyfold_core::Result;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::Rule;
use crate::aten;
use crate::vmap::batch::{Batch, Operand};
use crate::vmap::enter::move_dim;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("aten::logical_not", one),
    ("aten::add.Scalar", one),
    ("aten::sub.Scalar", one),
    ("aten::mul.Scalar", one),
    ("aten::div.Scalar", one),
    ("aten::maximum.Scalar", one),
    ("aten::minimum.Scalar", one),
    ("aten::rsub.Scalar", one),
    ("aten::rdiv.Scalar", one),
    ("aten::pow.Scalar", one),
    ("aten::eq.Scalar", one),
    ("aten::ne.Scalar", one),
    ("aten::lt.Scalar", one),
    ("aten::le.Scalar", one),
    ("aten::gt.Scalar", one),
    ("aten::ge.Scalar", one),
    ("aten::floor_divide.Scalar", one),
    ("aten::remainder.Scalar", one),
    ("aten::bitwise_and.Scalar", one),
    ("aten::bitwise_or.Scalar", one),
    ("aten::bitwise_xor.Scalar", one),
    ("aten::bitwise_left_shift.Scalar", one),
    ("aten::bitwise_right_shift.Scalar", one),
    ("aten::rpow.Scalar", one),
    ("aten::rfloor_divide.Scalar", one),
    ("aten::rremainder.Scalar", one),
    ("aten::rbitwise_left_shift.Scalar", one),
    ("aten::rbitwise_right_shift.Scalar", one),
    ("aten::where.Scalar", one),
    ("aten::to", one),
    ("aten::clone", one),
    ("aten::detach", one),
    ("aten::alias", one),
    ("aten::to.device", one),
    ("aten::contiguous", contiguous),
    ("aten::add", several),
    ("aten::sub", several),
    ("aten::mul", several),
    ("aten::div", several),
    ("aten::pow", several),
    ("aten::maximum", several),
    ("aten::minimum", several),
    ("aten::eq", several),
    ("aten::ne", several),
    ("aten::lt", several),
    ("aten::le", several),
    ("aten::gt", several),
    ("aten::ge", several),
    ("aten::floor_divide", several),
    ("aten::remainder", several),
    ("aten::bitwise_and", several),
    ("aten::bitwise_or", several),
    ("aten::bitwise_xor", several),
    ("aten::bitwise_left_shift", several),
    ("aten::bitwise_right_shift", several),
    ("aten::where", several),
    ("aten::where.ScalarOther", several),
    ("aten::where.ScalarSelf", several),
    ("aten::copy_", copy_into),
    ("aten::fill_.Scalar", fill),
];

/// The arguments with other tensors at the first places.
fn with_first<'v>(batch: &Batch<'_, 'v>, first: &'v Tensor) -> Vec<ValueRef<'v>> {
    let mut args = batch.args.to_vec();
    args[0] = first.into();
    args
}

/// Of one tensor, the first argument: the batch stays where it is.
pub(super) fn one(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let Operand { tensor, dim } = batch.operand(0)?;
    let Some(dim) = dim else { return Ok(None) };
    let result = batch.call(&with_first(batch, &tensor))?;
    batch.wrap(result, dim).map(Some)
}

/// Each example contiguous: so the batch in front.
fn contiguous(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let tensor = batch.operand(0)?.in_front()?.tensor;
    let result = batch.call(&[(&tensor).into()])?;
    batch.wrap(result, 0).map(Some)
}

/// Of several tensors that broadcast.
pub(crate) fn several(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
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

/// The dimension that is the batch in every operand, if they can broadcast as they are: those
/// without a batch may not reach as far as it does.
fn common_dim(operands: &[(usize, Operand)], rank: usize) -> Option<usize> {
    let dim = operands.iter().find_map(|(_, operand)| operand.dim)?;
    operands
        .iter()
        .all(|(_, operand)| match operand.dim {
            Some(own) => own == dim && operand.rank() == rank,
            None => operand.rank() <= rank - dim,
        })
        .then_some(dim)
}

/// Writes each example of the source into that of the target, which stays as it is.
fn copy_into(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (Some(target), source) = (batch.target(0)?, batch.operand(1)?) else { return Ok(None) };
    let (dim, rank) = (target.dim, target.physical.ndim() - 1);
    if source.rank() > rank {
        return Ok(None);
    }
    let source = match source.dim {
        Some(_) => move_dim(&source.padded(rank)?.tensor, 0, dim)?,
        None if source.rank() <= rank - dim => source.tensor,
        None => {
            // The batch is among the dimensions that the source has: room for it there.
            let at = source.rank() - (rank - dim);
            aten::unsqueeze(&source.tensor, at as i64)?
        }
    };
    batch.call(&[(&target.physical).into(), (&source).into()])?;
    batch.written(0, &target)
}

fn fill(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let Some(target) = batch.target(0)? else { return Ok(None) };
    batch.call(&with_first(batch, &target.physical))?;
    batch.written(0, &target)
}
