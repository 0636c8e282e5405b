//! The derivatives of convolutions, which are convolutions: a convolution is linear in its input and in its
//! weight, and so are its gradients in the gradient of the result and in the other one of the two.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_layers::autograd::{Backward, Forward, Gradients, Pushforward, added};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::arguments::{ACTIVATION, Settings, wanted, wanted_of};
use crate::activation;
use keyfold_layers::aten::Aten;

use crate::aten;
use crate::vjp::{fit_operand, if_needed, zeros_of};

/// Calls `aten::convolution`.
pub(super) fn call_convolution(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    settings: &Settings,
) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::convolution");
    let bias = bias.map_or(ValueRef::None, ValueRef::Tensor);
    let tensors = [input.into(), weight.into(), bias];
    OP.call(&[&tensors[..], &settings.values()].concat())
}

/// The gradients of input, weight and bias.
type Three = [Option<Tensor>; 3];

/// Calls `aten::convolution_backward` for some of its results.
pub(super) fn call_backward(
    gradient: &Tensor,
    input: &Tensor,
    weight: &Tensor,
    settings: &Settings,
    wanted: [bool; 3],
) -> Result<Three> {
    static OP: Aten = Aten::new("aten::convolution_backward");
    let tensors = [gradient.into(), input.into(), weight.into(), ValueRef::None];
    let mask = wanted.map(ValueRef::Bool);
    let args = [&tensors[..], &settings.values(), &[ValueRef::Refs(&mask)]].concat();
    three(OP.operator()?.call(&args)?)
}

/// Returns the results of a call of `aten::convolution_backward`.
pub(super) fn three(value: Value) -> Result<Three> {
    let several = match value {
        Value::Tuple(items) | Value::List(items) => items,
        one => vec![one],
    };
    let each = several.into_iter().map(|item| match item {
        Value::None => Ok(None),
        item => item.into_tensor().map(Some),
    });
    let each: Vec<_> = each.collect::<Result<_>>()?;
    <Three>::try_from(each).map_err(|each| {
        let message = format!("aten::convolution_backward has {} results, not 3", each.len());
        Error::new(ErrorKind::Return, message)
    })
}

/// Returns an argument's tensor if it is read, else zeros of its shape, which take no memory.
fn operand(call: &Backward<'_>, argument: usize, is_read: bool) -> Result<Tensor> {
    if is_read { call.tensor(argument) } else { zeros_of(&call.meta(argument)) }
}

/// Returns the arguments of a recorded call from a position on.
fn settings_at(call: &Backward<'_>, first: usize) -> Result<Settings> {
    let values: Vec<ValueRef<'_>> = (0..6).map(|i| call.value(first + i)).collect();
    Settings::of_values(&values)
}

pub(super) fn convolution(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    of_operands(call, grad, &settings_at(call, 3)?)
}

/// The gradients of input, weight and bias, which are the first operands.
fn of_operands(call: &Backward<'_>, grad: &Tensor, settings: &Settings) -> Result<Gradients> {
    let needed = [0, 1, 2].map(|argument| call.needs(argument));
    let input = operand(call, 0, needed[1])?;
    let weight = operand(call, 1, needed[0])?;
    let grads = call_backward(grad, &input, &weight, settings, needed)?;
    let mut fitted = Vec::with_capacity(call.slots());
    for (argument, grad) in grads.into_iter().enumerate().take(call.slots()) {
        fitted.push(match grad {
            Some(grad) => fit_operand(call, argument, &grad)?,
            None => None,
        });
    }
    Ok(fitted)
}

/// Adds a bias to the channels of a result.
fn add_bias(result: &Tensor, bias: &Tensor, rank: usize) -> Result<Tensor> {
    let mut shape = vec![1; rank + 1];
    shape[0] = bias.numel() as i64;
    aten::add(result, &aten::reshape(bias, &shape)?)
}

/// The sum of the convolutions with either operand replaced by its tangent, and the tangent of the bias.
pub(super) fn convolution_tangent(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    tangent_of_sum(call, &Settings::of_call(call.args())?)
}

fn tangent_of_sum(call: &Forward<'_, '_>, settings: &Settings) -> Result<Option<Tensor>> {
    let (input, weight) = (call.tensor(0)?, call.tensor(1)?);
    let rank = weight.ndim() - 2;
    let of_input = match call.tangent(0) {
        Some(tangent) => Some(call_convolution(tangent, weight, None, settings)?),
        None => None,
    };
    let of_weight = match call.tangent(1) {
        Some(tangent) => Some(call_convolution(input, tangent, None, settings)?),
        None => None,
    };
    let sum = added(of_input, of_weight)?;
    Ok(match (sum, call.tangent(2)) {
        (Some(sum), Some(bias)) => Some(add_bias(&sum, bias, rank)?),
        (None, Some(bias)) => {
            let zeros = aten::mul_scalar(call.result()?, 0)?;
            Some(add_bias(&zeros, bias, rank)?)
        }
        (sum, None) => sum,
    })
}

