//! Samples of normalizations, of their gradients, and of those of softmax.

use keyfold_core::DType;
use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::{Family, Sampler, ints, plain};
use crate::array::Arg;
use crate::number::Number;

pub(super) const FAMILY: Family = Family {
    sums: &[
        "aten::layer_norm",
        "aten::rms_norm",
        "aten::group_norm",
        "aten::batch_norm",
        "aten::instance_norm",
        "aten::native_layer_norm",
        "aten::native_layer_norm_backward",
        "aten::_fused_rms_norm",
        "aten::_fused_rms_norm_backward",
        "aten::native_group_norm",
        "aten::native_group_norm_backward",
        "aten::native_batch_norm",
        "aten::_native_batch_norm_legit.no_stats",
        "aten::_native_batch_norm_legit_functional",
        "aten::_native_batch_norm_legit_no_training",
        "aten::native_batch_norm_backward",
        "aten::_softmax_backward_data",
        "aten::_log_softmax_backward_data",
    ],
    fit_shape,
    argument,
    fit_values,
};

/// Whether an operator normalizes the last dimensions; `None` for those of other families.
fn is_of_last(name: &str) -> Option<bool> {
    let known = FAMILY.sums.contains(&name) && !name.contains("softmax");
    known.then(|| name.contains("layer_norm") || name.contains("rms_norm"))
}

fn fit_shape(sampler: &mut Sampler, name: &str) -> Option<()> {
    if name.contains("softmax_backward") {
        sampler.at_least(1);
    }
    match is_of_last(name) {
        Some(true) => {
            sampler.at_least(1);
            if sampler.shape[sampler.shape.len() - normalized(sampler)..].contains(&0) {
                sampler.fill_empty();
            }
        }
        Some(false) => {
            sampler.at_least(2);
            sampler.fill_empty();
            if name.ends_with("functional")
                && sampler.shape.iter().product::<usize>() == sampler.shape[1]
            {
                // One element has no unbiased variance.
                sampler.shape[0] = 3;
            }
        }
        None => {}
    }
    Some(())
}

/// The number of normalized dimensions.
fn normalized(sampler: &Sampler) -> usize {
    (1 + sampler.choice % 2).min(sampler.shape.len())
}

/// The number of groups of the channels.
fn groups(sampler: &Sampler) -> usize {
    let channels = sampler.shape[1];
    match sampler.choice % 3 {
        0 => channels,
        1 => 1,
        _ => (2..=channels).find(|groups| channels.is_multiple_of(*groups)).unwrap_or(1),
    }
}

/// A tensor of that shape, of the sample's dtype, or of float32 beside halves.
fn tensor(sampler: &mut Sampler, shape: &[usize], wide: bool) -> Option<Arg> {
    let own = sampler.dtype;
    if wide && matches!(own, DType::F16 | DType::BF16) {
        sampler.dtype = DType::F32;
    }
    let tensor = sampler.tensor(shape);
    sampler.dtype = own;
    Some(Arg::Tensor(tensor))
}

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, _: &[Arg]) -> Option<Arg> {
    let (shape, choice) = (sampler.shape.clone(), sampler.choice);
    if name.contains("softmax_backward") {
        return match &*argument.name {
            "grad_output" | "output" => tensor(sampler, &shape, false),
            "dim" => sampler.dim_argument(),
            "input_dtype" => plain(Value::DType(sampler.dtype)),
            _ => None,
        };
    }
    let of_last = is_of_last(name)?;
    let outer = shape.len() - if of_last { normalized(sampler) } else { 0 };
    let weights = if of_last { shape[outer..].to_vec() } else { vec![shape[1]] };
    let statistics = match name {
        _ if of_last => {
            shape.iter().enumerate().map(|(d, n)| if d < outer { *n } else { 1 }).collect()
        }
        "aten::native_group_norm_backward" => vec![shape[0], groups(sampler)],
        _ => vec![shape[1]],
    };
    let trains = choice.is_multiple_of(2);
    match &*argument.name {
        "input" | "grad_out" => tensor(sampler, &shape, false),
        "normalized_shape" => ints(&weights),
        "weight" if choice % 4 == 3 => plain(Value::None),
        "bias" if choice % 4 == 2 => plain(Value::None),
        "weight" | "bias" => tensor(sampler, &weights, choice % 3 == 0),
        "mean" | "rstd" | "save_mean" | "save_invstd" => tensor(sampler, &statistics, true),
        // A schema without an annotation lets nothing be written, so running statistics aren't updated here.
        "running_mean" | "running_var" if argument.ty.is_optional() && trains => plain(Value::None),
        "running_mean" | "running_var" => tensor(sampler, &statistics, choice % 3 == 0),
        "num_groups" | "group" => plain(Value::Int(groups(sampler) as i64)),
        "N" => plain(Value::Int(shape[0] as i64)),
        "C" => plain(Value::Int(shape[1] as i64)),
        "HxW" => plain(Value::Int(shape[2..].iter().product::<usize>() as i64)),
        "training" => plain(Value::Bool(trains || !name.ends_with("batch_norm"))),
        "use_input_stats" | "train" => plain(Value::Bool(trains)),
        "momentum" => plain(Value::Float(0.25)),
        "eps" if argument.ty.is_optional() && trains => plain(Value::None),
        "eps" => plain(Value::Float(0.01)),
        "output_mask" => {
            let all = [[true; 3], [true, false, true], [false, true, true], [true, true, false]];
            let count = if name.contains("rms") { 2 } else { 3 };
            let items = all[choice % 4].iter().take(count);
            plain(Value::List(items.map(|wanted| Value::Bool(*wanted)).collect()))
        }
        _ => None,
    }
}

/// Variances and reciprocal deviations aren't negative. In gradients they and the weights are finite: an infinite
/// factor times a sum of 0 would depend on the order of the factors.
fn fit_values(_: &Sampler, name: &str, args: &mut [Arg]) {
    let places: &[usize] = match name {
        "aten::native_layer_norm_backward" => &[4],
        "aten::_fused_rms_norm_backward" | "aten::native_group_norm_backward" => &[3],
        "aten::native_batch_norm_backward" => &[4, 6],
        "aten::_native_batch_norm_legit_functional"
        | "aten::_native_batch_norm_legit_no_training"
        | "aten::native_batch_norm"
        | "aten::batch_norm"
        | "aten::instance_norm" => &[4],
        _ => &[],
    };
    let first = if name.ends_with("norm_backward") { 2 } else { args.len() };
    for operand in args[first..].iter_mut().flat_map(Arg::operands_mut) {
        let dtype = operand.array.dtype;
        for item in &mut operand.array.items {
            if !item.float().is_finite() {
                *item = Number::Float(0.5).cast(dtype);
            }
        }
    }
    for at in places {
        for operand in args[*at].operands_mut() {
            for item in &mut operand.array.items {
                if let Number::Float(x) = *item {
                    *item = Number::Float(x.abs());
                }
            }
        }
    }
}
