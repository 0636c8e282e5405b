//! Hand-written rules of forward mode, and helpers with which the families name their rules.
//!
//! A rule computes the tangent of the result from the tangents of the operands. It calls operators, so it has
//! tangents and gradients itself. Complex tangents are directions in the plane, without conjugates.

use keyfold_core::{Result, layout};
use keyfold_layers::autograd::{Forward, Jvp};
use keyfold_tensor::{Tensor, ValueRef};

use crate::aten;
use crate::row::{Gradient, Rule, Tangent};

/// The rule of an operator that is linear in all its floating and complex tensors together.
pub(crate) const LINEAR: Rule<Tangent> = Rule::Given(Tangent::Linear);

/// Makes the rule of an operator with a hand-written function.
pub(crate) const fn pushforward(jvp: Jvp) -> Rule<Tangent> {
    Rule::Given(Tangent::Jvp(jvp))
}

/// Returns the rule of an expression: derived, or refused for the reason that the derivative is refused for.
pub(crate) fn like_derivative(derivative: Rule<Gradient>) -> Rule<Tangent> {
    match derivative {
        Rule::Refused(reason) => Rule::Refused(reason),
        _ => Rule::Derived,
    }
}

/// Returns an `int` argument.
fn int(call: &Forward<'_, '_>, argument: usize) -> Option<i64> {
    match call.args()[argument] {
        ValueRef::Int(i) => Some(i),
        _ => None,
    }
}

/// Returns the dimensions in an argument; all dimensions if it is absent.
fn dims(call: &Forward<'_, '_>, argument: usize, rank: usize) -> Result<Vec<i64>> {
    match call.args().get(argument) {
        Some(ValueRef::Int(dim)) => Ok(vec![*dim]),
        Some(list) if list.list_len().is_some() => {
            let dims = list.items().filter_map(|dim| dim.scalar()).filter_map(|dim| dim.as_i64());
            Ok(dims.collect())
        }
        _ => Ok((0..rank as i64).collect()),
    }
}

/// Computes the tangent of a minimum or maximum: the mean tangent of the elements that equal the result, and
/// NaN where the result is NaN.
fn min_max(
    call: &Forward<'_, '_>,
    dims: &[i64],
    loses: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    let Some(tangent) = call.tangent(0) else { return Ok(None) };
    let (x, result) = (call.tensor(0)?, call.result()?);
    let mut kept = aten::sizes(x.shape());
    for dim in dims {
        kept[layout::normalize_axis(*dim, x.ndim())?] = 1;
    }
    let best = aten::reshape(result, &kept)?;
    // Autocast below may have rounded the operand, so the operand is rounded to the result's dtype before
    // the comparison.
    let seen = if x.dtype() == best.dtype() { x.clone() } else { aten::to(x, best.dtype())? };
    let equal = aten::to(&aten::eq(&seen, &best)?, tangent.dtype())?;
    let beaten = loses(&seen, &best)?;
    let share = aten::where_scalar_self(&beaten, 0, &aten::mul(&equal, tangent)?)?;
    let mean = aten::div(&aten::sum(&share, dims, true)?, &aten::sum(&equal, dims, true)?)?;
    aten::reshape(&mean, &aten::sizes(result.shape())).map(Some)
}

fn all_dims(call: &Forward<'_, '_>) -> Result<Vec<i64>> {
    Ok((0..call.tensor(0)?.ndim() as i64).collect())
}

fn dims_argument(call: &Forward<'_, '_>) -> Result<Vec<i64>> {
    dims(call, 1, call.tensor(0)?.ndim())
}

pub(crate) fn max(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    min_max(call, &all_dims(call)?, aten::lt)
}

pub(crate) fn min(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    min_max(call, &all_dims(call)?, aten::gt)
}

pub(crate) fn amax(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    min_max(call, &dims_argument(call)?, aten::lt)
}

pub(crate) fn amin(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    min_max(call, &dims_argument(call)?, aten::gt)
}

/// `s (t - sum(s t))`.
pub(crate) fn softmax(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let Some(tangent) = call.tangent(0) else { return Ok(None) };
    let s = call.result()?;
    let both = aten::mul(s, tangent)?;
    let total = aten::sum(&both, &[int(call, 1).unwrap_or(-1)], true)?;
    aten::sub(&both, &aten::mul(s, &total)?).map(Some)
}

/// `t - sum(exp(l) t)`.
pub(crate) fn log_softmax(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let Some(tangent) = call.tangent(0) else { return Ok(None) };
    let both = aten::mul(&aten::exp(call.result()?)?, tangent)?;
    let total = aten::sum(&both, &[int(call, 1).unwrap_or(-1)], true)?;
    aten::sub(tangent, &total).map(Some)
}

/// The tangent after `copy_` is that of the source.
pub(crate) fn copy_(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    Ok(call.tangent(1).cloned())
}

/// The tangent after `fill_` is zero.
pub(crate) fn fill_(_: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    Ok(None)
}

/// The tangent is `index_put` of the tangents, which is linear.
pub(crate) fn index_put_(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let indices = call.args()[1].items();
    let indices: Vec<Option<Tensor>> = indices.map(|item| item.tensor().ok().cloned()).collect();
    let adds = matches!(call.args()[3], ValueRef::Bool(true));
    let (own, values) = (call.tangent_or_zeros(0)?, call.tangent_or_zeros(2)?);
    aten::index_put(&own, &indices, &values, adds).map(Some)
}