/// As [`convolution`], from the gradient before the activation.
pub(super) fn convolution_activation(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let values: Vec<ValueRef<'_>> = (0..=ACTIVATION).map(|i| call.value(i)).collect();
    let settings = Settings::of_activated(&values)?;
    let sum = || {
        let bias = call.optional(2)?;
        call_convolution(&call.tensor(0)?, &call.tensor(1)?, bias.as_ref(), &settings)
    };
    let activation = activation::named(call.value(ACTIVATION));
    let grad = activation::times_slope(activation, grad, sum, &call.result(0)?)?;
    of_operands(call, &grad, &settings)
}

pub(super) fn convolution_activation_tangent(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let settings = Settings::of_activated(call.args())?;
    let Some(tangent) = tangent_of_sum(call, &settings)? else { return Ok(None) };
    let sum = || {
        let bias = match call.args()[2] {
            ValueRef::None => None,
            bias => Some(bias.tensor()?),
        };
        call_convolution(call.tensor(0)?, call.tensor(1)?, bias, &settings)
    };
    let activation = activation::named(call.args()[ACTIVATION]);
    activation::times_slope(activation, &tangent, sum, call.result()?).map(Some)
}

/// The results are bilinear: the input's gradient in `grad_output` and `weight`, the weight's in `grad_output`
/// and `input`; the bias's is linear in `grad_output`.
pub(super) fn convolution_backward(
    call: &Backward<'_>,
    grads: &[Option<Tensor>],
) -> Result<Gradients> {
    let settings = settings_at(call, 4)?;
    let rank = call.shape(2).len() - 2;
    // There is a gradient for each tensor among the results, and none for a result that wasn't wanted.
    let mut grads = grads.iter();
    let [of_input, of_weight, of_bias] = wanted_of(call.value(10))?
        .map(|wanted| wanted.then(|| grads.next()).flatten().and_then(Option::as_ref));
    let mut result = vec![None; call.slots()];
    if call.needs(0) {
        let by_input = match of_input {
            Some(grad) => Some(call_convolution(grad, &call.tensor(2)?, None, &settings)?),
            None => None,
        };
        let by_weight = match of_weight {
            Some(grad) => Some(call_convolution(&call.tensor(1)?, grad, None, &settings)?),
            None => None,
        };
        let mut sum = added(by_input, by_weight)?;
        if let Some(bias) = of_bias {
            let base = match sum {
                Some(sum) => sum,
                None => zeros_of(&call.meta(0))?,
            };
            sum = Some(add_bias(&base, bias, rank)?);
        }
        result[0] = match sum {
            Some(sum) => fit_operand(call, 0, &sum)?,
            None => None,
        };
    }
    if let Some(grad) = of_weight {
        result[1] = if_needed(call, 1, || {
            let like = operand(call, 1, false)?;
            let [found, ..] =
                call_backward(&call.tensor(0)?, &like, grad, &settings, [true, false, false])?;
            wanted_one(found)
        })?;
    }
    if let Some(grad) = of_input {
        result[2] = if_needed(call, 2, || {
            let like = operand(call, 2, false)?;
            let [_, found, _] =
                call_backward(&call.tensor(0)?, grad, &like, &settings, [false, true, false])?;
            wanted_one(found)
        })?;
    }
    Ok(result)
}

/// Returns a result that was wanted.
fn wanted_one(result: Option<Tensor>) -> Result<Tensor> {
    result.ok_or_else(|| {
        let message = "aten::convolution_backward: a result is missing that the call wants";
        Error::new(ErrorKind::Return, message)
    })
}

/// The rule of forward mode of `convolution_backward`.
pub(super) fn convolution_backward_tangent() -> Arc<dyn Pushforward> {
    Arc::new(BackwardTangent)
}

struct BackwardTangent;

impl Pushforward for BackwardTangent {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        let settings = Settings::of_backward(call.args())?;
        let wanted = wanted(call.args())?;
        let (gradient, input, weight) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
        let [mut of_input, mut of_weight, mut of_bias] = [None, None, None];
        if let Some(tangent) = call.tangent(0) {
            [of_input, of_weight, of_bias] =
                call_backward(tangent, input, weight, &settings, wanted)?;
        }
        if let Some(tangent) = call.tangent(1).filter(|_| wanted[1]) {
            let [_, part, _] =
                call_backward(gradient, tangent, weight, &settings, [false, true, false])?;
            of_weight = added(of_weight, part)?;
        }
        if let Some(tangent) = call.tangent(2).filter(|_| wanted[0]) {
            let [part, ..] =
                call_backward(gradient, input, tangent, &settings, [true, false, false])?;
            of_input = added(of_input, part)?;
        }
        // One tangent for each tensor among the results.
        let all = [of_input, of_weight, of_bias].into_iter().zip(wanted);
        Ok(all.filter(|(_, wanted)| *wanted).map(|(tangent, _)| tangent).collect())
    }
}
