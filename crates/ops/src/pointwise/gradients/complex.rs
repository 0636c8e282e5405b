//! Vector-Jacobian products of `conj`, `real`, `imag` and `sign`.

use keyfold_core::{Complex, Result, Scalar};
use keyfold_layers::autograd::{Backward, Gradients};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::vjp::{conj_if_complex, first_only, zeros_of};

pub(crate) fn conjugate(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &conj_if_complex(grad)?)
}

pub(crate) fn real(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, grad)
}

pub(crate) fn imag(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    if !call.meta(0).dtype.is_complex() {
        return Ok(vec![Some(zeros_of(&call.meta(0))?)]);
    }
    first_only(call, &aten::mul_scalar(grad, Scalar::Complex(Complex::new(0.0, 1.0)))?)
}

/// The gradient of `s = z / abs(z)` is `(g - s real(g conj(s))) / abs(z)`, the component of `g` that is
/// perpendicular to `z`, and 0 at 0. The sign of a real number is constant, so its gradient is 0.
pub(crate) fn sign(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    if !call.meta(0).dtype.is_complex() {
        return Ok(vec![Some(zeros_of(&call.meta(0))?)]);
    }
    let z = call.tensor(0)?;
    let (sign, length) = (aten::sign(&z)?, aten::abs(&z)?);
    let none = aten::eq_scalar(&length, 0)?;
    let along = aten::real(&aten::mul(grad, &aten::conj(&sign)?)?)?;
    let across = aten::sub(grad, &aten::mul(&sign, &along)?)?;
    let tangential = aten::div(&across, &aten::where_scalar_self(&none, 1, &length)?)?;
    first_only(call, &aten::where_scalar_self(&none, 0, &tangential)?)
}
