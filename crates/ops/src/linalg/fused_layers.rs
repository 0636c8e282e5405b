//! Gradients, tangents and batching rules of products with an addend and an activation.

use keyfold_core::{Result, Scalar};
use keyfold_layers::autograd::{Backward, Forward, Gradients};
use keyfold_layers::vmap::{Batch, BatchedOperand};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::batching;
use super::gradients::{flat, transposed};
use crate::activation;
use crate::aten::{self, Aten};
use crate::vjp::{conj_if_complex, conj_scalar, if_needed};

/// Multiplies by a number, unless it is 1.
fn scaled(x: Tensor, factor: Scalar) -> Result<Tensor> {
    let is_one = !matches!(factor, Scalar::Complex(_)) && factor.as_f64() == 1.0;
    if is_one { Ok(x) } else { aten::mul_scalar(&x, factor) }
}

/// `beta g`, and `alpha g b^H`, and `alpha a^H g`.
pub(super) fn addmm_vjp(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (beta, alpha) = (conj_scalar(call.scalar(3)), conj_scalar(call.scalar(4)));
    let factor = |at| transposed(&conj_if_complex(&call.tensor(at)?)?);
    Ok(vec![
        if_needed(call, 0, || scaled(grad.clone(), beta))?,
        if_needed(call, 1, || scaled(aten::matmul(grad, &factor(2)?)?, alpha))?,
        if_needed(call, 2, || scaled(aten::matmul(&factor(1)?, grad)?, alpha))?,
    ])
}

/// Adds up tangents, of which each may be absent.
fn total(parts: impl IntoIterator<Item = Result<Option<Tensor>>>) -> Result<Option<Tensor>> {
    let mut sum: Option<Tensor> = None;
    for part in parts {
        sum = match (sum, part?) {
            (Some(sum), Some(part)) => Some(aten::add(&sum, &part)?),
            (sum, part) => sum.or(part),
        };
    }
    Ok(sum)
}

/// Expands a tangent to the shape of the result.
fn expanded(call: &Forward<'_, '_>, tangent: Tensor) -> Result<Tensor> {
    let shape = call.result()?.shape();
    match tangent.shape() == shape {
        true => Ok(tangent),
        false => aten::expand(&tangent, &aten::sizes(shape)),
    }
}

pub(super) fn addmm_jvp(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let number = |at: usize| call.args()[at].scalar().unwrap_or(Scalar::Int(1));
    let (beta, alpha) = (number(3), number(4));
    let of_addend = call.tangent(0).map(|t| expanded(call, scaled(t.clone(), beta)?));
    let left = call.tangent(1).map(|t| scaled(aten::matmul(t, call.tensor(2)?)?, alpha));
    let right = call.tangent(2).map(|t| scaled(aten::matmul(call.tensor(1)?, t)?, alpha));
    total([left, right, of_addend].map(Option::transpose))
}

static LINEAR: Aten = Aten::new("aten::linear");

/// The gradients of the operands of `linear` from that of its result, without an activation.
pub(super) fn linear_vjp(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let to_number = call.meta(1).shape.len() == 1;
    let of_input = || {
        let weight = conj_if_complex(&call.tensor(1)?)?;
        match to_number {
            true => aten::mul(&aten::unsqueeze(grad, -1)?, &weight),
            false => aten::matmul(grad, &weight),
        }
    };
    let of_weight = || {
        let x = flat(&conj_if_complex(&call.tensor(0)?)?)?;
        let rows = match to_number {
            true => aten::reshape(grad, &[-1, 1])?,
            false => flat(grad)?,
        };
        let product = aten::matmul(&transposed(&rows)?, &x)?;
        aten::reshape(&product, &aten::sizes(&call.shape(1)))
    };
    let mut grads = vec![if_needed(call, 0, of_input)?, if_needed(call, 1, of_weight)?];
    grads.resize(call.slots(), None);
    if call.needs(2) {
        grads[2] = if_needed(call, 2, || Ok(grad.clone()))?;
    }
    Ok(grads)
}

pub(super) fn linear_jvp(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let product = |x: &Tensor, weight: &Tensor| LINEAR.call(&[x.into(), weight.into()]);
    let left = call.tangent(0).map(|t| product(t, call.tensor(1)?));
    let right = call.tangent(1).map(|t| product(call.tensor(0)?, t));
    let of_bias = call.tangent(2).map(|t| expanded(call, t.clone()));
    total([left, right, of_bias].map(Option::transpose))
}

/// As [`linear_vjp`], with the gradient before the activation.
pub(super) fn activated_vjp(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let sum = || {
        let (x, weight, bias) = (call.tensor(0)?, call.tensor(1)?, call.optional(2)?);
        let bias = bias.as_ref().map_or(ValueRef::None, ValueRef::Tensor);
        LINEAR.call(&[(&x).into(), (&weight).into(), bias])
    };
    let activation = activation::named(call.value(3));
    linear_vjp(call, &activation::times_slope(activation, grad, sum, &call.result(0)?)?)
}

pub(super) fn activated_jvp(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let Some(tangent) = linear_jvp(call)? else { return Ok(None) };
    let sum = || LINEAR.call(&call.args()[..3]);
    let activation = activation::named(call.args()[3]);
    activation::times_slope(activation, &tangent, sum, call.result()?).map(Some)
}

