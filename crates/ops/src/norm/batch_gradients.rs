//! The derivatives of batch norm and of its gradient.

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_layers::autograd::{Backward, Forward, Gradients, Pushforward};
use keyfold_tensor::{Tensor, ValueRef};

use super::lanes::{Lanes, Operands, plus};
use super::rules::{
    BackwardPlaces, ForwardPlaces, backward_gradients, backward_tangents, forward_gradients,
    forward_tangents, in_slots, several, wanted_tangents,
};
use super::{call_several, optional, spread};
use crate::arg_values::is_true;
use crate::aten::{self, Aten};
use crate::vjp::fit_operand;

static BACKWARD: Aten = Aten::new("aten::native_batch_norm_backward");

const FORWARD: ForwardPlaces = ForwardPlaces { weight: 1, bias: Some(2), mean: Some(1), rstd: 2 };
/// The gradient of a training step.
const OF_TRAINING: BackwardPlaces = BackwardPlaces { mean: Some(5), rstd: 6, weight: 2, mask: 9 };

/// The channels as lanes.
fn lanes(shape: &[usize], constant: bool) -> Lanes {
    let mut weights = vec![1; shape.len()];
    weights[1] = shape[1] as i64;
    Lanes {
        view: aten::sizes(shape),
        dims: (0..shape.len() as i64).filter(|dim| *dim != 1).collect(),
        weights,
        centered: true,
        constant,
    }
}

/// The elements of a channel.
fn count(shape: &[usize]) -> i64 {
    (shape[0] * shape[2..].iter().product::<usize>()) as i64
}

/// The gradients of input, weight and bias from those of the first three results; `eps` is the place of that
/// argument.
fn three(call: &Backward<'_>, grads: &[Option<Tensor>], eps: usize) -> Result<[Option<Tensor>; 3]> {
    let lanes = lanes(&call.shape(0), false);
    let eps = call.value(eps);
    forward_gradients(call, grads, &lanes, FORWARD, |given| {
        let none = ValueRef::None;
        let (mean, weight) = (optional(given.mean), optional(given.weight));
        let (grad, x, rstd) = (given.grad.into(), given.x.into(), given.rstd.into());
        let (train, mask) = (true.into(), ValueRef::Refs(given.mask));
        call_several(&BACKWARD, &[grad, x, weight, none, none, mean, rstd, train, eps, mask])
    })
}

pub(super) fn training(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    three(call, grads, 5).map(Into::into)
}

/// The new running statistics are `old + momentum (new - old)`, of the unbiased variance.
pub(super) fn running(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    let momentum = call.scalar(6).as_f64();
    let mut direct = grads[..3].to_vec();
    if let Some(of_mean) = &grads[3] {
        let more = aten::mul_scalar(of_mean, momentum)?;
        direct[1] = plus(direct[1].take(), Some(more))?;
    }
    let mut found = match direct.iter().any(Option::is_some) {
        true => three(call, &direct, 7)?,
        false => Default::default(),
    };
    if let (Some(of_variance), true) = (&grads[4], call.needs(0)) {
        let (lanes, shape) = (lanes(&call.shape(0), false), call.shape(0));
        let distance = aten::sub(&call.tensor(0)?, &lanes.view_statistics(&call.result(1)?)?)?;
        let factor = 2.0 * momentum / (count(&shape) - 1) as f64;
        let factor = aten::mul_scalar(&lanes.view_statistics(of_variance)?, factor)?;
        let more = fit_operand(call, 0, &aten::mul(&distance, &factor)?)?;
        found[0] = plus(found[0].take(), more)?;
    }
    let old = |at: usize, grad: &Option<Tensor>| match grad {
        Some(grad) if call.needs(at) => {
            fit_operand(call, at, &aten::mul_scalar(grad, 1.0 - momentum)?)
        }
        _ => Ok(None),
    };
    let [dx, dw, db] = found;
    Ok(vec![dx, dw, db, old(3, &grads[3])?, old(4, &grads[4])?])
}

/// The reciprocal deviation of a running variance.
fn deviation(variance: &Tensor, eps: f64) -> Result<Tensor> {
    aten::rdiv_scalar(&aten::sqrt(&aten::add_scalar(variance, eps)?)?, 1.0)
}

