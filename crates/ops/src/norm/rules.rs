//! The rules of normalizations and of their gradients for reverse mode and forward mode, for all that have lanes.

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_layers::autograd::{Backward, Forward, Gradients, Pushforward, TensorMeta};
use keyfold_tensor::{Tensor, ValueRef};

use super::lanes::{Lanes, Operands, plus};
use super::{meta, spread};
use crate::aten;
use crate::vjp::fit_operand;

/// The places of the tensors of a normalization: arguments, and results for statistics.
#[derive(Clone, Copy)]
pub(super) struct ForwardPlaces {
    pub(super) weight: usize,
    /// None for RMS norm.
    pub(super) bias: Option<usize>,
    /// The result of the means; None for RMS norm.
    pub(super) mean: Option<usize>,
    pub(super) rstd: usize,
}

/// The places of the tensors of a normalization's gradient: arguments. The gradient of the result and the
/// input are the first two.
#[derive(Clone, Copy)]
pub(super) struct BackwardPlaces {
    /// None for RMS norm.
    pub(super) mean: Option<usize>,
    pub(super) rstd: usize,
    pub(super) weight: usize,
    pub(super) mask: usize,
}

/// A rule of forward mode for an operator with several results.
pub(super) struct SeveralJvp(pub(super) fn(&Forward<'_, '_>) -> Result<Vec<Option<Tensor>>>);

impl Pushforward for SeveralJvp {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        (self.0)(call)
    }
}

/// Makes the rule of forward mode.
pub(super) fn several(
    jvp: fn(&Forward<'_, '_>) -> Result<Vec<Option<Tensor>>>,
) -> Arc<dyn Pushforward> {
    Arc::new(SeveralJvp(jvp))
}

/// Converts a gradient or tangent in the lanes' view, which may lack dimensions of constants, to a shape.
fn whole(lanes: &Lanes, x: &Tensor, form: &TensorMeta) -> Result<Tensor> {
    lanes.fit(&aten::expand(x, &lanes.view)?, form, &lanes.view)
}

/// The arguments of a normalization's gradient operator.
pub(super) struct GradientCall<'g> {
    pub(super) grad: &'g Tensor,
    pub(super) x: &'g Tensor,
    pub(super) mean: Option<&'g Tensor>,
    pub(super) rstd: &'g Tensor,
    pub(super) weight: Option<&'g Tensor>,
    pub(super) bias: Option<&'g Tensor>,
    pub(super) mask: &'g [ValueRef<'g>],
}

