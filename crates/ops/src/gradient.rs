//! Helpers of the derivatives of all families.
//!
//! Each is written with operators, so that gradients of gradients come by themselves, and writes
//! to no gradient: it may belong to others, too. A row says for each operand what its gradient
//! reads, and a call keeps what the gradients that are needed read, and nothing else.
//!
//! The gradient of a complex number is `dL/dRe + i dL/dIm` of the real loss L, as PyTorch's: it is
//! multiplied with conjugates of slopes ([`times`]), and a real operand's is the real part ([`shaped`]).
//!
//! At a kink (`abs`, `relu` and `sign` at 0) the gradient is 0; of `maximum`, `max` and the like equal
//! elements share it evenly.

use keyfold_core::{Result, Scalar};
use keyfold_layers::autograd::{Backward, Gradients, Keeps, Meta, Product};
use keyfold_tensor::Tensor;

use crate::aten::{self, sum_to};
use crate::row::{Gradient, Rule};

/// A vector-Jacobian product that was written for an operator; `reads` says for each operand what its
/// gradient reads, the last for all behind it too.
pub(crate) const fn given(reads: &'static [Keeps], product: Product) -> Rule<Gradient> {
    Rule::Given(Gradient::Formula(reads, product))
}

/// Why operators have no derivative.
pub(crate) const GIVES_BOOLS: Rule<Gradient> = Rule::Refused("gives bools");
/// As [`GIVES_BOOLS`].
pub(crate) const GIVES_WHOLE_NUMBERS: Rule<Gradient> =
    Rule::Refused("gives bools or whole numbers");
/// As [`GIVES_BOOLS`].
pub(crate) const TAKES_NO_TENSOR: Rule<Gradient> = Rule::Refused("takes no tensor");

/// Reads nothing but forms and plain arguments.
pub(crate) const NOTHING: &[Keeps] = &[Keeps::NONE];
/// Reads the first argument.
pub(crate) const FIRST: &[Keeps] = &[Keeps::these(&[0])];
/// The gradient of each of two operands reads the other one.
pub(crate) const OTHER: &[Keeps] = &[Keeps::these(&[1]), Keeps::these(&[0])];
/// Reads the result.
pub(crate) const RESULT: &[Keeps] = &[Keeps::RESULTS];

/// A gradient in the form of an operand: its dtype, and summed over the dimensions that
/// broadcasting stretched. That of a real operand of a complex result is the real part.
pub(crate) fn shaped(form: &Meta, grad: &Tensor) -> Result<Tensor> {
    let grad = match grad.dtype().is_complex() && !form.dtype.is_complex() {
        true => &aten::real(grad)?,
        false => grad,
    };
    let grad = sum_to(grad, &form.shape)?;
    if grad.dtype() == form.dtype { Ok(grad) } else { aten::to(&grad, form.dtype) }
}

/// A gradient as the operand at a position needs it.
pub(crate) fn fit(call: &Backward<'_>, argument: usize, grad: &Tensor) -> Result<Option<Tensor>> {
    shaped(&call.form(argument), grad).map(Some)
}

/// As [`fit`], where the gradient of that operand is needed.
pub(crate) fn when_needed(
    call: &Backward<'_>,
    argument: usize,
    grad: impl FnOnce() -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    if call.needs(argument) { fit(call, argument, &grad()?) } else { Ok(None) }
}

/// The gradients where only the first operand can have one.
pub(crate) fn first(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let mut grads = vec![None; call.places()];
    grads[0] = fit(call, 0, grad)?;
    Ok(grads)
}

/// The conjugate of what a gradient is multiplied with; of real numbers themselves.
pub(crate) fn conj(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_complex() { aten::conj(x) } else { Ok(x.clone()) }
}

/// The gradient of an operand from that of the result, where `slope` is the derivative.
pub(crate) fn times(grad: &Tensor, slope: &Tensor) -> Result<Tensor> {
    aten::mul(grad, &conj(slope)?)
}

/// As [`times`], divided by what `inverse` is.
pub(crate) fn over(grad: &Tensor, inverse: &Tensor) -> Result<Tensor> {
    aten::div(grad, &conj(inverse)?)
}

/// The conjugate of a number.
pub(crate) fn conj_scalar(number: Scalar) -> Scalar {
    match number {
        Scalar::Complex(z) => Scalar::Complex(z.conj()),
        real => real,
    }
}

/// Zeros of that form, of one element in memory.
pub(crate) fn zeros(form: &Meta) -> Result<Tensor> {
    aten::expand(&aten::full(&[], false, form.dtype, form.device)?, &aten::sizes(&form.shape))
}

/// Zeros of the shape of an operand, in the dtype of a gradient of it: to put gradients into.
pub(crate) fn blank(call: &Backward<'_>, argument: usize, grad: &Tensor) -> Result<Tensor> {
    let form = call.form(argument);
    zeros(&Meta { dtype: grad.dtype(), ..form })
}
