//! The derivatives of layer norm and RMS norm, and of their gradients.

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_layers::autograd::{Backward, Forward, Gradients, Pushforward};
use keyfold_tensor::{Tensor, ValueRef};

use super::lanes::Lanes;
use super::rules::{
    BackwardPlaces, ForwardPlaces, backward_gradients, backward_tangents, forward_gradients,
    forward_tangents, in_slots, several,
};
use super::{call_several, optional};
use crate::arg_values::ints;
use crate::aten::{self, Aten};

const LAYER: ForwardPlaces = ForwardPlaces { weight: 2, bias: Some(3), mean: Some(1), rstd: 2 };
const RMS: ForwardPlaces = ForwardPlaces { weight: 2, bias: None, mean: None, rstd: 1 };
const LAYER_BACKWARD: BackwardPlaces =
    BackwardPlaces { mean: Some(3), rstd: 4, weight: 5, mask: 7 };
const RMS_BACKWARD: BackwardPlaces = BackwardPlaces { mean: None, rstd: 3, weight: 4, mask: 5 };

/// The lanes along the last dimensions.
fn lanes(shape: &[usize], normalized: ValueRef<'_>, centered: bool) -> Lanes {
    let outer = shape.len() - ints(normalized).map_or(0, |sizes| sizes.len());
    Lanes {
        view: aten::sizes(shape),
        dims: (outer as i64..shape.len() as i64).collect(),
        weights: aten::sizes(&shape[outer..]),
        centered,
        constant: false,
    }
}

pub(super) fn layer_norm(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    static BACKWARD: Aten = Aten::new("aten::native_layer_norm_backward");
    let shape = call.value(1);
    let lanes = lanes(&call.shape(0), shape, true);
    let found = forward_gradients(call, grads, &lanes, LAYER, |given| {
        let (mean, weight) = (optional(given.mean), optional(given.weight));
        let (bias, mask) = (optional(given.bias), ValueRef::Refs(given.mask));
        let (grad, x, rstd) = (given.grad.into(), given.x.into(), given.rstd.into());
        call_several(&BACKWARD, &[grad, x, shape, mean, rstd, weight, bias, mask])
    })?;
    Ok(found.into())
}

pub(super) fn rms_norm(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    static BACKWARD: Aten = Aten::new("aten::_fused_rms_norm_backward");
    let shape = call.value(1);
    let lanes = lanes(&call.shape(0), shape, false);
    let [dx, dw, _] = forward_gradients(call, grads, &lanes, RMS, |given| {
        let (weight, mask) = (optional(given.weight), ValueRef::Refs(given.mask));
        let (grad, x, rstd) = (given.grad.into(), given.x.into(), given.rstd.into());
        call_several(&BACKWARD, &[grad, x, shape, rstd, weight, mask])
    })?;
    Ok(vec![dx, dw])
}

pub(super) fn layer_norm_backward(
    call: &Backward<'_>,
    grads: &[Option<Tensor>],
) -> Result<Gradients> {
    let lanes = lanes(&call.shape(1), call.value(2), true);
    let found = backward_gradients(call, grads, &lanes, LAYER_BACKWARD)?;
    Ok(in_slots(call, LAYER_BACKWARD, found))
}

pub(super) fn rms_norm_backward(
    call: &Backward<'_>,
    grads: &[Option<Tensor>],
) -> Result<Gradients> {
    let lanes = lanes(&call.shape(1), call.value(2), false);
    let found = backward_gradients(call, grads, &lanes, RMS_BACKWARD)?;
    Ok(in_slots(call, RMS_BACKWARD, found))
}

/// The lanes of a call in forward mode, whose input is the argument at a place.
fn lanes_of(call: &Forward<'_, '_>, input: usize, centered: bool) -> Result<Lanes> {
    Ok(lanes(call.tensor(input)?.shape(), call.args()[input + 1], centered))
}

pub(super) fn layer_norm_tangents() -> Arc<dyn Pushforward> {
    several(|call| forward_tangents(call, &lanes_of(call, 0, true)?, LAYER))
}

pub(super) fn rms_norm_tangents() -> Arc<dyn Pushforward> {
    several(|call| forward_tangents(call, &lanes_of(call, 0, false)?, RMS))
}

pub(super) fn layer_norm_backward_tangents() -> Arc<dyn Pushforward> {
    several(|call| backward_tangents(call, &lanes_of(call, 1, true)?, LAYER_BACKWARD))
}

pub(super) fn rms_norm_backward_tangents() -> Arc<dyn Pushforward> {
    several(|call| backward_tangents(call, &lanes_of(call, 1, false)?, RMS_BACKWARD))
}
