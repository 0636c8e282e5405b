//! The batching rules of convolutions: examples of one weight become images of one call, examples with weights
//! of their own become groups.

use keyfold_core::Result;
use keyfold_layers::vmap::{Batch, BatchedOperand, move_dim, wrap};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::arguments::{ACTIVATION, Settings, wanted};
use super::derivatives::three;
use crate::activation;
use crate::aten::{self, Aten};

/// Merges two neighbouring dimensions.
fn merge(x: &Tensor, first: usize) -> Result<Tensor> {
    let mut sizes = aten::sizes(x.shape());
    let second = sizes.remove(first + 1);
    sizes[first] *= second;
    aten::reshape(x, &sizes)
}

/// Divides a dimension into the examples of a batch and what each has.
fn split(x: &Tensor, dim: usize, examples: usize) -> Result<Tensor> {
    let mut sizes = aten::sizes(x.shape());
    let each = sizes[dim] / (examples as i64).max(1);
    sizes[dim] = examples as i64;
    sizes.insert(dim + 1, each);
    aten::reshape(x, &sizes)
}

/// Returns whether an example is one image without a batch, by the ranks of its input and weight; `None` for
/// invalid ranks.
fn is_single(input: &BatchedOperand, weight: &BatchedOperand) -> Option<bool> {
    let rank = weight.rank().checked_sub(2)?;
    match input.rank().checked_sub(rank)? {
        1 => Some(true),
        2 => Some(false),
        _ => None,
    }
}

/// Makes images of all examples: `[examples, images, ...]` to `[examples * images, ...]`.
fn as_images(operand: BatchedOperand, single: bool, size: usize) -> Result<Tensor> {
    let x = operand.batched(size)?;
    if single { Ok(x) } else { merge(&x, 0) }
}

/// Makes groups of all examples: `[examples, images, channels, ...]` to
/// `[images, examples * channels, ...]`.
fn as_groups(operand: BatchedOperand, single: bool, size: usize) -> Result<Tensor> {
    let x = operand.batched(size)?;
    if single { merge(&x, 0) } else { merge(&move_dim(&x, 0, 1)?, 1) }
}

/// The settings of a call with a group for each group of each example; `None` where they are too many.
fn with_groups(settings: &Settings, size: usize) -> Option<Settings> {
    let groups = settings.groups.checked_mul(size as i64)?;
    Some(Settings { groups, ..settings.clone() })
}

fn call(
    batch: &Batch<'_, '_>,
    (input, weight, bias): (&Tensor, &Tensor, Option<&Tensor>),
    settings: &Settings,
) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::convolution");
    let bias = bias.map_or(ValueRef::None, ValueRef::Tensor);
    let tensors = [input.into(), weight.into(), bias];
    let args = [&tensors[..], &settings.values()].concat();
    batch.call_other(OP.operator()?, &args)?.into_tensor()
}

pub(super) fn convolution(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let found = examples(batch, &Settings::of_call(batch.args)?)?;
    found.map(|(result, dim)| batch.wrap(Value::Tensor(result), dim)).transpose()
}

/// The activation follows as an operator of its own.
pub(super) fn convolution_activation(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let settings = Settings::of_activated(batch.args)?;
    let Some((mut result, dim)) = examples(batch, &settings)? else { return Ok(None) };
    if let Some(operator) = activation::operator(activation::named(batch.args[ACTIVATION])) {
        result = batch.call_other(operator.operator()?, &[(&result).into()])?.into_tensor()?;
    }
    batch.wrap(Value::Tensor(result), dim).map(Some)
}

/// The convolutions of all examples, and their dimension; `None` for invalid arguments.
fn examples(batch: &Batch<'_, '_>, settings: &Settings) -> Result<Option<(Tensor, usize)>> {
    let (input, weight) = (batch.operand(0)?, batch.operand(1)?);
    let bias = match batch.args[2] {
        ValueRef::None => None,
        _ => Some(batch.operand(2)?),
    };
    let (Some(single), Some(groups)) =
        (is_single(&input, &weight), with_groups(settings, batch.size))
    else {
        return Ok(None);
    };
    let rank = weight.rank() - 2;
    if weight.dim.is_some() {
        let input = as_groups(input, single, batch.size)?;
        let weight = merge(&weight.batched(batch.size)?, 0)?;
        let bias = match bias {
            Some(bias) => Some(merge(&bias.batched(batch.size)?, 0)?),
            None => None,
        };
        let result = call(batch, (&input, &weight, bias.as_ref()), &groups)?;
        let dim = usize::from(!single);
        return Ok(Some((split(&result, dim, batch.size)?, dim)));
    }
    // Each example's own bias is added afterwards.
    let (shared, own) = match bias {
        Some(bias) if bias.dim.is_some() => (None, Some(bias.in_front()?.tensor)),
        Some(bias) => (Some(bias.tensor), None),
        None => (None, None),
    };
    let mut result = match input.dim {
        None => call(batch, (&input.tensor, &weight.tensor, shared.as_ref()), settings)?,
        Some(_) => {
            let input = as_images(input, single, batch.size)?;
            let all = call(batch, (&input, &weight.tensor, shared.as_ref()), settings)?;
            if single { all } else { split(&all, 0, batch.size)? }
        }
    };
    if let Some(bias) = own {
        let mut sizes = vec![1; 2 + usize::from(!single) + rank];
        (sizes[0], sizes[1 + usize::from(!single)]) =
            (bias.shape()[0] as i64, bias.shape()[1] as i64);
        result = aten::add(&result, &aten::reshape(&bias, &sizes)?)?;
    }
    Ok(Some((result, 0)))
}

pub(super) fn convolution_backward(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let settings = Settings::of_backward(batch.args)?;
    let wanted = wanted(batch.args)?;
    let [gradient, input, weight] = [batch.operand(0)?, batch.operand(1)?, batch.operand(2)?];
    let (Some(single), Some(groups)) =
        (is_single(&input, &weight), with_groups(&settings, batch.size))
    else {
        return Ok(None);
    };
    if gradient.rank() != input.rank() {
        return Ok(None);
    }
    let size = batch.size;
    // Only the gradient of the input is that of each image by itself.
    let by_images = weight.dim.is_none() && !wanted[1] && !wanted[2];
    let (gradient, input, weight, settings) = match by_images {
        true => {
            let images = |x| as_images(x, single, size);
            (images(gradient)?, images(input)?, weight.tensor, settings)
        }
        false => {
            let of_groups = |x| as_groups(x, single, size);
            let weight = merge(&weight.batched(size)?, 0)?;
            (of_groups(gradient)?, of_groups(input)?, weight, groups)
        }
    };
    let tensors = [(&gradient).into(), (&input).into(), (&weight).into(), ValueRef::None];
    let mask = wanted.map(ValueRef::Bool);
    let args = [&tensors[..], &settings.values(), &[ValueRef::Refs(&mask)]].concat();
    let grads = three(batch.call(&args)?)?;
    let of_input = if by_images || single { 0 } else { 1 };
    let dims = [of_input, 0, 0];
    let mut results = Vec::with_capacity(3);
    for (grad, dim) in grads.into_iter().zip(dims) {
        results.push(match grad {
            None => Value::None,
            Some(grad) if by_images && single => Value::Tensor(wrap(grad, 0, batch.level)?),
            Some(grad) => Value::Tensor(wrap(split(&grad, dim, size)?, dim, batch.level)?),
        });
    }
    Ok(Some(Value::Tuple(results)))
}
