//! Sums, means and extremes along dimensions.

use keyfold_core::{DType, Result, layout};
use keyfold_tensor::Tensor;

use super::super::derivative::{Backward, Gradients, Keeps};
use super::{NOTHING, Rules, first};
use crate::aten;

/// The shape of the first operand with size 1 for each reduced dimension. `dims` is `None` for all.
fn kept(call: &Backward<'_>, dims: Option<&[i64]>) -> Result<Vec<i64>> {
    let shape = call.shape(0);
    let Some(dims) = dims else { return Ok(vec![1; shape.len()]) };
    let mut kept = aten::sizes(&shape);
    for dim in dims {
        kept[layout::normalize_axis(*dim, shape.len())?] = 1;
    }
    Ok(kept)
}

/// What every element of the operand gets of a result's gradient.
fn spread(call: &Backward<'_>, grad: &Tensor, dims: Option<&[i64]>) -> Result<Tensor> {
    let kept = aten::reshape(grad, &kept(call, dims)?)?;
    aten::expand(&kept, &aten::sizes(&call.shape(0)))
}

/// How many elements each result is made of.
fn count(call: &Backward<'_>, grad: &Tensor) -> usize {
    let all: usize = call.shape(0).iter().product();
    all / grad.numel().max(1)
}

fn sum(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &spread(call, grad, None)?)
}

fn sum_dim(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first(call, &spread(call, grad, call.ints(1).as_deref())?)
}

/// A gradient shared among the elements of a mean. Of short floats in float32: the count itself
/// may be beyond their range.
fn shared(call: &Backward<'_>, grad: &Tensor) -> Result<Tensor> {
    let count = count(call, grad) as f64;
    match grad.dtype() {
        DType::F16 | DType::BF16 => {
            aten::to(&aten::div_scalar(&aten::to(grad, DType::F32)?, count)?, grad.dtype())
        }
        _ => aten::div_scalar(grad, count),
    }
}

fn mean(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let share = shared(call, grad)?;
    first(call, &spread(call, &share, None)?)
}

fn mean_dim(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let share = shared(call, grad)?;
    first(call, &spread(call, &share, call.ints(1).as_deref())?)
}

/// Whether elements are beaten by others.
type Loses = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Elements that equal the result share its gradient evenly; the others get 0, whatever it is. Where
/// the result is NaN no element equals it, none is beaten, and the gradient is NaN.
fn extreme(
    call: &Backward<'_>,
    grad: &Tensor,
    dims: Option<&[i64]>,
    loses: Loses,
) -> Result<Gradients> {
    let x = call.tensor(0)?;
    let kept = kept(call, dims)?;
    let result = aten::reshape(&call.result(0)?, &kept)?;
    // A layer below may have cast the operand: what was rounded equals only what was rounded alike.
    let seen = if x.dtype() == result.dtype() { x.clone() } else { aten::to(&x, result.dtype())? };
    let best = aten::eq(&seen, &result)?;
    let best = aten::to(&best, grad.dtype())?;
    let reduced: Vec<i64> = match dims {
        None => (0..x.ndim() as i64).collect(),
        Some(dims) => dims.to_vec(),
    };
    let count = aten::sum(&best, &reduced, true)?;
    let share = aten::div(&aten::reshape(grad, &kept)?, &count)?;
    let beaten = loses(&seen, &result)?;
    first(call, &aten::choose_number(&beaten, 0, &aten::mul(&best, &share)?)?)
}

fn max(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    extreme(call, grad, None, aten::lt)
}

fn min(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    extreme(call, grad, None, aten::gt)
}

fn amax(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    extreme(call, grad, call.ints(1).as_deref(), aten::lt)
}

fn amin(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    extreme(call, grad, call.ints(1).as_deref(), aten::gt)
}

pub(super) fn register(rules: &Rules<'_>) -> Result<()> {
    const BOTH: &[Keeps] = &[Keeps::these(&[0]).and_results()];
    rules.add("aten::sum", NOTHING, sum)?;
    rules.add("aten::sum.dim", NOTHING, sum_dim)?;
    rules.add("aten::mean", NOTHING, mean)?;
    rules.add("aten::mean.dim", NOTHING, mean_dim)?;
    rules.add("aten::max", BOTH, max)?;
    rules.add("aten::min", BOTH, min)?;
    rules.add("aten::amax", BOTH, amax)?;
    rules.add("aten::amin", BOTH, amin)
}
