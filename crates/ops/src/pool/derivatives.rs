//! Derivatives and batching rules of pooling.
//!
//! The gradients read shapes of operands, not elements: zeros with one element in memory stand for them.

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_dispatch::Operator;
use keyfold_layers::autograd::{Backward, Forward, Gradients, Pushforward};
use keyfold_layers::vmap::{Batch, wrap};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::aten::{self, Aten};
use crate::vjp::{first_only, zeros_of};

/// The operators of two and three dimensions.
type Pair = [Aten; 2];

/// Returns the number of pooled dimensions, by the operator's name.
fn dims_of(operator: &Operator<Value>) -> usize {
    if operator.name().contains("3d") { 3 } else { 2 }
}

/// The arguments that aren't tensors, from a position on.
fn values<'c>(call: &'c Backward<'_>, from: usize, count: usize) -> Vec<ValueRef<'c>> {
    (from..from + count).map(|at| call.value(at)).collect()
}

pub(super) fn max<const D: usize>(
    call: &Backward<'_>,
    grads: &[Option<Tensor>],
) -> Result<Gradients> {
    static OPS: Pair = [
        Aten::new("aten::max_pool2d_with_indices_backward"),
        Aten::new("aten::max_pool3d_with_indices_backward"),
    ];
    let Some(grad) = &grads[0] else { return Ok(vec![None; call.slots()]) };
    let (x, indices) = (zeros_of(&call.meta(0))?, call.result(1)?);
    let windows = values(call, 1, 5);
    let tensors = [grad.into(), (&x).into()];
    let args: Vec<ValueRef<'_>> =
        tensors.into_iter().chain(windows).chain([(&indices).into()]).collect();
    first_only(call, &OPS[D - 2].call(&args)?)
}

/// Returns the elements at indices that count through the last dimensions.
fn at_indices(x: &Tensor, indices: &Tensor, dims: usize) -> Result<Tensor> {
    let flat = |x: &Tensor| {
        let (planes, own) = x.shape().split_at(x.ndim() - dims);
        let mut sizes = aten::sizes(planes);
        sizes.push(own.iter().product::<usize>() as i64);
        aten::reshape(x, &sizes)
    };
    let found = aten::gather(&flat(x)?, -1, &flat(indices)?)?;
    aten::reshape(&found, &aten::sizes(indices.shape()))
}

pub(super) fn max_backward<const D: usize>(
    call: &Backward<'_>,
    grad: &Tensor,
) -> Result<Gradients> {
    let mut all = vec![None; call.slots()];
    if call.needs(0) {
        all[0] = Some(at_indices(grad, &call.tensor(7)?, D)?);
    }
    Ok(all)
}

/// The tangent of max pooling: the tangents of the greatest elements.
struct MaxTangent;

pub(super) fn max_tangent() -> Arc<dyn Pushforward> {
    Arc::new(MaxTangent)
}

impl Pushforward for MaxTangent {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        let Some(tangent) = call.tangent(0) else { return Ok(vec![None, None]) };
        let dims = dims_of(call.operator());
        Ok(vec![Some(at_indices(tangent, &call.results()[1], dims)?), None])
    }
}

/// Calls the backward operator with the gradient, and zeros for the operand.
fn to_operand(call: &Backward<'_>, op: &Aten, grad: &Tensor, count: usize) -> Result<Gradients> {
    let x = zeros_of(&call.meta(0))?;
    let args: Vec<ValueRef<'_>> =
        [grad.into(), (&x).into()].into_iter().chain(values(call, 1, count)).collect();
    first_only(call, &op.call(&args)?)
}

pub(super) fn average<const D: usize>(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    static OPS: Pair =
        [Aten::new("aten::avg_pool2d_backward"), Aten::new("aten::avg_pool3d_backward")];
    to_operand(call, &OPS[D - 2], grad, 6)
}

pub(super) fn adaptive<const D: usize>(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    static OPS: Pair = [
        Aten::new("aten::_adaptive_avg_pool2d_backward"),
        Aten::new("aten::_adaptive_avg_pool3d_backward"),
    ];
    to_operand(call, &OPS[D - 2], grad, 0)
}

/// The gradient of the backward operator is the forward one of the gradient, since both are linear.
pub(super) fn average_backward<const D: usize>(
    call: &Backward<'_>,
    grad: &Tensor,
) -> Result<Gradients> {
    static OPS: Pair = [Aten::new("aten::avg_pool2d"), Aten::new("aten::avg_pool3d")];
    let args: Vec<ValueRef<'_>> = [grad.into()].into_iter().chain(values(call, 2, 6)).collect();
    first_only(call, &OPS[D - 2].call(&args)?)
}

pub(super) fn adaptive_backward<const D: usize>(
    call: &Backward<'_>,
    grad: &Tensor,
) -> Result<Gradients> {
    static OPS: Pair =
        [Aten::new("aten::adaptive_avg_pool2d"), Aten::new("aten::adaptive_avg_pool3d")];
    let shape = call.shape(0);
    let sizes = aten::sizes(&shape[shape.len() - D..]);
    first_only(call, &OPS[D - 2].call(&[grad.into(), sizes.as_slice().into()])?)
}

/// Makes one batch of the examples and their own batches.
fn merged(batch: &Batch<'_, '_>, at: usize, dims: usize) -> Result<Tensor> {
    let tensor = batch.operand(at)?.batched(batch.size)?;
    if tensor.ndim() <= dims + 2 {
        return Ok(tensor);
    }
    let mut sizes = aten::sizes(&tensor.shape()[1..]);
    sizes[0] *= batch.size as i64;
    aten::reshape(&tensor, &sizes)
}

/// Divides the batch again, and wraps the results.
fn divided(batch: &Batch<'_, '_>, result: Value, is_merged: bool) -> Result<Value> {
    match result {
        Value::Tuple(items) | Value::List(items) => {
            let each = items.into_iter().map(|item| divided(batch, item, is_merged));
            Ok(Value::Tuple(each.collect::<Result<_>>()?))
        }
        one => {
            let mut tensor = one.into_tensor()?;
            if is_merged {
                let mut sizes = aten::sizes(tensor.shape());
                sizes[0] /= (batch.size as i64).max(1);
                sizes.insert(0, batch.size as i64);
                tensor = aten::reshape(&tensor, &sizes)?;
            }
            wrap(tensor, 0, batch.level).map(Value::Tensor)
        }
    }
}

/// Calls the operator with tensors at these positions, each of all examples.
fn by_merging(batch: &Batch<'_, '_>, tensors: &[usize]) -> Result<Option<Value>> {
    let dims = dims_of(batch.operator());
    let rank = batch.operand(tensors[0])?.rank();
    if rank != dims + 1 && rank != dims + 2 || batch.size == 0 {
        // The loop raises the error for one example.
        return Ok(None);
    }
    let merged: Vec<Tensor> =
        tensors.iter().map(|at| merged(batch, *at, dims)).collect::<Result<_>>()?;
    let mut args = batch.args.to_vec();
    for (at, tensor) in tensors.iter().zip(&merged) {
        args[*at] = tensor.into();
    }
    divided(batch, batch.call(&args)?, rank == dims + 2).map(Some)
}

pub(super) fn batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    by_merging(batch, &[0])
}

pub(super) fn batched_backward(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let indices = batch.args.get(7).filter(|last| last.tensor().is_ok());
    by_merging(batch, if indices.is_some() { &[0, 1, 7] } else { &[0, 1] })
}
