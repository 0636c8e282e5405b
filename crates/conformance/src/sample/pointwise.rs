//! Samples of pointwise operators.

use keyfold_core::DType;
use keyfold_dispatch::schema::Argument;
use keyfold_ops::pointwise::ELEMENTWISE;
use keyfold_tensor::Value;

use super::{Family, Sampler, plain};
use crate::array::Arg;
use crate::elements::Values;
use crate::number::Number;

pub(super) const FAMILY: Family = Family { argument, fit_values, ..Family::PLAIN };

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, _: &[Arg]) -> Option<Arg> {
    let shape = sampler.shape.clone();
    match (name, &*argument.name) {
        (ELEMENTWISE, "inputs") => {
            let row = &shape[shape.len().saturating_sub(1)..];
            let all = [sampler.tensor(&shape), sampler.tensor(row)];
            Some(Arg::Tensors(all.map(Some).into()))
        }
        (ELEMENTWISE, "expression") => plain(Value::Str("a, b; c: a * b + c".into())),
        (ELEMENTWISE, "numbers") => {
            let number =
                if sampler.dtype == DType::Bool { Value::Bool(true) } else { Value::Int(2) };
            plain(Value::List(vec![number]))
        }
        // The lower bound is below the upper one.
        ("aten::clamp" | "aten::hardtanh", "min" | "min_val" | "max" | "max_val") => {
            let upper = argument.name.starts_with("max");
            plain(match sampler.dtype {
                DType::Bool => Value::Bool(upper),
                _ => Value::Int(if upper { 5 } else { 2 }),
            })
        }
        _ => None,
    }
}

fn fit_values(sampler: &Sampler, name: &str, args: &mut [Arg]) {
    if !sampler.dtype.is_integral() {
        return;
    }
    for (place, operand) in args.iter_mut().flat_map(Arg::operands_mut).enumerate() {
        let array = &mut operand.array;
        // Integers have no negative powers, and shifts are by few bits.
        let is_exponent = match name {
            "aten::pow" => place == 1,
            "aten::rpow.Scalar" => place == 0,
            _ => false,
        };
        let is_shift = name.contains("_shift") && (place == 1 || name.contains("rbitwise"));
        let below = match array.dtype == sampler.dtype {
            true if is_exponent => 5,
            true if is_shift && sampler.values == Values::Plain => 7,
            _ => continue,
        };
        for item in &mut array.items {
            *item = Number::Whole(item.whole().rem_euclid(below));
        }
    }
}
