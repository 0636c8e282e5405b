//! `slice_write_` and `slice_read`: rows of a cache of keys and values, which is filled position by position.

use keyfold_core::{ErrorKind, Result};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Backward, Forward, Gradients, TensorMeta};
use keyfold_layers::vmap::Batch;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::batched;
use crate::arg_values::int;
use crate::aten;
use crate::convert::write_converted;
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::{LINEAR, pushforward};
use crate::naming::Naming;
use crate::op::Op;
use crate::promote::check_assignable;
use crate::row::{Layers, Row, Rule};
use crate::vjp::{READS_NOTHING, first_only, formula, if_needed, zeros_like_operand, zeros_of};

/// The dimension of a cache along which its positions are.
const POSITIONS: usize = 1;

/// Returns the number of positions of a cache.
fn positions(op: &Op, cache: &Tensor) -> Result<usize> {
    if cache.ndim() > POSITIONS {
        return Ok(cache.shape()[POSITIONS]);
    }
    let message = format!(
        "argument 'self' has shape {:?}, but a cache has dimensions for examples and for positions",
        cache.shape()
    );
    Err(op.error(ErrorKind::Shape, message))
}

/// Returns the source with a dimension of positions: that of one position lacks it.
fn with_positions(cache_rank: usize, source: &Tensor) -> Result<Tensor> {
    if source.ndim() == cache_rank {
        Ok(source.detach())
    } else {
        source.unsqueeze(POSITIONS as i64)
    }
}

fn slice_write<'t>(
    call: Call<'_, ()>,
    (cache, source, pos): (&'t Tensor, &'t Tensor, i64),
) -> Result<CallPlan<impl Run + use<'t>>> {
    check_assignable(&call, source.dtype(), cache.dtype())?;
    let length = positions(&call, cache)?;
    let fits = |given: &[usize]| {
        given.len() == cache.ndim()
            && (0..given.len()).all(|d| d == POSITIONS || given[d] == cache.shape()[d])
    };
    let rows = if source.ndim() + 1 == cache.ndim() || source.ndim() == cache.ndim() {
        Some(call.at(with_positions(cache.ndim(), source))?).filter(|rows| fits(rows.shape()))
    } else {
        None
    };
    let Some(rows) = rows else {
        let mut one = cache.shape().to_vec();
        one.remove(POSITIONS);
        let message = format!(
            "argument 'source' has shape {:?}, but a position of argument 'self' of shape {:?} has {one:?}; \
             several positions have one dimension more, at {POSITIONS}",
            source.shape(),
            cache.shape()
        );
        return Err(call.error(ErrorKind::Shape, message));
    };
    let count = rows.shape()[POSITIONS];
    if pos < 0 || (pos as u64).saturating_add(count as u64) > length as u64 {
        let what = match length.checked_sub(count) {
            Some(last) => format!("give one from 0 to {last}"),
            None => "they are too many at any position".to_owned(),
        };
        let message = format!(
            "argument 'pos' is {pos}, but argument 'self' has {length} positions and {count} are written; \
             {what}"
        );
        return Err(call.error(ErrorKind::Index, message));
    }
    let run = move |op: &Op, cache: &Tensor| {
        let end = pos + count as i64;
        let part = op.at(cache.slice(POSITIONS as i64, Some(pos), Some(end), 1))?;
        // SAFETY: the cache is an argument that the operator writes to (`Run::run`).
        unsafe { write_converted(op, &rows, &part) }
    };
    Ok(CallPlan::new(cache.device(), cache.shape().clone(), cache.dtype(), run))
}

fn slice_read(op: &Op, cache: &Tensor, length: i64) -> Result<Tensor> {
    let all = positions(op, cache)?;
    if length < 0 || length > all as i64 {
        let message = format!(
            "argument 'length' is {length}, but argument 'self' has {all} positions; give a number from 0 to \
             {all}"
        );
        return Err(op.error(ErrorKind::Index, message));
    }
    op.at(cache.slice(POSITIONS as i64, Some(0), Some(length), 1))
}

/// Replaces the positions of a cache from `pos` on.
fn replaced(cache: &Tensor, source: &Tensor, pos: i64) -> Result<Tensor> {
    let source = match source.ndim() == cache.ndim() {
        true => source.clone(),
        false => aten::unsqueeze(source, POSITIONS as i64)?,
    };
    let end = pos + source.shape()[POSITIONS] as i64;
    let (start, end) = (ValueRef::Int(pos), ValueRef::Int(end));
    aten::slice_scatter(cache, &source, POSITIONS as i64, start, end, 1)
}

fn write_gradients(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (pos, source) = (call.int(2).unwrap_or(0), call.meta(1));
    let one = source.shape.len() < grad.ndim();
    Ok(vec![
        if_needed(call, 0, || {
            replaced(grad, &zeros_of(&TensorMeta { dtype: grad.dtype(), ..source.clone() })?, pos)
        })?,
        if_needed(call, 1, || {
            let count = if one { 1 } else { source.shape[POSITIONS] as i64 };
            let (start, end) = (ValueRef::Int(pos), ValueRef::Int(pos + count));
            let part = aten::slice(grad, POSITIONS as i64, start, end, 1)?;
            if one { aten::squeeze(&part, POSITIONS as i64) } else { Ok(part) }
        })?,
    ])
}

fn write_tangent(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    if call.tangent(0).is_none() && call.tangent(1).is_none() {
        return Ok(None);
    }
    let pos = int(call.args()[2]).unwrap_or(0);
    replaced(&call.tangent_or_zeros(0)?, &call.tangent_or_zeros(1)?, pos).map(Some)
}

fn read_gradients(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &replaced(&zeros_like_operand(call, 0, grad)?, grad, 0)?)
}

fn read_batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let cache = batch.operand(0)?.in_front()?;
    let length = int(batch.args[1]).filter(|length| *length >= 0);
    let (Some(length), true) = (length, cache.rank() > POSITIONS) else { return Ok(None) };
    if length > cache.size_at(POSITIONS) as i64 {
        return Ok(None);
    }
    let (start, end) = (ValueRef::Int(0), ValueRef::Int(length));
    let part = aten::slice(&cache.tensor, POSITIONS as i64 + 1, start, end, 1)?;
    batch.wrap(Value::Tensor(part), 0).map(Some)
}

/// Returns the rows of `slice_write_` and `slice_read`.
pub(super) fn rows() -> Result<Vec<Row>> {
    Ok(vec![
        Row::writes::<(&Tensor, &Tensor, i64), _>(
            "keyfold::slice_write_(Tensor(a!) self, Tensor source, int pos) -> Tensor(a!)",
            slice_write,
            Layers {
                derivative: formula(READS_NOTHING, write_gradients),
                tangent: pushforward(write_tangent),
                batching: Rule::Refused("each example writes to a cache of its own"),
                autocast: Category::Leave,
            },
            Naming::PartOf("slice_write"),
        )?,
        Row::view::<(&Tensor, i64)>(
            "keyfold::slice_read(Tensor(a) self, int length) -> Tensor(a)",
            |op, (cache, length)| slice_read(op, cache, length),
            Layers {
                derivative: formula(READS_NOTHING, read_gradients),
                tangent: LINEAR,
                batching: batched(read_batched),
                autocast: Category::Leave,
            },
            Naming::PartOf("slice_read"),
        )?,
    ])
}
