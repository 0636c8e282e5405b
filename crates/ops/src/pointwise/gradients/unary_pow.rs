//! Vector-Jacobian products of functions of one tensor and of powers. They read the result where that
//! suffices.

use keyfold_core::{Complex, Result, Scalar};
use keyfold_layers::autograd::{Backward, Gradients};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::vjp::{first_only, if_needed, over_conj, times_conj, zeros_of};

pub(crate) fn exp(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &times_conj(grad, &call.result(0)?)?)
}

pub(crate) fn log(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &over_conj(grad, &call.tensor(0)?)?)
}

pub(crate) fn log1p(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &over_conj(grad, &aten::add_scalar(&call.tensor(0)?, 1)?)?)
}

pub(crate) fn expm1(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &times_conj(grad, &aten::add_scalar(&call.result(0)?, 1)?)?)
}

pub(crate) fn sqrt(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &over_conj(grad, &aten::mul_scalar(&call.result(0)?, 2)?)?)
}

pub(crate) fn tanh(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::tanh_backward(grad, &call.result(0)?)?)
}

pub(crate) fn sigmoid(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::sigmoid_backward(grad, &call.result(0)?)?)
}

pub(crate) fn gelu(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::gelu_backward(grad, &call.tensor(0)?)?)
}

pub(crate) fn gelu_tanh(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::gelu_tanh_backward(grad, &call.tensor(0)?)?)
}

pub(crate) fn gelu_sigmoid(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::gelu_sigmoid_backward(grad, &call.tensor(0)?)?)
}

pub(crate) fn sin(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &times_conj(grad, &aten::cos(&call.tensor(0)?)?)?)
}

pub(crate) fn cos(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::neg(&times_conj(grad, &aten::sin(&call.tensor(0)?)?)?)?)
}

/// The gradient passes at NaN, so that a NaN propagates.
pub(crate) fn relu(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &aten::threshold_backward(grad, &call.result(0)?, 0)?)
}

/// `s x^(s - 1)`, and 0 for `s = 0`, also at `x = 0`.
pub(crate) fn pow_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let exponent = call.scalar(1);
    if !exponent.is_nonzero() {
        return Ok(vec![Some(zeros_of(&call.meta(0))?)]);
    }
    let less = match exponent {
        Scalar::Int(n) => Scalar::Int(n.wrapping_sub(1)),
        Scalar::Complex(z) => Scalar::Complex(z - 1.0),
        other => Scalar::Float(other.as_f64() - 1.0),
    };
    let one = Complex::new(1.0, 0.0);
    let power = match less.as_complex() {
        less if less == Complex::default() => return first_only(call, grad),
        less if less == one => call.tensor(0)?,
        _ => aten::pow_scalar(&call.tensor(0)?, less)?,
    };
    first_only(call, &times_conj(grad, &aten::mul_scalar(&power, exponent)?)?)
}

/// With respect to the base `b a^(b - 1)`, and 0 for `0^0`. With respect to the exponent `a^b log(a)`, and 0
/// where the base is 0 and the exponent isn't negative.
pub(crate) fn pow(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let of_base = || {
        let (a, b) = (call.tensor(0)?, call.tensor(1)?);
        // For 0^0 the exponent is replaced by one whose power is finite. A `where` after the product would
        // make NaNs in second derivatives.
        let both = aten::mul(&aten::eq_scalar(&a, 0)?, &aten::eq_scalar(&b, 0)?)?;
        let less = aten::sub_scalar(&aten::where_scalar_self(&both, 1, &b)?, 1)?;
        times_conj(grad, &aten::mul(&aten::pow(&to_like(&a, grad)?, &less)?, &b)?)
    };
    let of_exponent = || {
        let (a, b) = (call.tensor(0)?, call.tensor(1)?);
        let flat = aten::mul(&aten::eq_scalar(&a, 0)?, &not_negative(&b)?)?;
        let log = aten::log(&aten::where_scalar_self(&flat, 1, &to_like(&a, grad)?)?)?;
        times_conj(grad, &aten::mul(&call.result(0)?, &log)?)
    };
    Ok(vec![if_needed(call, 0, of_base)?, if_needed(call, 1, of_exponent)?])
}

/// Converts a base to the dtype of the power, since integers have no negative powers.
fn to_like(x: &Tensor, like: &Tensor) -> Result<Tensor> {
    if x.dtype() == like.dtype() { Ok(x.clone()) } else { aten::to(x, like.dtype()) }
}

/// Returns a mask of the real numbers that aren't negative.
fn not_negative(x: &Tensor) -> Result<Tensor> {
    if !x.dtype().is_complex() {
        return aten::ge_scalar(x, 0);
    }
    let above = aten::ge_scalar(&aten::real(x)?, 0)?;
    aten::mul(&above, &aten::eq_scalar(&aten::imag(x)?, 0)?)
}

/// `s^x log(s)`, and 0 for `s = 0` where `x` isn't negative.
pub(crate) fn rpow_scalar(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (base, result) = (call.scalar(1), call.result(0)?);
    if base.is_nonzero() {
        let log = match result.dtype().is_complex() {
            true => Scalar::Complex(base.as_complex().ln()),
            false => Scalar::Float(base.as_f64().ln()),
        };
        return first_only(call, &times_conj(grad, &aten::mul_scalar(&result, log)?)?);
    }
    let slope = aten::mul_scalar(&result, f64::NEG_INFINITY)?;
    // 0^x is 1 for x = 0, 0 for x > 0, infinite for x < 0, and NaN for complex x.
    let flat = match result.dtype().is_complex() {
        true => aten::eq_scalar(&aten::mul(&result, &aten::sub_scalar(&result, 1)?)?, 0)?,
        false => aten::le_scalar(&result, 1)?,
    };
    first_only(call, &times_conj(grad, &aten::where_scalar_self(&flat, 0, &slope)?)?)
}
