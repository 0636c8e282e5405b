//! Helpers of the derivatives of all families.
//!
//! Each is written with operators, so that gradients of gradients come by themselves, and writes
//! to no gradient: it may belong to others, too. A row says for each operand what its gradient
//! reads, and a call keeps what the gradients that are needed read, and nothing else.
//!
//! The gradient of a complex number is `dL/dRe + i dL/dIm` of the real loss L, as PyTorch's: it is
//! multiplied with conjugates of slopes ([`times_conj`]), and a real operand's is the real part ([`match_meta`]).
//!
//! At a kink (`abs`, `relu` and `sign` at 0) the gradient is 0; of `maximum`, `max` and the like equal
//! elements share it evenly.

use keyfold_core::{Result, Scalar};
use keyfold_layers::autograd::{Backward, Gradients, Saves, TensorMeta, Vjp};
use keyfold_tensor::Tensor;

use crate::aten::{self, sum_to};
use crate::row::{Gradient, Rule};

/// A vector-Jacobian product that was written for an operator; `reads` says for each operand what its
/// gradient reads, the last for all behind it too.
pub(crate) const fn formula(reads: &'static [Saves], vjp: Vjp) -> Rule<Gradient> {
    Rule::Given(Gradient::Formula(reads, vjp))
}

/// Why operators have no derivative.
pub(crate) const BOOL_RESULT: Rule<Gradient> = Rule::Refused("gives bools");
/// As [`BOOL_RESULT`].
pub(crate) const INTEGER_RESULT: Rule<Gradient> = Rule::Refused("gives bools or whole numbers");
/// As [`BOOL_RESULT`].
pub(crate) const NO_TENSOR_ARGUMENT: Rule<Gradient> = Rule::Refused("takes no tensor");

/// Reads nothing but forms and plain arguments.
pub(crate) const READS_NOTHING: &[Saves] = &[Saves::NONE];
/// Reads the first argument.
pub(crate) const READS_FIRST: &[Saves] = &[Saves::arguments(&[0])];
/// The gradient of each of two operands reads the other one.
pub(crate) const READS_OTHER: &[Saves] = &[Saves::arguments(&[1]), Saves::arguments(&[0])];
/// Reads the result.
pub(crate) const READS_RESULT: &[Saves] = &[Saves::RESULTS];

/// A gradient in the form of an operand: its dtype, and summed over the dimensions that
/// broadcasting stretched. That of a real operand of a complex result is the real part.
pub(crate) fn match_meta(form: &TensorMeta, grad: &Tensor) -> Result<Tensor> {
    let grad = match grad.dtype().is_complex() && !form.dtype.is_complex() {
        true => &aten::real(grad)?,
        false => grad,
    };
    let grad = sum_to(grad, &form.shape)?;
    if grad.dtype() == form.dtype { Ok(grad) } else { aten::to(&grad, form.dtype) }
}

/// A gradient as the operand at a position needs it.
pub(crate) fn fit_operand(
    call: &Backward<'_>,
    argument: usize,
    grad: &Tensor,
) -> Result<Option<Tensor>> {
    match_meta(&call.form(argument), grad).map(Some)
}

/// As [`fit_operand`], where the gradient of that operand is needed.
pub(crate) fn if_needed(
    call: &Backward<'_>,
    argument: usize,
    grad: impl FnOnce() -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    if call.needs(argument) { fit_operand(call, argument, &grad()?) } else { Ok(None) }
}

/// The gradients where only the first operand can have one.
pub(crate) fn first_only(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let mut grads = vec![None; call.slots()];
    grads[0] = fit_operand(call, 0, grad)?;
    Ok(grads)
}

/// The conjugate of what a gradient is multiplied with; of real numbers themselves.
pub(crate) fn conj_if_complex(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_complex() { aten::conj(x) } else { Ok(x.clone()) }
}

/// The gradient of an operand from that of the result, where `slope` is the derivative.
pub(crate) fn times_conj(grad: &Tensor, slope: &Tensor) -> Result<Tensor> {
    aten::mul(grad, &conj_if_complex(slope)?)
}

/// As [`times_conj`], divided by what `inverse` is.
pub(crate) fn over_conj(grad: &Tensor, inverse: &Tensor) -> Result<Tensor> {
    aten::div(grad, &conj_if_complex(inverse)?)
}

/// The conjugate of a number.
pub(crate) fn conj_scalar(number: Scalar) -> Scalar {
    match number {
        Scalar::Complex(z) => Scalar::Complex(z.conj()),
        real => real,
    }
}

/// Zeros of that form, of one element in memory.
pub(crate) fn zeros_of(form: &TensorMeta) -> Result<Tensor> {
    aten::expand(&aten::full(&[], false, form.dtype, form.device)?, &aten::sizes(&form.shape))
}

/// Zeros of the shape of an operand, in the dtype of a gradient of it: to put gradients into.
pub(crate) fn zeros_like_operand(
    call: &Backward<'_>,
    argument: usize,
    grad: &Tensor,
) -> Result<Tensor> {
    let form = call.form(argument);
    zeros_of(&TensorMeta { dtype: grad.dtype(), ..form })
}
