//! Samples of factories and of random numbers.

use keyfold_core::DType;
use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::{Family, Sampler, plain};
use crate::array::Arg;

pub(super) const FAMILY: Family = Family { argument, ..Family::PLAIN };

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, _: &[Arg]) -> Option<Arg> {
    let is_bool = sampler.dtype == DType::Bool;
    match (name, &*argument.name) {
        ("aten::arange", "start") => plain(Value::Int(if is_bool { 0 } else { 1 })),
        ("aten::arange", "end") => {
            let most = if is_bool { 2 } else { 40 };
            plain(Value::Int([most, 1, most - 1][sampler.choice % 3].min(most)))
        }
        ("aten::arange", "step") => plain(Value::Int(1)),
        ("aten::dropout", "p") => plain(Value::Float(0.25)),
        // Other dtypes are only passed through.
        ("aten::dropout", "train") => {
            plain(Value::Bool(sampler.choice % 4 != 3 && sampler.dtype.is_floating()))
        }
        _ => None,
    }
}
