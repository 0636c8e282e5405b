//! Vector-Jacobian products of `where`, `maximum` and `minimum`.

use keyfold_core::Result;
use keyfold_layers::autograd::{Backward, Gradients};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::vjp::{first_only, if_needed};

pub(crate) fn where_(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let condition = call.tensor(0)?;
    Ok(vec![
        None,
        if_needed(call, 1, || aten::where_scalar_other(&condition, grad, 0))?,
        if_needed(call, 2, || aten::where_scalar_self(&condition, 0, grad))?,
    ])
}

pub(crate) fn where_scalar_other(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let condition = call.tensor(0)?;
    Ok(vec![None, if_needed(call, 1, || aten::where_scalar_other(&condition, grad, 0))?])
}

pub(crate) fn where_scalar_self(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let condition = call.tensor(0)?;
    Ok(vec![None, if_needed(call, 2, || aten::where_scalar_self(&condition, 0, grad))?])
}

/// Returns an operand's gradient: 0 where the other operand is the result (`lost`), half where both are equal,
/// else the whole gradient, also if the other operand is NaN.
fn gradient_of_winner(lost: &Tensor, equal: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let shared = aten::where_(equal, &aten::div_scalar(grad, 2)?, grad)?;
    aten::where_scalar_self(lost, 0, &shared)
}

fn min_max(
    call: &Backward<'_>,
    grad: &Tensor,
    loses: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Gradients> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let equal = aten::eq(&a, &b)?;
    Ok(vec![
        if_needed(call, 0, || gradient_of_winner(&loses(&a, &b)?, &equal, grad))?,
        if_needed(call, 1, || gradient_of_winner(&loses(&b, &a)?, &equal, grad))?,
    ])
}

pub(crate) fn maximum(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    min_max(call, grad, aten::lt)
}

pub(crate) fn minimum(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    min_max(call, grad, aten::gt)
}

pub(crate) fn maximum_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (a, b) = (call.tensor(0)?, call.scalar(1));
    first_only(call, &gradient_of_winner(&aten::lt_scalar(&a, b)?, &aten::eq_scalar(&a, b)?, grad)?)
}

pub(crate) fn minimum_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (a, b) = (call.tensor(0)?, call.scalar(1));
    first_only(call, &gradient_of_winner(&aten::gt_scalar(&a, b)?, &aten::eq_scalar(&a, b)?, grad)?)
}
