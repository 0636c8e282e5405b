//! Helpers for the vector-Jacobian products of all families.
//!
//! Vector-Jacobian products call operators, so gradients of gradients need no further rules. They write to
//! no gradient, since other nodes may use the same tensor. A row says for each operand which tensors its
//! gradient reads; a call saves only the tensors that the needed gradients read.
//!
//! The gradient of a complex number is `dL/dRe + i dL/dIm` of the real loss L, as in PyTorch: it is
//! multiplied by the conjugate of the derivative ([`times_conj`]), and the gradient of a real operand is the
//! real part ([`match_meta`]).
//!
//! At a kink (`abs`, `relu` and `sign` at 0) the gradient is 0. Equal extremes of `maximum`, `max` and the
//! like share the gradient evenly.

use keyfold_core::{Result, Scalar};
use keyfold_layers::autograd::{Backward, Gradients, Saves, TensorMeta, Vjp};
use keyfold_tensor::Tensor;

use crate::aten::{self, sum_to};
use crate::row::{Gradient, Rule};

/// Makes the rule of an operator with a hand-written vector-Jacobian product. `reads` lists for each operand
/// the tensors that its gradient reads; the last item holds for all further operands.
pub(crate) const fn formula(reads: &'static [Saves], vjp: Vjp) -> Rule<Gradient> {
    Rule::Given(Gradient::Formula(reads, vjp))
}

/// The rule of an operator without a derivative, with the reason.
pub(crate) const BOOL_RESULT: Rule<Gradient> = Rule::Refused("the result is bool");
/// As [`BOOL_RESULT`].
pub(crate) const INTEGER_RESULT: Rule<Gradient> = Rule::Refused("the result is bool or integer");
/// As [`BOOL_RESULT`].
pub(crate) const NO_TENSOR_ARGUMENT: Rule<Gradient> = Rule::Refused("no argument is a tensor");

/// The gradients read no tensor.
pub(crate) const READS_NOTHING: &[Saves] = &[Saves::NONE];
/// The gradients read the first argument.
pub(crate) const READS_FIRST: &[Saves] = &[Saves::arguments(&[0])];
/// The gradient of each of two operands reads the other one.
pub(crate) const READS_OTHER: &[Saves] = &[Saves::arguments(&[1]), Saves::arguments(&[0])];
/// The gradients read the result.
pub(crate) const READS_RESULT: &[Saves] = &[Saves::RESULTS];

/// Converts a gradient to the shape and dtype of an operand: sums over the broadcast dimensions, and takes
/// the real part for a real operand of a complex result.
pub(crate) fn match_meta(form: &TensorMeta, grad: &Tensor) -> Result<Tensor> {
    let grad = match grad.dtype().is_complex() && !form.dtype.is_complex() {
        true => &aten::real(grad)?,
        false => grad,
    };
    let grad = sum_to(grad, &form.shape)?;
    if grad.dtype() == form.dtype { Ok(grad) } else { aten::to(&grad, form.dtype) }
}

/// Converts a gradient to the shape and dtype of the operand at a position.
pub(crate) fn fit_operand(
    call: &Backward<'_>,
    argument: usize,
    grad: &Tensor,
) -> Result<Option<Tensor>> {
    match_meta(&call.meta(argument), grad).map(Some)
}

/// As [`fit_operand`]; `None` where the gradient of that operand isn't needed.
pub(crate) fn if_needed(
    call: &Backward<'_>,
    argument: usize,
    grad: impl FnOnce() -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    if call.needs(argument) { fit_operand(call, argument, &grad()?) } else { Ok(None) }
}

/// Returns the gradients of an operator of which only the first operand has one.
pub(crate) fn first_only(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let mut grads = vec![None; call.slots()];
    grads[0] = fit_operand(call, 0, grad)?;
    Ok(grads)
}

/// Returns the conjugate of complex numbers, and real numbers unchanged.
pub(crate) fn conj_if_complex(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_complex() { aten::conj(x) } else { Ok(x.clone()) }
}

/// Multiplies the gradient of the result by the conjugate of the derivative `slope`.
pub(crate) fn times_conj(grad: &Tensor, slope: &Tensor) -> Result<Tensor> {
    aten::mul(grad, &conj_if_complex(slope)?)
}

/// Divides the gradient of the result by the conjugate of `inverse`, the reciprocal of the derivative.
pub(crate) fn over_conj(grad: &Tensor, inverse: &Tensor) -> Result<Tensor> {
    aten::div(grad, &conj_if_complex(inverse)?)
}

/// Returns the conjugate of a number.
pub(crate) fn conj_scalar(number: Scalar) -> Scalar {
    match number {
        Scalar::Complex(z) => Scalar::Complex(z.conj()),
        real => real,
    }
}

/// Makes zeros of that shape, dtype and device, with one element in memory.
pub(crate) fn zeros_of(meta: &TensorMeta) -> Result<Tensor> {
    aten::expand(&aten::full(&[], false, meta.dtype, meta.device)?, &aten::sizes(&meta.shape))
}

/// Makes zeros of the shape of an operand and the dtype of the gradient, for scattering the gradient into.
pub(crate) fn zeros_like_operand(
    call: &Backward<'_>,
    argument: usize,
    grad: &Tensor,
) -> Result<Tensor> {
    let form = call.meta(argument);
    zeros_of(&TensorMeta { dtype: grad.dtype(), ..form })
}
