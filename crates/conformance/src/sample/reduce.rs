//! Samples of reductions and scans.

use keyfold_core::{DType, DTypeKind};
use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::{Family, Sampler, plain};
use crate::array::Arg;
use crate::number::Number;

pub(super) const FAMILY: Family = Family {
    sums: &[
        "aten::sum",
        "aten::sum.dim",
        "aten::mean",
        "aten::mean.dim",
        "aten::softmax",
        "aten::log_softmax",
        "aten::cumsum",
        "aten::cumprod",
    ],
    fit_shape,
    argument,
    fit_values,
};

fn fit_shape(sampler: &mut Sampler, name: &str) -> Option<()> {
    match name {
        "aten::softmax" | "aten::log_softmax" | "aten::cumsum" | "aten::cumprod" => {
            sampler.at_least(1);
        }
        // The extremes of no elements don't exist.
        "aten::max" | "aten::min" | "aten::amax" | "aten::amin" | "aten::argmax"
        | "aten::argmin" => sampler.fill_empty(),
        _ => {}
    }
    Some(())
}

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, _: &[Arg]) -> Option<Arg> {
    match (name, &*argument.name) {
        ("aten::softmax" | "aten::log_softmax" | "aten::cumsum" | "aten::cumprod", "dim") => {
            sampler.dim_argument()
        }
        ("aten::argmax" | "aten::argmin", "dim") => plain(match sampler.choice % 3 {
            0 => Value::None,
            _ if sampler.shape.is_empty() => Value::None,
            _ => Value::Int(sampler.dim() as i64),
        }),
        (
            "aten::sum" | "aten::mean" | "aten::sum.dim" | "aten::mean.dim" | "aten::cumsum"
            | "aten::cumprod",
            "dtype",
        ) => plain(match (sampler.choice % 4, sampler.dtype.kind()) {
            (3, DTypeKind::Float) => Value::DType(DType::F64),
            (3, DTypeKind::Complex) => Value::DType(DType::C128),
            _ => Value::None,
        }),
        _ => None,
    }
}

/// Products of many stay in range.
fn fit_values(sampler: &Sampler, name: &str, args: &mut [Arg]) {
    if name != "aten::cumprod" || sampler.dtype.is_integral() {
        return;
    }
    let near_one = |x: f64| if x == 0.0 { x } else { (1.0 + (x.abs() - 1.0) / 64.0).copysign(x) };
    for operand in args.iter_mut().flat_map(Arg::operands_mut) {
        for item in &mut operand.array.items {
            *item = match *item {
                Number::Float(x) => Number::Float(near_one(x)),
                Number::Complex(c) => Number::Complex(c / c.norm() * near_one(c.norm())),
                whole => whole,
            };
            *item = item.cast(sampler.dtype);
        }
    }
}