/// The gradients of a normalization's input, weight and bias, from those of its results. `backward` calls the
/// operator of the gradient.
pub(super) fn forward_gradients(
    call: &Backward<'_>,
    grads: &[Option<Tensor>],
    lanes: &Lanes,
    places: ForwardPlaces,
    backward: impl FnOnce(&GradientCall<'_>) -> Result<[Option<Tensor>; 3]>,
) -> Result<[Option<Tensor>; 3]> {
    let x = call.tensor(0)?;
    let mean = places.mean.map(|at| call.result(at)).transpose()?;
    let rstd = call.result(places.rstd)?;
    let mut found = [const { None }; 3];
    if let Some(grad) = &grads[0] {
        let weight = call.optional(places.weight)?;
        let bias = places.bias.map(|at| call.optional(at)).transpose()?.flatten();
        let needs_bias = places.bias.is_some_and(|at| call.needs(at));
        let mask = [call.needs(0), call.needs(places.weight), needs_bias].map(ValueRef::Bool);
        let grad = if grad.dtype() == x.dtype() { grad } else { &aten::to(grad, x.dtype())? };
        found = backward(&GradientCall {
            grad,
            x: &x,
            mean: mean.as_ref(),
            rstd: &rstd,
            weight: weight.as_ref(),
            bias: bias.as_ref(),
            mask: &mask[..if places.bias.is_some() { 3 } else { 2 }],
        })?;
    }
    let of_mean = places.mean.and_then(|at| grads[at].as_ref());
    let of_rstd = grads[places.rstd].as_ref();
    if call.needs(0) && (of_mean.is_some() || of_rstd.is_some()) {
        let view = |x: Option<&Tensor>| x.map(|x| lanes.view_statistics(x)).transpose();
        let operands = Operands {
            grad: None,
            x: lanes.view(&x)?,
            mean: view(mean.as_ref())?,
            rstd: lanes.view_statistics(&rstd)?,
            weight: None,
        };
        let more = lanes.gradient_of_statistics(
            &operands,
            view(of_mean)?.as_ref(),
            view(of_rstd)?.as_ref(),
        )?;
        let more = more.map(|more| whole(lanes, &more, &call.meta(0))).transpose()?;
        found[0] = plus(found[0].take(), more)?;
    }
    let [dx, dw, db] = found;
    let fit = |at: usize, grad: Option<Tensor>| match grad {
        Some(grad) => fit_operand(call, at, &grad),
        None => Ok(None),
    };
    let db = places.bias.map(|at| fit(at, db)).transpose()?.flatten();
    Ok([fit(0, dx)?, fit(places.weight, dw)?, db])
}

/// The gradients of the operands of a gradient, in the order of [`BackwardPlaces`]: the gradient of the result,
/// the input, the mean, the reciprocal deviation, and the weight.
pub(super) fn backward_gradients(
    call: &Backward<'_>,
    grads: &[Option<Tensor>],
    lanes: &Lanes,
    places: BackwardPlaces,
) -> Result<[Option<Tensor>; 5]> {
    let [u, v, s] = spread(call.value(places.mask), grads);
    let view = |x: Option<Tensor>| x.map(|x| lanes.view_weights(&x)).transpose();
    let u = u.map(|u| lanes.view(&u)).transpose()?;
    let mean = places.mean.map(|at| lanes.view_statistics(&call.tensor(at)?)).transpose()?;
    let operands = Operands {
        grad: Some(lanes.view(&call.tensor(0)?)?),
        x: lanes.view(&call.tensor(1)?)?,
        mean,
        rstd: lanes.view_statistics(&call.tensor(places.rstd)?)?,
        weight: view(call.optional(places.weight)?)?,
    };
    let [grad, x, mean, rstd, weight] = lanes.gradients(&operands, [u, view(v)?, view(s)?])?;
    let statistic = |at: Option<usize>, grad: Option<Tensor>| match (at, grad) {
        (Some(at), Some(grad)) if call.needs(at) => {
            lanes.fit_statistics(&grad, &call.meta(at)).map(Some)
        }
        _ => Ok(None),
    };
    let element = |at: usize, grad: Option<Tensor>| match grad {
        Some(grad) if call.needs(at) => whole(lanes, &grad, &call.meta(at)).map(Some),
        _ => Ok(None),
    };
    let weight = match weight {
        Some(grad) if call.needs(places.weight) => {
            Some(lanes.fit_weights(&grad, &call.meta(places.weight))?)
        }
        _ => None,
    };
    Ok([
        element(0, grad)?,
        element(1, x)?,
        statistic(places.mean, mean)?,
        statistic(Some(places.rstd), rstd)?,
        weight,
    ])
}

/// Puts the gradients of a gradient's operands into their slots.
pub(super) fn in_slots(
    call: &Backward<'_>,
    places: BackwardPlaces,
    [grad, x, mean, rstd, weight]: [Option<Tensor>; 5],
) -> Gradients {
    let mut slots = vec![None; call.slots()];
    (slots[0], slots[1]) = (grad, x);
    if let Some(at) = places.mean {
        slots[call.slot_of(at)] = mean;
    }
    slots[call.slot_of(places.rstd)] = rstd;
    slots[call.slot_of(places.weight)] = weight;
    slots
}

/// Returns an optional tensor among the arguments of a call in forward mode.
fn optional<'c>(call: &'c Forward<'_, '_>, at: usize) -> Option<&'c Tensor> {
    call.tensor(at).ok()
}

