//! Samples of convolutions.

use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::linalg::ACTIVATIONS;
use super::{Family, Sampler, ints, plain};
use crate::array::Arg;

pub(super) const FAMILY: Family = Family {
    sums: &[
        "aten::convolution",
        "aten::convolution_backward",
        "keyfold::convolution_activation",
        "aten::conv1d",
        "aten::conv2d",
        "aten::conv3d",
        "aten::conv1d.padding",
        "aten::conv2d.padding",
        "aten::conv3d.padding",
        "aten::conv_transpose1d",
        "aten::conv_transpose2d.input",
        "aten::conv_transpose3d.input",
    ],
    fit_shape,
    argument,
    ..Family::PLAIN
};

/// The most elements of an input: the reference multiplies each several hundred times.
const MOST: usize = 300;
/// Inputs in place of larger ones: several registers of pixels, with tails.
const INPUTS: [&[usize]; 3] = [&[2, 3, 3, 11], &[1, 2, 3, 4, 5], &[2, 2, 53]];

/// The settings of a sample, which follow from the shape, the operator and the choice.
struct Plan {
    /// Dimensions of space.
    rank: usize,
    transposed: bool,
    groups: usize,
    stride: usize,
    /// One number for each dimension, or a pair.
    padding: Vec<usize>,
    dilation: usize,
    output_padding: usize,
    weight: Vec<usize>,
    /// Channels of the result.
    channels: usize,
    output: Vec<usize>,
}

fn is_known(name: &str) -> bool {
    FAMILY.sums.contains(&name)
}

/// Returns the dimensions of space that an operator has; `None` for any.
fn rank_of(name: &str) -> Option<usize> {
    [("1d", 1), ("2d", 2), ("3d", 3)]
        .into_iter()
        .find(|(part, _)| name.contains(part))
        .map(|(_, rank)| rank)
}

fn fit_shape(sampler: &mut Sampler, name: &str) -> Option<()> {
    if !is_known(name) {
        return Some(());
    }
    let rank = rank_of(name);
    if sampler.shape.iter().product::<usize>() > MOST {
        let inputs = INPUTS.iter().filter(|shape| rank.is_none_or(|rank| shape.len() == rank + 2));
        sampler.shape = inputs.clone().nth(sampler.choice % inputs.count())?.to_vec();
    }
    match rank {
        Some(rank) => sampler.at_least(rank + 2 - usize::from(sampler.choice % 4 == 3)),
        None => sampler.at_least(3),
    }
    plan(sampler, name).map(|_| ())
}

fn plan(sampler: &Sampler, name: &str) -> Option<Plan> {
    let (shape, choice) = (&sampler.shape, sampler.choice);
    let rank = match rank_of(name) {
        Some(rank) => rank,
        None if choice % 5 == 4 && shape.len() < 5 => shape.len() - 1,
        None => shape.len() - 2,
    };
    if !(1..=3).contains(&rank) || !(rank + 1..=rank + 2).contains(&shape.len()) {
        return None;
    }
    let (front, space) = shape.split_at(shape.len() - rank);
    let given = front[front.len() - 1];
    let groups = match choice % 4 {
        1 if given > 0 => given,
        2 if given % 2 == 0 => 2,
        _ => 1,
    };
    let of_group = [2, 1, 9][choice % 3];
    let transposed = match rank_of(name) {
        Some(_) => name.contains("transpose"),
        None => choice % 3 == 2 && name != "keyfold::convolution_activation",
    };
    let named = name.ends_with(".padding");
    let (stride, dilation) = (if named { 1 } else { 1 + choice % 2 }, 1 + choice / 2 % 2);
    let kernel: Vec<usize> = (0..rank).map(|d| 1 + (choice + d) % 3).collect();
    let padding = match (transposed || named, choice % 5) {
        (true, _) => vec![0; rank],
        // Those named after their dimensions have no pairs.
        (_, 2) if rank_of(name).is_none() => (0..2 * rank).map(|i| 1 + i % 2).collect(),
        _ => vec![1; rank],
    };
    let output_padding = if transposed && stride > 1 { choice / 4 % 2 } else { 0 };
    let weight_front = match transposed {
        true => [given, of_group],
        false => [of_group * groups, given / groups],
    };
    let mut output = front[..front.len() - 1].to_vec();
    output.push(of_group * groups);
    for (d, size) in space.iter().enumerate() {
        let reach = (kernel[d] - 1) * dilation + 1;
        let pads = match padding.len() == rank {
            true => 2 * padding[d],
            false => padding[2 * d] + padding[2 * d + 1],
        };
        output.push(match transposed {
            true => size.checked_sub(1)? * stride + reach + output_padding,
            // `same` has no kernel for an input without pixels.
            false if named && choice % 2 == 1 => Some(*size).filter(|size| *size > 0)?,
            false => (size + pads).checked_sub(reach)? / stride + 1,
        });
    }
    Some(Plan {
        rank,
        transposed,
        groups,
        stride,
        padding,
        dilation,
        output_padding,
        weight: weight_front.into_iter().chain(kernel).collect(),
        channels: of_group * groups,
        output,
    })
}

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, _: &[Arg]) -> Option<Arg> {
    if !is_known(name) {
        return None;
    }
    let plan = plan(sampler, name)?;
    let all = |number: usize| ints(&vec![number; plan.rank]);
    match &*argument.name {
        "input" => {
            let shape = sampler.shape.clone();
            Some(Arg::Tensor(sampler.tensor(&shape)))
        }
        "grad_output" => Some(Arg::Tensor(sampler.tensor(&plan.output))),
        "weight" => Some(Arg::Tensor(sampler.tensor(&plan.weight))),
        "bias" if sampler.choice % 2 == 1 => plain(Value::None),
        "bias" => Some(Arg::Tensor(sampler.tensor(&[plan.channels]))),
        "stride" => all(plan.stride),
        "padding" if name.ends_with(".padding") => {
            plain(Value::Str(if sampler.choice % 2 == 1 { "same" } else { "valid" }.into()))
        }
        "padding" => ints(&plan.padding),
        "dilation" => all(plan.dilation),
        "output_padding" => all(plan.output_padding),
        "transposed" => plain(Value::Bool(plan.transposed)),
        "activation" => plain(Value::Str(ACTIVATIONS[sampler.choice % ACTIVATIONS.len()].into())),
        "groups" => plain(Value::Int(plan.groups as i64)),
        "output_mask" => {
            let wanted = |at: usize| Value::Bool(sampler.choice % 4 != at + 1);
            plain(Value::List((0..3).map(wanted).collect()))
        }
        _ => None,
    }
}
