//! Matrix products, with and without an addend and an activation.

use std::f64::consts::FRAC_1_SQRT_2;

use keyfold_core::{DType, DTypeKind};
use keyfold_expr::Unary;
use keyfold_tensor::Value;

use super::functions::real;
use super::reduce::total;
use super::{Expected, Given, accumulator, sum_error};
use crate::array::{Array, for_each_index};
use crate::number::{Number, unit, wrap};

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Expected> {
    Some(match name {
        "aten::matmul" | "aten::mm" | "aten::bmm" | "aten::mv" | "aten::dot" => {
            let (a, b) = (given.array(0), given.array(1));
            let dtype = a.dtype.promote(b.dtype);
            product(&a.cast(dtype), &b.cast(dtype), dtype)
        }
        "keyfold::matmul_mixed" => {
            let factors = given.dtype(2)?;
            product(&given.array(0).cast(factors), &given.array(1).cast(factors), DType::F32)
        }
        "aten::addmm" | "aten::baddbmm" => {
            let (a, b) = (given.array(1), given.array(2));
            let (beta, alpha) = (Number::of(given.scalar(3)), Number::of(given.scalar(4)));
            let product = product(a, b, a.dtype);
            combined(product, (alpha, Some((beta, given.array(0)))), "none")
        }
        "aten::linear" | "keyfold::linear_activation" => {
            let (x, weight) = (given.array(0), given.array(1));
            let columns = match weight.shape[..] {
                [outputs, inputs] => Array::from_fn(weight.dtype, &[inputs, outputs], |index| {
                    weight.at(&[index[1], index[0]])
                }),
                _ => weight.clone(),
            };
            let one = Number::Whole(1);
            let activation = match name {
                "aten::linear" => "none",
                _ => match given.value(3) {
                    Value::Str(name) => name,
                    other => unreachable!("the activation is a text, not {other:?}"),
                },
            };
            let bias = given.optional(2).map(|bias| (one, bias));
            combined(product(x, &columns, x.dtype), (one, bias), activation)
        }
        _ => return None,
    })
}

/// The product of arrays of one dtype, as numbers of a dtype of the same kind.
fn product(a: &Array, b: &Array, dtype: DType) -> Expected {
    let (a, b) = (a.clone(), b.clone());
    let (vector_a, vector_b) = (a.shape.len() == 1, b.shape.len() == 1);
    let rows = if vector_a { [&[1], &a.shape[..]].concat() } else { a.shape.clone() };
    let columns = if vector_b { [&b.shape[..], &[1]].concat() } else { b.shape.clone() };
    let (a, b) = (Array { shape: rows, ..a }, Array { shape: columns, ..b });
    let (batch_a, batch_b) = (a.shape.len() - 2, b.shape.len() - 2);
    let (m, k, n) = (a.shape[batch_a], a.shape[batch_a + 1], b.shape[batch_b + 1]);
    let batch = keyfold_core::layout::broadcast_shapes(&a.shape[..batch_a], &b.shape[..batch_b]);
    let batch = batch.map(|shape| shape.to_vec()).unwrap_or_default();
    let full = [&batch[..], &[m, n]].concat();
    let mut shape = batch.clone();
    shape.extend((!vector_a).then_some(m));
    shape.extend((!vector_b).then_some(n));
    let mut expected = Expected::empty(dtype, &shape);
    for_each_index(&full, |index| {
        let (outer, (i, j)) = (&index[..batch.len()], (index[batch.len()], index[batch.len() + 1]));
        let mut products = (0..k).map(|l| {
            let x = a.broadcast_at(&[outer, &[i, l]].concat());
            let y = b.broadcast_at(&[outer, &[l, j]].concat());
            times(x, y)
        });
        let (sum, sizes) = match dtype == DType::Bool {
            true => (Number::Whole(products.any(Number::truth).into()), 0.0),
            false => total(products, dtype),
        };
        // Complex products are two each.
        let count = if dtype.is_complex() { 4 * k } else { k + 1 };
        expected.push(sum, sum_error(count, dtype) * sizes);
    });
    expected
}

fn times(x: Number, y: Number) -> Number {
    match (x, y) {
        (Number::Whole(x), Number::Whole(y)) => Number::Whole(x.wrapping_mul(y)),
        (Number::Complex(_), _) | (_, Number::Complex(_)) => {
            Number::Complex(x.complex() * y.complex())
        }
        (x, y) => Number::Float(x.float() * y.float()),
    }
}

/// A product times a number, plus an addend that broadcasts times a number, with an activation.
fn combined(
    product: Expected,
    (alpha, addend): (Number, Option<(Number, &Array)>),
    activation: &str,
) -> Expected {
    let (dtype, shape) = (product.array.dtype, product.array.shape.clone());
    let mut expected = Expected::empty(dtype, &shape);
    let mut products = product.array.items.into_iter().zip(product.errors);
    // Each of the two products and the sum is rounded once; a complex product has four parts.
    let roundings = if dtype.is_complex() { 8.0 } else { 2.0 };
    for_each_index(&shape, |index| {
        let Some((product, error)) = products.next() else { return };
        let own = addend.map(|(beta, addend)| (beta, addend.broadcast_at(index)));
        if dtype.kind() < DTypeKind::Float {
            expected.push(whole(dtype, alpha, product, own), 0.0);
            return;
        }
        let scaled = times(alpha, product);
        let added = own.map_or(Number::Float(0.0), |(beta, addend)| times(beta, addend));
        let sum = match dtype.is_complex() {
            true => Number::Complex(scaled.complex() + added.complex()),
            false => Number::Float(scaled.float() + added.float()),
        };
        let sizes = scaled.magnitude() + added.magnitude() + sum.magnitude();
        let unit = unit(accumulator(dtype));
        let error = alpha.magnitude() * error + roundings * unit * sizes;
        if activation == "none" {
            expected.push(sum, error);
            return;
        }
        // No slope is above 1.13, and each function has an error of a few units.
        let result = activated(activation, sum.float());
        expected.push(Number::Float(result), 1.2 * error + 16.0 * unit * result.abs());
    });
    expected
}

/// A sum of integers, which wraps, or of bools, where a factor counts as true unless it is 0.
fn whole(dtype: DType, alpha: Number, product: Number, own: Option<(Number, Number)>) -> Number {
    if dtype == DType::Bool {
        let both = |(x, y): (Number, Number)| x.truth() && y.truth();
        return Number::Whole((both((alpha, product)) || own.is_some_and(both)).into());
    }
    let own = own.map_or(0, |(beta, addend)| times(beta, addend).whole());
    wrap(times(alpha, product).whole().wrapping_add(own), dtype)
}

pub(super) fn activated(activation: &str, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // The gates are 0 for -inf.
    let gated = |gate: f64| if gate == 0.0 { 0.0 } else { x * gate };
    match activation {
        "relu" => {
            if x <= 0.0 {
                0.0
            } else {
                x
            }
        }
        "gelu" => gated(0.5 * real(Unary::Erfc, -x * FRAC_1_SQRT_2)),
        "gelu_tanh" => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            gated(sigmoid(2.0 * inner))
        }
        "gelu_sigmoid" => gated(sigmoid(1.702 * x)),
        "sigmoid" => sigmoid(x),
        "tanh" => x.tanh(),
        other => unreachable!("no activation is called '{other}'"),
    }
}
