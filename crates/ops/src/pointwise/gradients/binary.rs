//! Vector-Jacobian products of sums, products and quotients, and of `neg` and `abs`.

use keyfold_core::Result;
use keyfold_layers::autograd::{Backward, Gradients};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::vjp::{conj_scalar, first_only, if_needed, over_conj, times_conj};

pub(crate) fn add(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![if_needed(call, 0, || Ok(grad.clone()))?, if_needed(call, 1, || Ok(grad.clone()))?])
}

pub(crate) fn sub(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![if_needed(call, 0, || Ok(grad.clone()))?, if_needed(call, 1, || aten::neg(grad))?])
}

pub(crate) fn mul(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![
        if_needed(call, 0, || times_conj(grad, &call.tensor(1)?))?,
        if_needed(call, 1, || times_conj(grad, &call.tensor(0)?))?,
    ])
}

/// `d(a / b) = (da - (a / b) db) / b`.
pub(crate) fn div(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let share = over_conj(grad, &call.tensor(1)?)?;
    Ok(vec![
        if_needed(call, 0, || Ok(share.clone()))?,
        if_needed(call, 1, || aten::neg(&times_conj(&share, &call.result(0)?)?))?,
    ])
}

pub(crate) fn same(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, grad)
}

pub(crate) fn neg(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::neg(grad)?)
}

pub(crate) fn mul_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::mul_scalar(grad, conj_scalar(call.scalar(1)))?)
}

pub(crate) fn div_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::div_scalar(grad, conj_scalar(call.scalar(1)))?)
}

/// `d(s / x) = -(s / x) / x dx`.
pub(crate) fn rdiv_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let slope = aten::div(&call.result(0)?, &call.tensor(0)?)?;
    first_only(call, &aten::neg(&times_conj(grad, &slope)?)?)
}

/// The gradient is real; of a complex operand it is multiplied by the operand's direction.
pub(crate) fn abs(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::mul(grad, &aten::sign(&call.tensor(0)?)?)?)
}
