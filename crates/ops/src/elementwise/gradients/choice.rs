//! Choices between elements: `where`, `maximum`, `minimum`.

use keyfold_core::Result;
use keyfold_layers::autograd::{Backward, Gradients};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::gradient::{first, when_needed};

pub(crate) fn choose(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let condition = call.tensor(0)?;
    Ok(vec![
        None,
        when_needed(call, 1, || aten::choose_or(&condition, grad, 0))?,
        when_needed(call, 2, || aten::choose_number(&condition, 0, grad))?,
    ])
}

pub(crate) fn choose_or(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let condition = call.tensor(0)?;
    Ok(vec![None, when_needed(call, 1, || aten::choose_or(&condition, grad, 0))?])
}

pub(crate) fn choose_number(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let condition = call.tensor(0)?;
    Ok(vec![None, when_needed(call, 2, || aten::choose_number(&condition, 0, grad))?])
}

/// What an operand gets: nothing where the other one won, half where both are equal, else all of
/// it, also beside a NaN.
fn won(lost: &Tensor, equal: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let shared = aten::choose(equal, &aten::div_scalar(grad, 2)?, grad)?;
    aten::choose_number(lost, 0, &shared)
}

fn extreme(
    call: &Backward<'_>,
    grad: &Tensor,
    loses: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Gradients> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let equal = aten::eq(&a, &b)?;
    Ok(vec![
        when_needed(call, 0, || won(&loses(&a, &b)?, &equal, grad))?,
        when_needed(call, 1, || won(&loses(&b, &a)?, &equal, grad))?,
    ])
}

pub(crate) fn maximum(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    extreme(call, grad, aten::lt)
}

pub(crate) fn minimum(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    extreme(call, grad, aten::gt)
}

pub(crate) fn maximum_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (a, b) = (call.tensor(0)?, call.scalar(1));
    first(call, &won(&aten::lt_scalar(&a, b)?, &aten::eq_scalar(&a, b)?, grad)?)
}

pub(crate) fn minimum_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (a, b) = (call.tensor(0)?, call.scalar(1));
    first(call, &won(&aten::gt_scalar(&a, b)?, &aten::eq_scalar(&a, b)?, grad)?)
}
