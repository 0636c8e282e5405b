//! Choices between elements: `where`, `maximum`, `minimum`.

use keyfold_core::Result;
use keyfold_tensor::Tensor;

use super::super::derivative::{Backward, Gradients, Keeps};
use super::{FIRST, Rules, first, when_needed};
use crate::aten;

fn choose(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let condition = call.tensor(0)?;
    Ok(vec![
        None,
        when_needed(call, 1, || aten::choose_or(&condition, grad, 0))?,
        when_needed(call, 2, || aten::choose_number(&condition, 0, grad))?,
    ])
}

fn choose_or(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let condition = call.tensor(0)?;
    Ok(vec![None, when_needed(call, 1, || aten::choose_or(&condition, grad, 0))?])
}

fn choose_number(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
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

fn maximum(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    extreme(call, grad, aten::lt)
}

fn minimum(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    extreme(call, grad, aten::gt)
}

fn maximum_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (a, b) = (call.tensor(0)?, call.scalar(1));
    first(call, &won(&aten::lt_scalar(&a, b)?, &aten::eq_scalar(&a, b)?, grad)?)
}

fn minimum_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (a, b) = (call.tensor(0)?, call.scalar(1));
    first(call, &won(&aten::gt_scalar(&a, b)?, &aten::eq_scalar(&a, b)?, grad)?)
}

pub(super) fn register(rules: &Rules<'_>) -> Result<()> {
    const BOTH: &[Keeps] = &[Keeps::these(&[0, 1])];
    rules.add("aten::where", FIRST, choose)?;
    rules.add("aten::where.ScalarOther", FIRST, choose_or)?;
    rules.add("aten::where.ScalarSelf", FIRST, choose_number)?;
    rules.add("aten::maximum", BOTH, maximum)?;
    rules.add("aten::minimum", BOTH, minimum)?;
    rules.add("aten::maximum.Scalar", FIRST, maximum_scalar)?;
    rules.add("aten::minimum.Scalar", FIRST, minimum_scalar)
}
