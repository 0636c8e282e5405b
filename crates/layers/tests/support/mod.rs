//! Helpers of the tests of derivatives: test data and finite differences.

#![allow(dead_code, reason = "each test file uses a part of it")]

use keyfold::dispatcher;
use keyfold::ops::{Row, aten, rows};
use keyfold_core::{DType, Result};
use keyfold_layers::autograd::{self, Options};
use keyfold_tensor::{Tensor, ValueRef};

/// The functions of one tensor that are differentiable for positive numbers only, or infinite at 0.
pub(crate) const POSITIVE_ONLY: [&str; 5] =
    ["aten::log", "aten::log1p", "aten::sqrt", "aten::rsqrt", "aten::reciprocal"];

/// The rows of operators that are an expression of one tensor: each is called in the same way.
pub(crate) fn unary_rows() -> impl Iterator<Item = &'static Row> {
    rows().iter().filter(|row| row.expression().is_some() && row.schema().arguments.len() == 1)
}

/// Calls an operator by its name.
pub(crate) fn call(name: &str, args: &[ValueRef<'_>]) -> Result<Tensor> {
    dispatcher().call(name, args)?.into_tensor()
}

/// Makes distinct numbers between `low` and `high` that every float dtype holds exactly: multiples of 1/32,
/// shifted by 1/64 for odd seeds, so that tensors of an even and an odd seed have no number in common.
pub(crate) fn data(shape: &[usize], seed: usize, low: f64, high: f64) -> Tensor {
    keyfold::init();
    let count: usize = shape.iter().product();
    let item = |i: usize| {
        let place = (i * 7 + seed * 3 + 1) % count;
        let exact = low + (high - low) * (place as f64 + 0.5) / count as f64;
        (exact * 32.0).floor() / 32.0 + (seed % 2) as f64 / 64.0
    };
    Tensor::from_vec((0..count).map(item).collect::<Vec<f64>>(), shape).unwrap()
}

/// A function of differentiated tensors and of constant ones.
pub(crate) type Function = dyn Fn(&[Tensor], &[Tensor]) -> Result<Tensor>;

/// Returns a leaf with the same elements.
pub(crate) fn leaf(x: &Tensor) -> Tensor {
    keyfold::init();
    let leaf = x.detach();
    autograd::set_requires_grad(&leaf, true).unwrap();
    leaf
}

/// Returns the same elements with column-major and negative strides.
pub(crate) fn strided(x: &Tensor) -> Tensor {
    let dims: Vec<i64> = (0..x.ndim() as i64).collect();
    let reversed: Vec<i64> = dims.iter().rev().copied().collect();
    let other = x.permute(&reversed).unwrap().flip(&dims).unwrap().copy().unwrap();
    other.flip(&dims).unwrap().permute(&reversed).unwrap()
}

/// Converts to float64.
pub(crate) fn numbers(x: &Tensor) -> Vec<f64> {
    aten::to(x, DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// Sums the elements with distinct weights, so that errors don't cancel.
pub(crate) fn weighted(x: &Tensor) -> Result<Tensor> {
    let count = x.numel();
    let weights: Vec<f64> = (0..count).map(|i| 0.5 + (i * 5 % 7) as f64 / 4.0).collect();
    let weights = aten::to(&Tensor::from_vec(weights, x.shape())?, x.dtype())?;
    aten::sum_all(&aten::mul(x, &weights)?)
}

/// Computes the gradients of a weighted sum of the function's result.
pub(crate) fn gradients(
    f: &Function,
    inputs: &[Tensor],
    constants: &[Tensor],
    create_graph: bool,
) -> Result<Vec<Tensor>> {
    let loss = weighted(&f(inputs, constants)?)?;
    gradients_of(&loss, inputs, create_graph)
}

/// Computes the gradients of a number; zeros for a tensor that it doesn't depend on.
pub(crate) fn gradients_of(
    loss: &Tensor,
    inputs: &[Tensor],
    create_graph: bool,
) -> Result<Vec<Tensor>> {
    if !loss.requires_grad() {
        return inputs.iter().map(aten::zeros_like).collect();
    }
    let options = Options { create_graph, retain_graph: create_graph };
    let loss = std::slice::from_ref(loss);
    let grads = autograd::grad(loss, inputs, &[], options, &|| Ok(()))?;
    inputs
        .iter()
        .zip(grads)
        .map(|(input, grad)| grad.map_or_else(|| aten::zeros_like(input), Ok))
        .collect()
}

/// Computes a number that depends on all gradients.
pub(crate) fn combined(grads: &[Tensor]) -> Result<Tensor> {
    let mut total = Tensor::from_vec(vec![0.0_f64], &[])?;
    for grad in grads {
        total = aten::add(&total, &weighted(grad)?)?;
    }
    Ok(total)
}

/// Computes the gradients of a number with respect to float64 tensors by central differences.
pub(crate) fn differences(
    inputs: &[Tensor],
    value: impl Fn(&[Tensor]) -> Result<f64>,
) -> Result<Vec<Vec<f64>>> {
    const STEP: f64 = 1e-5;
    let mut all = Vec::new();
    for i in 0..inputs.len() {
        let items = inputs[i].to_vec::<f64>()?;
        let mut grads = Vec::new();
        for k in 0..items.len() {
            let moved = |by: f64| -> Result<f64> {
                let mut items = items.clone();
                items[k] += by;
                let mut moved: Vec<Tensor> = inputs.to_vec();
                moved[i] = Tensor::from_vec(items, inputs[i].shape())?;
                value(&moved)
            };
            grads.push((moved(STEP)? - moved(-STEP)?) / (2.0 * STEP));
        }
        all.push(grads);
    }
    Ok(all)
}

/// Asserts that gradients are close to the expected ones and have the inputs' shapes and dtypes.
#[track_caller]
pub(crate) fn same(
    what: &str,
    inputs: &[Tensor],
    grads: &[Tensor],
    expected: &[Vec<f64>],
    tolerance: f64,
) {
    for (i, ((input, grad), expected)) in inputs.iter().zip(grads).zip(expected).enumerate() {
        assert_eq!(grad.shape(), input.shape(), "{what}: shape of gradient {i}");
        assert_eq!(grad.dtype(), input.dtype(), "{what}: dtype of gradient {i}");
        assert_eq!(grad.device(), input.device(), "{what}: device of gradient {i}");
        for (k, (given, wanted)) in numbers(grad).iter().zip(expected).enumerate() {
            let close = (given - wanted).abs() <= tolerance * wanted.abs().max(1.0);
            assert!(close, "{what}: gradient {i}, element {k}: {given}, by differences {wanted}");
        }
    }
}

/// Asserts that first and second derivatives agree with finite differences, for contiguous and for strided
/// operands.
#[track_caller]
pub(crate) fn check(what: &str, f: &Function, inputs: &[Tensor], constants: &[Tensor]) {
    let first = differences(inputs, |moved| {
        weighted(&f(moved, constants)?)?.item().map(|number| number.as_f64())
    })
    .unwrap_or_else(|error| panic!("{what}: {error}"));
    let second = differences(inputs, |moved| {
        let leaves: Vec<Tensor> = moved.iter().map(leaf).collect();
        let grads = gradients(f, &leaves, constants, false)?;
        combined(&grads)?.item().map(|number| number.as_f64())
    })
    .unwrap_or_else(|error| panic!("{what}: {error}"));
    let layouts: [fn(&Tensor) -> Tensor; 2] = [Tensor::detach, strided];
    for layout in layouts {
        let leaves: Vec<Tensor> = inputs.iter().map(|x| leaf(&layout(x))).collect();
        let run = || -> Result<(Vec<Tensor>, Vec<Tensor>)> {
            let grads = gradients(f, &leaves, constants, true)?;
            let twice = gradients_of(&combined(&grads)?, &leaves, false)?;
            Ok((grads, twice))
        };
        let (once, twice) = run().unwrap_or_else(|error| panic!("{what}: {error}"));
        same(what, &leaves, &once, &first, 1e-7);
        same(&format!("second of {what}"), &leaves, &twice, &second, 1e-6);
    }
}
