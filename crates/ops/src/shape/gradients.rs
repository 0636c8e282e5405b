//! Vector-Jacobian products of views, copies and conversions.

use keyfold_core::{Device, Error, ErrorKind, Result, layout};
use keyfold_layers::autograd::{Backward, Gradients};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::vjp::{first_only, zeros_like_operand};

/// The result has the operand's elements in their order and shape, perhaps in another dtype.
pub(crate) fn same(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, grad)
}

/// The result has the operand's elements in their order, in another shape.
pub(crate) fn reshape(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::reshape(grad, &aten::sizes(&call.shape(0)))?)
}

pub(crate) fn transpose(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (a, b) = (call.int(1).unwrap_or(0), call.int(2).unwrap_or(0));
    first_only(call, &aten::transpose(grad, a, b)?)
}

pub(crate) fn permute(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let mut inverse = vec![0; grad.ndim()];
    for (to, from) in call.ints(1).unwrap_or_default().into_iter().enumerate() {
        inverse[layout::normalize_axis(from, grad.ndim())?] = to as i64;
    }
    first_only(call, &aten::permute(grad, &inverse)?)
}

pub(crate) fn flip(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::flip(grad, &call.ints(1).unwrap_or_default())?)
}

pub(crate) fn select(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (dim, index) = (call.int(1).unwrap_or(0), call.int(2).unwrap_or(0));
    first_only(call, &aten::select_scatter(&zeros_like_operand(call, 0, grad)?, grad, dim, index)?)
}

pub(crate) fn slice(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (dim, step) = (call.int(1).unwrap_or(0), call.int(4).unwrap_or(1));
    let (start, end) = (call.value(2), call.value(3));
    first_only(
        call,
        &aten::slice_scatter(&zeros_like_operand(call, 0, grad)?, grad, dim, start, end, step)?,
    )
}

/// Copies the gradient to the operand's device. A gradient on meta has no data to copy.
pub(crate) fn to_device(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let device = call.meta(0).device;
    if grad.device() == device {
        return first_only(call, grad);
    }
    if grad.device() == Device::META {
        return Err(Error::new(
            ErrorKind::Gradient,
            format!(
                "aten::to: a gradient on meta has no data to bring back to {device}; on meta, run \
                 the function forward only"
            ),
        ));
    }
    first_only(call, &aten::to_device(grad, device)?)
}
