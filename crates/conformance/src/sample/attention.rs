//! Samples of attention.

use keyfold_core::DType;
use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::{Family, Sampler, plain, shape_of};
use crate::array::{Arg, Array, Layout, Operand};
use crate::elements::Values;
use crate::model::Attention;
use crate::number::Number;

pub(super) const FAMILY: Family = Family {
    sums: &[
        "aten::scaled_dot_product_attention",
        "keyfold::attention",
        "keyfold::attention_backward",
    ],
    fit_shape,
    argument,
    ..Family::PLAIN
};

/// The most scores of a sample: the reference computes each of them for each element of a result.
const MOST_SCORES: usize = 512;

fn fit_shape(sampler: &mut Sampler, name: &str) -> Option<()> {
    if FAMILY.sums.contains(&name) {
        sampler.at_least(2);
        let scores = sampler.shape.iter().product::<usize>() / sampler.shape.last()?.max(&1);
        if scores * keys(sampler) > MOST_SCORES || sampler.shape.last()? > &70 {
            sampler.shape = [vec![2, 5, 3], vec![66, 2], vec![3, 17]][sampler.choice % 3].clone();
        }
    }
    Some(())
}

/// The number of keys.
fn keys(sampler: &Sampler) -> usize {
    [3, 5, 1][sampler.choice / 2 % 3]
}

/// Returns a tensor of moderate numbers: elements of excluded values times 0 are left to other tests.
fn moderate(sampler: &mut Sampler, shape: &[usize]) -> Operand {
    let mut operand = sampler.tensor(shape);
    let dtype = operand.array.dtype;
    // Of both signs, so that gradients aren't small differences of great numbers.
    let shift = if sampler.values == Values::Smooth { 1.0 } else { 0.0 };
    for item in &mut operand.array.items {
        let x = item.float();
        *item = Number::Float(if x.is_finite() { x % 3.0 - shift } else { 0.5 }).cast(dtype);
    }
    operand
}

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, args: &[Arg]) -> Option<Arg> {
    if !FAMILY.sums.contains(&name) {
        return None;
    }
    let first = usize::from(name == "keyfold::attention_backward");
    let shape = sampler.shape.clone();
    let (leading, own) = shape.split_at(shape.len() - 2);
    let (keys, values) = (keys(sampler), [own[1], 4][sampler.choice % 2]);
    // Every third sample shares its keys, and every fourth its values.
    let of_key = if sampler.choice % 3 == 2 { &[][..] } else { leading };
    let of_value = if sampler.choice % 4 == 3 { &[][..] } else { leading };
    let is_causal = sampler.choice % 5 == 1;
    let tensor =
        |sampler: &mut Sampler, shape: &[usize]| Some(Arg::Tensor(moderate(sampler, shape)));
    match &*argument.name {
        "grad" => tensor(sampler, &[leading, &[own[0], values]].concat()),
        "query" => tensor(sampler, &shape),
        "key" => tensor(sampler, &[of_key, &[keys, own[1]]].concat()),
        "value" => tensor(sampler, &[of_value, &[keys, values]].concat()),
        "attn_mask" => match sampler.choice % 4 {
            _ if is_causal => plain(Value::None),
            1 => Some(Arg::Tensor(sampler.mask(&[own[0], keys]))),
            2 => tensor(sampler, &[keys]),
            3 => Some(Arg::Tensor(sampler.mask(&[own[0], 1]))),
            _ => plain(Value::None),
        },
        "is_causal" => plain(Value::Bool(is_causal)),
        "scale" => plain(match sampler.choice % 3 {
            1 => Value::Float(0.75),
            _ => Value::None,
        }),
        "dropout_p" => plain(Value::Float(0.0)),
        "enable_gqa" => plain(Value::Bool(false)),
        "results" => {
            let operands = [first, first + 1, first + 2].map(|at| array(args, at));
            let [Some(query), Some(key), Some(value)] = operands else { return None };
            shape_of(args, first)?;
            let scale = (sampler.choice % 3 == 1).then_some(0.75);
            let mask = array(args, first + 3);
            let results = Attention::new([query, key, value], mask, is_causal, scale).results();
            let operand = |array: Array, dtype: DType| {
                Some(Operand { array: array.cast(dtype), layout: Layout::Contiguous })
            };
            let each = results.into_iter().map(|result| {
                let dtype = result.array.dtype;
                operand(result.array, dtype)
            });
            Some(Arg::Tensors(each.collect()))
        }
        _ => None,
    }
}

fn array(args: &[Arg], at: usize) -> Option<&Array> {
    match args.get(at) {
        Some(Arg::Tensor(operand)) => Some(&operand.array),
        _ => None,
    }
}
