//! Vector-Jacobian products of reductions and of softmax.

use keyfold_core::{DType, ErrorKind, Result, layout};
use keyfold_layers::autograd::{Backward, Gradients};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::vjp::first_only;

/// Returns the shape of the first operand with size 1 for each reduced dimension; `dims` is `None` for all.
fn keepdim_shape(call: &Backward<'_>, dims: Option<&[i64]>) -> Result<Vec<i64>> {
    let shape = call.shape(0);
    let Some(dims) = dims else { return Ok(vec![1; shape.len()]) };
    let mut kept = aten::sizes(&shape);
    for dim in dims {
        kept[layout::normalize_axis(*dim, shape.len())?] = 1;
    }
    Ok(kept)
}

/// Expands the result's gradient to the operand's shape.
fn expand_gradient(call: &Backward<'_>, grad: &Tensor, dims: Option<&[i64]>) -> Result<Tensor> {
    let kept = aten::reshape(grad, &keepdim_shape(call, dims)?)?;
    aten::expand(&kept, &aten::sizes(&call.shape(0)))
}

/// Returns the number of elements per result.
fn count(call: &Backward<'_>, grad: &Tensor) -> usize {
    let all: usize = call.shape(0).iter().product();
    all / grad.numel().max(1)
}

pub(crate) fn sum(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &expand_gradient(call, grad, None)?)
}

pub(crate) fn sum_dim(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &expand_gradient(call, grad, call.ints(1).as_deref())?)
}

/// Divides a gradient by the number of elements per result, for `mean`. float16 and bfloat16 are divided in
/// float32, since the count may exceed their range.
fn divided_by_count(call: &Backward<'_>, grad: &Tensor) -> Result<Tensor> {
    let count = count(call, grad) as f64;
    match grad.dtype() {
        DType::F16 | DType::BF16 => {
            aten::to(&aten::div_scalar(&aten::to(grad, DType::F32)?, count)?, grad.dtype())
        }
        _ => aten::div_scalar(grad, count),
    }
}

pub(crate) fn mean(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let share = divided_by_count(call, grad)?;
    first_only(call, &expand_gradient(call, &share, None)?)
}

pub(crate) fn mean_dim(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let share = divided_by_count(call, grad)?;
    first_only(call, &expand_gradient(call, &share, call.ints(1).as_deref())?)
}

/// A comparison that is true for elements that are less extreme than the result.
type Loses = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Divides the gradient evenly among the elements that equal the result; the others get 0, also of an infinite
/// gradient. Where the result is NaN, no element equals it, all comparisons are false, and the gradient is
/// NaN.
fn min_max(
    call: &Backward<'_>,
    grad: &Tensor,
    dims: Option<&[i64]>,
    loses: Loses,
) -> Result<Gradients> {
    let x = call.tensor(0)?;
    let kept = keepdim_shape(call, dims)?;
    let result = aten::reshape(&call.result(0)?, &kept)?;
    // Autocast below may have rounded the operand, so the operand is rounded to the result's dtype before
    // the comparison.
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
    first_only(call, &aten::where_scalar_self(&beaten, 0, &aten::mul(&best, &share)?)?)
}

pub(crate) fn max(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    min_max(call, grad, None, aten::lt)
}

pub(crate) fn min(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    min_max(call, grad, None, aten::gt)
}

pub(crate) fn amax(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    min_max(call, grad, call.ints(1).as_deref(), aten::lt)
}

pub(crate) fn amin(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    min_max(call, grad, call.ints(1).as_deref(), aten::gt)
}

/// Returns a kernel's result; of a backend without the kernel, that of the operators it is written in.
fn or_composed(
    kernel: Result<Tensor>,
    composed: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    match kernel {
        Err(error) if error.kind() == ErrorKind::NotSupported => composed(),
        result => result,
    }
}

/// `s (g - sum(g s))`.
pub(crate) fn softmax(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (s, dim) = (call.result(0)?, call.int(1).unwrap_or(-1));
    let gradient = or_composed(aten::softmax_backward(grad, &s, dim), || {
        let both = aten::mul(grad, &s)?;
        let total = aten::sum(&both, &[dim], true)?;
        aten::sub(&both, &aten::mul(&s, &total)?)
    })?;
    first_only(call, &gradient)
}

/// `g - exp(l) sum(g)`.
pub(crate) fn log_softmax(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (l, dim) = (call.result(0)?, call.int(1).unwrap_or(-1));
    let gradient = or_composed(aten::log_softmax_backward(grad, &l, dim), || {
        let total = aten::sum(grad, &[dim], true)?;
        aten::sub(grad, &aten::mul(&aten::exp(&l)?, &total)?)
    })?;
    first_only(call, &gradient)
}