/// The tangents of a normalization's first three results, or of two without a mean.
pub(super) fn forward_tangents(
    call: &Forward<'_, '_>,
    lanes: &Lanes,
    places: ForwardPlaces,
) -> Result<Vec<Option<Tensor>>> {
    let results = call.results();
    let weight = optional(call, places.weight);
    let operands = Operands {
        grad: None,
        x: lanes.view(call.tensor(0)?)?,
        mean: places.mean.map(|at| lanes.view_statistics(&results[at])).transpose()?,
        rstd: lanes.view_statistics(&results[places.rstd])?,
        weight: weight.map(|weight| lanes.view_weights(weight)).transpose()?,
    };
    let small = |at: Option<usize>| {
        let tangent = at.and_then(|at| call.tangent(at));
        tangent.map(|tangent| lanes.view_weights(tangent)).transpose()
    };
    let x = call.tangent(0).map(|tangent| lanes.view(tangent)).transpose()?;
    let (of_weight, of_bias) = (small(Some(places.weight))?, small(places.bias)?);
    let [y, mean, rstd] =
        lanes.tangents(&operands, [x.as_ref(), of_weight.as_ref(), of_bias.as_ref()])?;
    let statistic = |at: usize, tangent: Option<Tensor>| {
        tangent.map(|tangent| lanes.fit_statistics(&tangent, &meta(&results[at]))).transpose()
    };
    let mut tangents = vec![y.map(|y| whole(lanes, &y, &meta(&results[0]))).transpose()?];
    if let Some(at) = places.mean {
        tangents.push(statistic(at, mean)?);
    }
    tangents.push(statistic(places.rstd, rstd)?);
    Ok(tangents)
}

/// The tangents of a gradient's wanted results.
pub(super) fn backward_tangents(
    call: &Forward<'_, '_>,
    lanes: &Lanes,
    places: BackwardPlaces,
) -> Result<Vec<Option<Tensor>>> {
    let statistic = |x: &Tensor| lanes.view_statistics(x);
    let weight = optional(call, places.weight);
    let operands = Operands {
        grad: Some(lanes.view(call.tensor(0)?)?),
        x: lanes.view(call.tensor(1)?)?,
        mean: places.mean.map(|at| statistic(call.tensor(at)?)).transpose()?,
        rstd: statistic(call.tensor(places.rstd)?)?,
        weight: weight.map(|weight| lanes.view_weights(weight)).transpose()?,
    };
    let element = |at: usize| call.tangent(at).map(|x| lanes.view(x)).transpose();
    let of_statistic = |at: usize| call.tangent(at).map(statistic).transpose();
    let mean = places.mean.map(of_statistic).transpose()?.flatten();
    let moved = [element(0)?, element(1)?, mean, of_statistic(places.rstd)?, {
        let tangent = call.tangent(places.weight);
        tangent.map(|tangent| lanes.view_weights(tangent)).transpose()?
    }];
    let found = lanes.tangents_of_gradients(&operands, moved.each_ref().map(Option::as_ref))?;
    wanted_tangents(call, lanes, places.mask, found)
}

/// Converts the tangents of a gradient's results to their shapes, for those that are wanted.
pub(super) fn wanted_tangents(
    call: &Forward<'_, '_>,
    lanes: &Lanes,
    mask: usize,
    tangents: [Option<Tensor>; 3],
) -> Result<Vec<Option<Tensor>>> {
    let mut results = call.results().iter();
    let mut converted = Vec::new();
    for (at, (wanted, tangent)) in call.args()[mask].items().zip(tangents).enumerate() {
        if !matches!(wanted, ValueRef::Bool(true)) {
            continue;
        }
        let Some(result) = results.next() else { break };
        converted.push(match tangent {
            None => None,
            Some(tangent) if at == 0 => Some(whole(lanes, &tangent, &meta(result))?),
            Some(tangent) => Some(lanes.fit_weights(&tangent, &meta(result))?),
        });
    }
    Ok(converted)
}
