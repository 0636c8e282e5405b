//! Normalizations: layer norm, RMS norm, group norm, batch norm and instance norm, and the gradients of softmax.
//!
//! The operators `native_...` compute the normalized elements and the statistics that their gradients read;
//! those that Python names call them.

mod batch;
mod batch_gradients;
mod batching;
mod composites;
mod group;
mod lanes;
mod layer;
mod layer_gradients;
mod many;
mod rules;
mod softmax;

use std::sync::Arc;

use keyfold_backend::NormParams;
use keyfold_core::{DType, ErrorKind, Result};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Pushforward, Saves, TensorMeta, VjpOfSeveral};
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use crate::aten::Aten;
use crate::op::Op;
use crate::row::{Batching, Gradient, Layers, Row, Rule, Tangent};

/// The dtypes that are normalized.
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Returns the rows of the normalizations.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let families = [layer::rows, group::rows, batch::rows, composites::rows, softmax::rows];
    let rows = families.map(|family| family());
    Ok(rows.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The rules of an operator with several results.
const fn layers_of(
    reads: &'static [Saves],
    vjp: VjpOfSeveral,
    tangent: fn() -> Arc<dyn Pushforward>,
    batching: vmap::Rule,
    autocast: Category,
) -> Layers {
    Layers {
        derivative: Rule::Given(Gradient::Several(reads, vjp)),
        tangent: Rule::Given(Tangent::Other(tangent)),
        batching: Rule::Given(Batching::Rule(batching)),
        autocast,
    }
}

/// Refuses dtypes other than floats.
fn check_floating(op: &Op, name: &str, x: &Tensor) -> Result<()> {
    match x.dtype().is_floating() {
        true => Ok(()),
        false => Err(op.unsupported(name, x.dtype(), &FLOATS)),
    }
}

/// The dtype of statistics: float32 for halves.
fn statistics_dtype(dtype: DType) -> DType {
    crate::promote::computed(dtype)
}

/// Refuses a tensor of another shape, and of a dtype other than that of `input` or, beside a half, float32.
fn check_beside(
    op: &Op,
    (name, tensor): (&str, &Tensor),
    input: DType,
    (shape, what): (&[usize], &str),
) -> Result<()> {
    let dtype = tensor.dtype();
    if dtype != input && dtype != statistics_dtype(input) {
        let message = format!(
            "argument '{name}' is {dtype}, and argument 'input' is {input}; convert one of them with \
             aten::to"
        );
        return Err(op.error(ErrorKind::DType, message));
    }
    if tensor.shape()[..] != *shape {
        let message = format!(
            "argument '{name}' has shape {:?}, but {what} {shape:?}; give a tensor of that shape",
            tensor.shape()
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    Ok(())
}

/// As [`check_beside`], for an optional tensor.
fn check_optional(
    op: &Op,
    (name, tensor): (&str, Option<&Tensor>),
    input: DType,
    needed: (&[usize], &str),
) -> Result<()> {
    tensor.map_or(Ok(()), |tensor| check_beside(op, (name, tensor), input, needed))
}

/// Refuses statistics of another number of elements.
fn check_statistics(
    op: &Op,
    (name, tensor): (&str, &Tensor),
    input: DType,
    lanes: usize,
) -> Result<()> {
    if tensor.numel() != lanes {
        let message = format!(
            "argument '{name}' has shape {:?} and {} elements, but there are {lanes} lanes; give one \
             element for each",
            tensor.shape(),
            tensor.numel()
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    check_beside(op, (name, tensor), input, (tensor.shape(), ""))
}

/// Refuses a gradient of another shape or dtype than `input`.
fn check_grad(op: &Op, grad: &Tensor, input: &Tensor) -> Result<()> {
    if grad.shape() != input.shape() || grad.dtype() != input.dtype() {
        let (shape, dtype) = (grad.shape(), grad.dtype());
        let message = format!(
            "argument 'grad_out' is {dtype} of shape {shape:?}, but argument 'input' is {} of shape \
             {:?}; both have to be alike",
            input.dtype(),
            input.shape()
        );
        let kind = if grad.shape() == input.shape() { ErrorKind::DType } else { ErrorKind::Shape };
        return Err(op.error(kind, message));
    }
    Ok(())
}

/// Refuses a number that is negative, infinite or NaN.
fn check_eps(op: &Op, eps: f64) -> Result<()> {
    if eps >= 0.0 && eps.is_finite() {
        return Ok(());
    }
    let message = format!(
        "argument 'eps' is {eps}, which can't be added to a variance; give a small number that isn't \
         negative"
    );
    Err(op.error(ErrorKind::Value, message))
}

/// Refuses lanes without elements, which have no mean.
fn check_lanes(op: &Op, x: &Tensor, lanes: usize, len: usize) -> Result<()> {
    if lanes == 0 || len > 0 {
        return Ok(());
    }
    let message = format!(
        "argument 'input' has shape {:?}, whose lanes have no elements and so no mean; give one with \
         elements to normalize",
        x.shape()
    );
    Err(op.error(ErrorKind::Value, message))
}

/// Reads which gradients are wanted.
fn wanted<const N: usize>(op: &Op, mask: ValueRef<'_>) -> Result<[bool; N]> {
    let items: Vec<bool> = match mask {
        ValueRef::Bool(each) => vec![each; N],
        list => list.items().map(|item| matches!(item, ValueRef::Bool(true))).collect(),
    };
    <[bool; N]>::try_from(items).map_err(|items| {
        let message = format!("argument 'output_mask' has {} bools, not {N}", items.len());
        op.error(ErrorKind::Value, message)
    })
}

/// The bits of [`NormParams`] for the optional tensors.
fn bits(items: impl IntoIterator<Item = (bool, u32)>) -> u32 {
    items.into_iter().filter(|(there, _)| *there).fold(0, |all, (_, bit)| all | bit)
}

/// The bits of weight and bias, and of wanted gradients.
fn affine_bits(weight: Option<&Tensor>, bias: Option<&Tensor>) -> u32 {
    bits([(weight.is_some(), NormParams::WEIGHT), (bias.is_some(), NormParams::BIAS)])
}

fn wanted_bits(input: bool, weight: bool, bias: bool) -> u32 {
    bits([
        (input, NormParams::GRAD_INPUT),
        (weight, NormParams::GRAD_WEIGHT),
        (bias, NormParams::GRAD_BIAS),
    ])
}

/// Calls an operator with several results; `None` for one that isn't wanted.
fn call_several<const N: usize>(
    operator: &Aten,
    args: &[ValueRef<'_>],
) -> Result<[Option<Tensor>; N]> {
    let mut results = [const { None }; N];
    if let Value::List(items) | Value::Tuple(items) = operator.operator()?.call(args)? {
        for (result, item) in results.iter_mut().zip(items) {
            *result = match item {
                Value::None => None,
                item => Some(item.into_tensor()?),
            };
        }
    }
    Ok(results)
}

/// Makes an argument of an optional tensor.
fn optional(tensor: Option<&Tensor>) -> ValueRef<'_> {
    tensor.map_or(ValueRef::None, ValueRef::Tensor)
}

/// Puts the items of wanted results in their places.
fn spread(mask: ValueRef<'_>, items: &[Option<Tensor>]) -> [Option<Tensor>; 3] {
    let mut rest = items.iter();
    let mut results = [const { None }; 3];
    for (result, wanted) in results.iter_mut().zip(mask.items()) {
        if matches!(wanted, ValueRef::Bool(true)) {
            *result = rest.next().cloned().flatten();
        }
    }
    results
}

/// The shape, dtype and device of a tensor.
fn meta(x: &Tensor) -> TensorMeta {
    TensorMeta { device: x.device(), shape: x.shape().clone(), dtype: x.dtype() }
}

/// The inputs that are there, in order.
fn optional_inputs<const N: usize>(all: [Option<&Tensor>; N]) -> SmallVec<[&Tensor; 8]> {
    all.into_iter().flatten().collect()
}
