//! Sums, products, quotients.

use keyfold_core::Result;
use keyfold_tensor::Tensor;

use super::super::derivative::{Backward, Gradients, Keeps};
use super::Rules;
use crate::aten::{self, sum_to};

/// A gradient as the operand at a position needs it: its dtype, and summed over the dimensions
/// that broadcasting stretched.
pub(super) fn fit(call: &Backward<'_>, argument: usize, grad: &Tensor) -> Result<Option<Tensor>> {
    let form = call.form(argument);
    let grad = sum_to(grad, &form.shape)?;
    Ok(Some(if grad.dtype() == form.dtype { grad } else { aten::to(&grad, form.dtype)? }))
}

/// As [`fit`], where the gradient of that operand is needed.
pub(super) fn when_needed(
    call: &Backward<'_>,
    argument: usize,
    grad: impl FnOnce() -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    if call.needs(argument) { fit(call, argument, &grad()?) } else { Ok(None) }
}

fn add(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![when_needed(call, 0, || Ok(grad.clone()))?, when_needed(call, 1, || Ok(grad.clone()))?])
}

fn mul(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![
        when_needed(call, 0, || aten::mul(grad, &call.tensor(1)?))?,
        when_needed(call, 1, || aten::mul(grad, &call.tensor(0)?))?,
    ])
}

pub(super) fn register(rules: &Rules<'_>) -> Result<()> {
    rules.add("aten::add", Keeps::NONE, add)?;
    rules.add("aten::mul", Keeps::ARGUMENTS, mul)
}
