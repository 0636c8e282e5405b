//! The activations of fused operators: their names, and their derivatives by the operators of the same
//! names.

use keyfold_backend::Activation;
use keyfold_core::{DType, ErrorKind, Result};
use keyfold_tensor::{Tensor, ValueRef};

use crate::aten::{self, Aten};
use crate::op::Op;

/// Returns the activation that an argument names, for results of that dtype.
///
/// # Errors
/// [`ErrorKind::Value`] for other names, and [`ErrorKind::DType`] for an activation of numbers that aren't
/// real floats.
pub(crate) fn parse(op: &Op, name: &str, dtype: DType) -> Result<Activation> {
    let Some(activation) = Activation::from_name(name) else {
        let names = Activation::ALL.map(Activation::name).join(", ");
        let message = format!("argument 'activation' is '{name}'; it must be one of {names}");
        return Err(op.error(ErrorKind::Value, message));
    };
    if activation != Activation::None && !dtype.is_floating() {
        let message = format!(
            "argument 'activation' is '{name}', but the result is of {dtype}; activations are of \
             floats: convert the arguments with aten::to"
        );
        return Err(op.error(ErrorKind::DType, message));
    }
    Ok(activation)
}

/// Returns the activation that an argument names; calls that an operator has accepted name one.
pub(crate) fn named(value: ValueRef<'_>) -> Activation {
    match value {
        ValueRef::Str(name) => Activation::from_name(name).unwrap_or_default(),
        _ => Activation::None,
    }
}

/// Returns the operator that computes the activation alone; `None` for none.
pub(crate) fn operator(activation: Activation) -> Option<&'static Aten> {
    static RELU: Aten = Aten::new("aten::relu");
    static GELU: Aten = Aten::new("aten::gelu");
    static GELU_TANH: Aten = Aten::new("aten::gelu_tanh");
    static GELU_SIGMOID: Aten = Aten::new("aten::gelu_sigmoid");
    static SIGMOID: Aten = Aten::new("aten::sigmoid");
    static TANH: Aten = Aten::new("aten::tanh");
    match activation {
        Activation::None => None,
        Activation::Relu => Some(&RELU),
        Activation::Gelu => Some(&GELU),
        Activation::GeluTanh => Some(&GELU_TANH),
        Activation::GeluSigmoid => Some(&GELU_SIGMOID),
        Activation::Sigmoid => Some(&SIGMOID),
        Activation::Tanh => Some(&TANH),
    }
}

/// Multiplies by the activation's slope: the gradient of the result, or the tangent of the operand `x`, which
/// is computed only where the slope doesn't follow from the `result`.
///
/// # Errors
/// Those of the calls.
pub(crate) fn times_slope(
    activation: Activation,
    grad: &Tensor,
    x: impl FnOnce() -> Result<Tensor>,
    result: &Tensor,
) -> Result<Tensor> {
    static GELU: Aten = Aten::new("aten::gelu_backward");
    static GELU_TANH: Aten = Aten::new("aten::gelu_tanh_backward");
    static GELU_SIGMOID: Aten = Aten::new("aten::gelu_sigmoid_backward");
    static SIGMOID: Aten = Aten::new("aten::sigmoid_backward");
    static TANH: Aten = Aten::new("aten::tanh_backward");
    match activation {
        Activation::None => Ok(grad.clone()),
        // The gradient passes at NaN, so that a NaN propagates.
        Activation::Relu => aten::where_scalar_self(&aten::le_scalar(result, 0)?, 0, grad),
        Activation::Gelu => GELU.call(&[grad.into(), (&x()?).into()]),
        Activation::GeluTanh => GELU_TANH.call(&[grad.into(), (&x()?).into()]),
        Activation::GeluSigmoid => GELU_SIGMOID.call(&[grad.into(), (&x()?).into()]),
        Activation::Sigmoid => SIGMOID.call(&[grad.into(), result.into()]),
        Activation::Tanh => TANH.call(&[grad.into(), result.into()]),
    }
}
