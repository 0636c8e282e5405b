//! Sums, products, quotients, signs.

use keyfold_core::Result;
use keyfold_layers::autograd::{Backward, Gradients};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::gradient::{conj_scalar, first, over, times, when_needed};

pub(crate) fn add(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![when_needed(call, 0, || Ok(grad.clone()))?, when_needed(call, 1, || Ok(grad.clone()))?])
}

pub(crate) fn sub(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![when_needed(call, 0, || Ok(grad.clone()))?, when_needed(call, 1, || aten::neg(grad))?])
}

pub(crate) fn mul(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![
        when_needed(call, 0, || times(grad, &call.tensor(1)?))?,
        when_needed(call, 1, || times(grad, &call.tensor(0)?))?,
    ])
}

/// `d(a / b) = (da - (a / b) db) / b`.
pub(crate) fn div(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let share = over(grad, &call.tensor(1)?)?;
    Ok(vec![
        when_needed(call, 0, || Ok(share.clone()))?,
        when_needed(call, 1, || aten::neg(&times(&share, &call.result(0)?)?))?,
    ])
}

pub(crate) fn same(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, grad)
}

pub(crate) fn neg(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &aten::neg(grad)?)
}

pub(crate) fn mul_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &aten::mul_scalar(grad, conj_scalar(call.scalar(1)))?)
}

pub(crate) fn div_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &aten::div_scalar(grad, conj_scalar(call.scalar(1)))?)
}

/// `d(s / x) = -(s / x) / x dx`.
pub(crate) fn rdiv_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let slope = aten::div(&call.result(0)?, &call.tensor(0)?)?;
    first(call, &aten::neg(&times(grad, &slope)?)?)
}

/// The gradient is real, and so it is a length times a direction.
pub(crate) fn abs(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &aten::mul(grad, &aten::sign(&call.tensor(0)?)?)?)
}