pub(super) fn inference(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    let mut found = vec![None; 5];
    let Some(grad) = &grads[0] else { return Ok(found) };
    let (x, weight) = (call.tensor(0)?, call.optional(1)?);
    let (mean, variance) = (call.tensor(3)?, call.tensor(4)?);
    let running = call.needs(3) || call.needs(4);
    let mask = [call.needs(0), call.needs(1) || running, call.needs(2) || running];
    let mask = mask.map(ValueRef::Bool);
    let none = ValueRef::None;
    let [dx, dw, db] = call_several::<3>(
        &BACKWARD,
        &[
            grad.into(),
            (&x).into(),
            optional(weight.as_ref()),
            (&mean).into(),
            (&variance).into(),
            none,
            none,
            false.into(),
            call.value(6),
            ValueRef::Refs(&mask),
        ],
    )?;
    if let (true, Some(dw), Some(db)) = (running, &dw, &db) {
        // With `r = 1 / sqrt(variance + eps)` the results are `(x - mean) r w + b`.
        let r = deviation(&variance, call.scalar(6).as_f64())?;
        let by = weight.as_ref().map_or_else(|| Ok(r.clone()), |weight| aten::mul(&r, weight))?;
        found[3] = fit_operand(call, 3, &aten::neg(&aten::mul(&by, db)?)?)?;
        let half = aten::mul_scalar(&aten::mul(&by, &r)?, -0.5)?;
        found[4] = fit_operand(call, 4, &aten::mul(&half, dw)?)?;
    }
    for (at, own) in [dx, dw, db].into_iter().enumerate() {
        if let (Some(own), true) = (own, call.needs(at)) {
            found[at] = fit_operand(call, at, &own)?;
        }
    }
    Ok(found)
}

/// The gradients of a gradient of batch norm.
pub(super) fn backward(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    if call.flag(7) {
        let lanes = lanes(&call.shape(1), false);
        let found = backward_gradients(call, grads, &lanes, OF_TRAINING)?;
        return Ok(in_slots(call, OF_TRAINING, found));
    }
    let lanes = lanes(&call.shape(1), true);
    let (operands, r) = constant_operands(&lanes, call)?;
    let [u, v, s] = spread(call.value(9), grads);
    let view = |x: Option<Tensor>| x.map(|x| lanes.view_weights(&x)).transpose();
    let [grad, x, mean, rstd, weight] = lanes.gradients(&operands, [u, view(v)?, view(s)?])?;
    let mut slots = vec![None; call.slots()];
    let fit = |at: usize, grad: Option<Tensor>| match grad {
        Some(grad) if call.needs(at) => {
            let whole = aten::expand(&grad, &lanes.view)?;
            lanes.fit(&whole, &call.meta(at), &lanes.view).map(Some)
        }
        _ => Ok(None),
    };
    let small = |at: usize, grad: Option<Tensor>| match grad {
        Some(grad) if call.needs(at) => lanes.fit_statistics(&grad, &call.meta(at)).map(Some),
        _ => Ok(None),
    };
    // The derivative of `r` with respect to the variance is `-r^3 / 2`.
    let cube = aten::mul(&aten::mul(&r, &r)?, &r)?;
    let variance =
        rstd.map(|grad| aten::mul(&aten::mul_scalar(&cube, -0.5)?, &grad)).transpose()?;
    (slots[0], slots[1]) = (fit(0, grad)?, fit(1, x)?);
    if let (Some(weight), true) = (weight, call.needs(2)) {
        slots[2] = Some(lanes.fit_weights(&weight, &call.meta(2))?);
    }
    (slots[3], slots[4]) = (small(3, mean)?, small(4, variance)?);
    Ok(slots)
}

/// The operands of a gradient by running statistics, and the reciprocal deviations.
fn constant_operands(lanes: &Lanes, call: &Backward<'_>) -> Result<(Operands, Tensor)> {
    let r = lanes.view_statistics(&deviation(&call.tensor(4)?, call.scalar(8).as_f64())?)?;
    let weight = call.optional(2)?.map(|weight| lanes.view_weights(&weight)).transpose()?;
    let operands = Operands {
        grad: Some(call.tensor(0)?),
        x: call.tensor(1)?,
        mean: Some(lanes.view_statistics(&call.tensor(3)?)?),
        rstd: r.clone(),
        weight,
    };
    Ok((operands, r))
}

fn lanes_of(call: &Forward<'_, '_>, input: usize) -> Result<Lanes> {
    Ok(lanes(call.tensor(input)?.shape(), false))
}

pub(super) fn training_tangents() -> Arc<dyn Pushforward> {
    several(|call| forward_tangents(call, &lanes_of(call, 0)?, FORWARD))
}

