//! Sums, products, quotients, signs.

use keyfold_core::Result;
use keyfold_tensor::Tensor;

use super::super::derivative::{Backward, Gradients, Keeps};
use super::{FIRST, NOTHING, OTHER, Rules, conj_scalar, first, over, times, when_needed};
use crate::aten;

fn add(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![when_needed(call, 0, || Ok(grad.clone()))?, when_needed(call, 1, || Ok(grad.clone()))?])
}

fn sub(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![when_needed(call, 0, || Ok(grad.clone()))?, when_needed(call, 1, || aten::neg(grad))?])
}

fn mul(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    Ok(vec![
        when_needed(call, 0, || times(grad, &call.tensor(1)?))?,
        when_needed(call, 1, || times(grad, &call.tensor(0)?))?,
    ])
}

/// `d(a / b) = (da - (a / b) db) / b`.
fn div(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let share = over(grad, &call.tensor(1)?)?;
    Ok(vec![
        when_needed(call, 0, || Ok(share.clone()))?,
        when_needed(call, 1, || aten::neg(&times(&share, &call.result(0)?)?))?,
    ])
}

fn same(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, grad)
}

fn neg(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &aten::neg(grad)?)
}

fn mul_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &aten::mul_scalar(grad, conj_scalar(call.scalar(1)))?)
}

fn div_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &aten::div_scalar(grad, conj_scalar(call.scalar(1)))?)
}

/// `d(s / x) = -(s / x) / x dx`.
fn rdiv_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let slope = aten::div(&call.result(0)?, &call.tensor(0)?)?;
    first(call, &aten::neg(&times(grad, &slope)?)?)
}

/// The gradient is real, and so it is a length times a direction.
fn abs(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &aten::mul(grad, &aten::sign(&call.tensor(0)?)?)?)
}

pub(super) fn register(rules: &Rules<'_>) -> Result<()> {
    const SHARE: &[Keeps] = &[Keeps::these(&[1]), Keeps::these(&[1]).and_results()];
    const BOTH: &[Keeps] = &[Keeps::these(&[0]).and_results()];
    rules.add("aten::add", NOTHING, add)?;
    rules.add("aten::sub", NOTHING, sub)?;
    rules.add("aten::mul", OTHER, mul)?;
    rules.add("aten::div", SHARE, div)?;
    rules.add("aten::add.Scalar", NOTHING, same)?;
    rules.add("aten::sub.Scalar", NOTHING, same)?;
    rules.add("aten::rsub.Scalar", NOTHING, neg)?;
    rules.add("aten::mul.Scalar", NOTHING, mul_scalar)?;
    rules.add("aten::div.Scalar", NOTHING, div_scalar)?;
    rules.add("aten::rdiv.Scalar", BOTH, rdiv_scalar)?;
    rules.add("aten::neg", NOTHING, neg)?;
    rules.add("aten::abs", FIRST, abs)
}