/// The rule of `linear`, with or without an activation: one call where the examples share weight and bias,
/// else a product of batches, a sum, and the activation.
pub(super) fn linear_batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    static ADD: Aten = Aten::new("aten::add");
    let (x, weight) = (batch.operand(0)?, batch.operand(1)?);
    let bias = match batch.args[2] {
        ValueRef::None => None,
        _ => Some(batch.operand(2)?),
    };
    if weight.dim.is_none() && bias.as_ref().is_none_or(|bias| bias.dim.is_none()) {
        let x = x.in_front()?.tensor;
        let mut args = batch.args.to_vec();
        args[0] = (&x).into();
        return batch.wrap(batch.call(&args)?, 0).map(Some);
    }
    let (rank, outputs) = (x.rank(), weight.rank());
    let fits = rank > 0
        && (1..=2).contains(&outputs)
        && x.size_at(rank - 1) == weight.size_at(outputs - 1)
        && bias.as_ref().is_none_or(|bias| match bias.rank() {
            0 => true,
            1 => outputs == 2 && [1, weight.size_at(0)].contains(&bias.size_at(0)),
            _ => false,
        });
    if !fits {
        // The loop raises the error for one example.
        return Ok(None);
    }
    let weight = weight.in_front()?;
    let tensor = match outputs {
        2 => aten::transpose(&weight.tensor, -1, -2)?,
        _ => weight.tensor,
    };
    let columns = BatchedOperand { tensor, dim: weight.dim };
    let result_rank = rank - 1 + outputs - 1;
    let mut result = match x.dim.is_none() && columns.dim.is_none() {
        true => aten::unsqueeze(&batching::multiply(batch, &x.tensor, &columns.tensor)?, 0)?,
        false => batching::general(&|a, b| batching::multiply(batch, a, b), x, columns)?,
    };
    if let Some(bias) = bias {
        let bias = bias.padded(result_rank)?.tensor;
        let sum = batch.call_other(ADD.operator()?, &[(&result).into(), (&bias).into()])?;
        result = sum.into_tensor()?;
    }
    let activation =
        batch.args.get(3).map_or_else(Default::default, |name| activation::named(*name));
    if let Some(operator) = activation::operator(activation) {
        result = batch.call_other(operator.operator()?, &[(&result).into()])?.into_tensor()?;
    }
    batch.wrap(Value::Tensor(result), 0).map(Some)
}

/// One `baddbmm` for all examples.
pub(super) fn addmm_batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    static BADDBMM: Aten = Aten::new("aten::baddbmm");
    let operands = [batch.operand(0)?, batch.operand(1)?, batch.operand(2)?];
    if operands[0].rank() > 2 || operands[1].rank() != 2 || operands[2].rank() != 2 {
        // The loop raises the error for one example.
        return Ok(None);
    }
    let [addend, a, b] = operands;
    let addend = addend.padded(2)?.tensor;
    let (a, b) = (a.batched(batch.size)?, b.batched(batch.size)?);
    let args = [(&addend).into(), (&a).into(), (&b).into(), batch.args[3], batch.args[4]];
    batch.wrap(batch.call_other(BADDBMM.operator()?, &args)?, 0).map(Some)
}

/// One `baddbmm` for all examples, whose own batches are joined.
pub(super) fn baddbmm_batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let operands = [batch.operand(0)?, batch.operand(1)?, batch.operand(2)?];
    let [addend, a, b] = operands;
    let fits = addend.rank() <= 3
        && a.rank() == 3
        && b.rank() == 3
        && a.size_at(0) == b.size_at(0)
        && (addend.rank() < 3 || [1, a.size_at(0)].contains(&addend.size_at(0)));
    if !fits {
        // The loop raises the error for one example.
        return Ok(None);
    }
    let (size, own) = (batch.size as i64, a.size_at(0) as i64);
    let joined = |x: &Tensor| {
        let sizes = aten::sizes(&x.shape()[2..]);
        aten::reshape(x, &[&[size * own], &sizes[..]].concat())
    };
    let addend = match addend.dim {
        // The examples share it: it broadcasts over the joined batches unless it has one of its own.
        None if addend.rank() < 3 || addend.size_at(0) == 1 => addend.tensor,
        _ => {
            let mut all = addend.padded(3)?.batched(batch.size)?;
            if all.ndim() == 4 {
                let mut sizes = aten::sizes(all.shape());
                (sizes[0], sizes[1]) = (size, own);
                all = joined(&aten::expand(&all, &sizes)?)?;
            }
            all
        }
    };
    let (a, b) = (joined(&a.batched(batch.size)?)?, joined(&b.batched(batch.size)?)?);
    let args = [(&addend).into(), (&a).into(), (&b).into(), batch.args[3], batch.args[4]];
    let result = batch.call(&args)?.into_tensor()?;
    let sizes = aten::sizes(&result.shape()[1..]);
    let result = aten::reshape(&result, &[&[size, own], &sizes[..]].concat())?;
    batch.wrap(Value::Tensor(result), 0).map(Some)
}
