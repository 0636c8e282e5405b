//! Samples of the steps of optimizers, and of dropout.

use keyfold_core::DType;
use keyfold_dispatch::schema::{Argument, Type};
use keyfold_tensor::Value;

use super::{Family, Sampler, plain};
use crate::array::Arg;
use crate::number::Number;

pub(super) const FAMILY: Family = Family { argument, fit_values, ..Family::PLAIN };

/// The greatest number of a sample: its square is far from the range's end in every dtype.
const GREATEST: f64 = 64.0;

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, _: &[Arg]) -> Option<Arg> {
    let choice = sampler.choice;
    let float = |x: f64| plain(Value::Float(x));
    match (name, &*argument.name) {
        ("aten::native_dropout", "p") => float([0.25, 0.5, 0.0, 1.0][choice % 4]),
        ("aten::native_dropout", "train") => plain(Value::Bool(choice % 5 != 4)),
        ("aten::native_dropout_backward", "scale") => float(1.5),
        ("keyfold::dropout_threshold", "threshold") => {
            plain(Value::Int([1 << 31, 0, 1 << 32, 12_345][choice % 4]))
        }
        ("keyfold::dropout_threshold", "scale") => float(2.0),
        ("keyfold::dropout_threshold", "seed" | "offset") => plain(Value::Int(choice as i64)),
        ("keyfold::adam_step_" | "keyfold::sgd_step_", name) => {
            step_argument(sampler, name, argument)
        }
        _ => None,
    }
}

fn step_argument(sampler: &mut Sampler, name: &str, argument: &Argument) -> Option<Arg> {
    let choice = sampler.choice;
    let has_buffer = choice % 4 != 3;
    let float = |x: f64| plain(Value::Float(x));
    if argument.ty.without_optional() == &Type::Tensor {
        let absent = match name {
            "max_exp_avg_sq" => choice.is_multiple_of(2),
            "momentum_buffer" => !has_buffer,
            _ => false,
        };
        if absent {
            return plain(Value::None);
        }
        let (shape, own) = (sampler.shape.clone(), sampler.dtype);
        let is_half = matches!(own, DType::F16 | DType::BF16);
        if is_half && !matches!(name, "self" | "grad") && choice.is_multiple_of(3) {
            sampler.dtype = DType::F32;
        }
        let tensor = sampler.tensor(&shape);
        sampler.dtype = own;
        return Some(Arg::Tensor(tensor));
    }
    match name {
        "step" => plain(Value::Int([1, 2, 1000][choice % 3])),
        "lr" => float(0.125),
        "eps" => float(1e-3),
        "momentum" => float(if has_buffer { 0.75 } else { 0.0 }),
        "dampening" => float(if choice % 5 == 1 && choice.is_multiple_of(2) { 0.5 } else { 0.0 }),
        "weight_decay" => float(if choice % 3 == 1 { 0.5 } else { 0.0 }),
        "nesterov" => plain(Value::Bool(has_buffer && choice % 2 == 1)),
        _ => None,
    }
}

/// Second moments aren't negative, and numbers have squares.
fn fit_values(_: &Sampler, name: &str, args: &mut [Arg]) {
    if !matches!(name, "keyfold::adam_step_" | "keyfold::sgd_step_") {
        return;
    }
    for (at, arg) in args.iter_mut().enumerate() {
        for operand in arg.operands_mut() {
            let dtype = operand.array.dtype;
            for item in &mut operand.array.items {
                let Number::Float(x) = *item else { continue };
                let x = if x.is_finite() { x.clamp(-GREATEST, GREATEST) } else { x };
                *item = Number::Float(if at >= 3 { x.abs() } else { x }).cast(dtype);
            }
        }
    }
}