pub(super) fn running_tangents() -> Arc<dyn Pushforward> {
    several(|call| {
        let lanes = lanes_of(call, 0)?;
        let mut tangents = forward_tangents(call, &lanes, FORWARD)?;
        let momentum = call.args()[6].scalar().map_or(0.0, |number| number.as_f64());
        let kept = |at: usize| {
            call.tangent(at).map(|old| aten::mul_scalar(old, 1.0 - momentum)).transpose()
        };
        let (mut mean, mut variance) = (kept(3)?, kept(4)?);
        if let (Some(moved), Some(x)) = (&tangents[1], call.tangent(0)) {
            mean = plus(mean, Some(aten::mul_scalar(moved, momentum)?))?;
            let input = call.tensor(0)?;
            let distance = aten::sub(input, &lanes.view_statistics(&call.results()[1])?)?;
            let sum = aten::sum(&aten::mul(&distance, x)?, &lanes.dims, false)?;
            let factor = 2.0 * momentum / (count(input.shape()) - 1) as f64;
            variance = plus(variance, Some(aten::mul_scalar(&sum, factor)?))?;
        }
        tangents.extend([mean, variance]);
        Ok(tangents)
    })
}

/// The tangent of `1 / sqrt(variance + eps)`.
fn deviation_tangent(r: &Tensor, variance: &Tensor) -> Result<Tensor> {
    let cube = aten::mul(&aten::mul(r, r)?, r)?;
    aten::mul(&aten::mul_scalar(&cube, -0.5)?, variance)
}

pub(super) fn inference_tangents() -> Arc<dyn Pushforward> {
    several(|call| {
        let x = call.tensor(0)?;
        let lanes = lanes(x.shape(), true);
        let eps = call.args()[6].scalar().map_or(0.0, |number| number.as_f64());
        let r = lanes.view_statistics(&deviation(call.tensor(4)?, eps)?)?;
        let mean = lanes.view_statistics(call.tensor(3)?)?;
        let small =
            |at: usize| call.tangent(at).map(|tangent| lanes.view_statistics(tangent)).transpose();
        let distance = aten::sub(x, &mean)?;
        let mut moved = call.tangent(0).cloned();
        if let Some(mean) = small(3)? {
            moved = plus(moved, Some(aten::neg(&mean)?))?;
        }
        let mut normal = moved.map(|moved| aten::mul(&moved, &r)).transpose()?;
        if let Some(variance) = small(4)? {
            let more = aten::mul(&distance, &deviation_tangent(&r, &variance)?)?;
            normal = plus(normal, Some(more))?;
        }
        if let (Ok(weight), Some(own)) = (call.tensor(1), &normal) {
            normal = Some(aten::mul(own, &lanes.view_weights(weight)?)?);
        }
        if let Some(weight) = small(1)? {
            normal = plus(normal, Some(aten::mul(&aten::mul(&distance, &r)?, &weight)?))?;
        }
        let all = plus(normal, small(2)?)?;
        let all = all.map(|all| aten::expand(&all, &lanes.view)).transpose()?;
        Ok(vec![all, None, None])
    })
}

pub(super) fn backward_tangents_of() -> Arc<dyn Pushforward> {
    several(|call| {
        if is_true(call.args()[7]) {
            return backward_tangents(call, &lanes_of(call, 1)?, OF_TRAINING);
        }
        let x = call.tensor(1)?;
        let lanes = lanes(x.shape(), true);
        let eps = call.args()[8].scalar().map_or(0.0, |number| number.as_f64());
        let r = lanes.view_statistics(&deviation(call.tensor(4)?, eps)?)?;
        let weight = call.tensor(2).ok().map(|weight| lanes.view_weights(weight)).transpose()?;
        let operands = Operands {
            grad: Some(call.tensor(0)?.clone()),
            x: x.clone(),
            mean: Some(lanes.view_statistics(call.tensor(3)?)?),
            rstd: r.clone(),
            weight,
        };
        let small =
            |at: usize| call.tangent(at).map(|tangent| lanes.view_statistics(tangent)).transpose();
        let rstd = small(4)?.map(|variance| deviation_tangent(&r, &variance)).transpose()?;
        let (mean, weight) = (small(3)?, small(2)?);
        let moved =
            [call.tangent(0), call.tangent(1), mean.as_ref(), rstd.as_ref(), weight.as_ref()];
        wanted_tangents(call, &lanes, 9, lanes.tangents_of_gradients(&operands, moved)?)
    })
}
