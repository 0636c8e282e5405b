//! Cumulative sums and products.

use keyfold_core::{Complex, DType, DTypeKind};

use super::reduce::{Sum, sum_dtype};
use super::{Expected, Given, accumulator, sum_error};
use crate::array::Array;
use crate::number::{Number, unit, wrap};

/// Returns the results for a lane's elements as a dtype, each with its error.
type OfLane = fn(&[Number], DType) -> Vec<(Number, f64)>;

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Expected> {
    let along: OfLane = match name {
        "aten::cumsum" => sums,
        "aten::cumprod" => products,
        _ => return None,
    };
    let x = given.array(0);
    let dtype = given.dtype(2).unwrap_or(sum_dtype(x.dtype));
    Some(cumulative(x, given.dim(1, x.shape.len()), dtype, along))
}

/// Returns the results of a function of the elements of each lane, with their errors.
fn cumulative(x: &Array, dim: usize, dtype: DType, along: OfLane) -> Expected {
    let mut expected = Expected::empty(dtype, &x.shape);
    expected.array.items = vec![Number::Whole(0); x.items.len()];
    expected.errors = vec![0.0; x.items.len()];
    let (size, inner) = (x.shape[dim], x.shape[dim + 1..].iter().product::<usize>());
    for lane in 0..x.items.len().checked_div(size).unwrap_or(0) {
        let place = |i: usize| lane / inner * size * inner + lane % inner + i * inner;
        let items: Vec<Number> = (0..size).map(|i| x.items[place(i)].cast(dtype)).collect();
        for (i, (item, error)) in along(&items, dtype).into_iter().enumerate() {
            expected.array.items[place(i)] = item;
            expected.errors[place(i)] = if error.is_finite() { error } else { 0.0 };
        }
    }
    expected
}

fn sums(items: &[Number], dtype: DType) -> Vec<(Number, f64)> {
    let (mut whole, mut re, mut im, mut sizes) = (0_i128, Sum::default(), Sum::default(), 0.0);
    let mut count = 0;
    let add = |item: &Number| {
        if let Number::Whole(w) = item {
            whole += w;
        }
        re.add(item.complex().re);
        im.add(item.complex().im);
        sizes += item.magnitude();
        count += 1;
        // The first one is converted only.
        let error = if count == 1 { 0.0 } else { sum_error(count, dtype) * sizes };
        match dtype.kind() {
            DTypeKind::Float => (Number::Float(re.total()), error),
            DTypeKind::Complex => (Number::Complex(Complex::new(re.total(), im.total())), error),
            _ => (wrap(whole, dtype), 0.0),
        }
    };
    items.iter().map(add).collect()
}

/// Each multiplication has a relative error of one unit, of complex numbers of four.
fn products(items: &[Number], dtype: DType) -> Vec<(Number, f64)> {
    let mut all: Option<Number> = None;
    let u = unit(accumulator(dtype)) * if dtype.is_complex() { 4.0 } else { 1.0 };
    let multiply = |(at, item): (usize, &Number)| {
        let product = match (all, *item) {
            (None, first) => first,
            (Some(Number::Whole(a)), Number::Whole(b)) => wrap(a.wrapping_mul(b), dtype),
            (Some(Number::Float(a)), Number::Float(b)) => Number::Float(a * b),
            (Some(a), b) => Number::Complex(a.complex() * b.complex()),
        };
        all = Some(product);
        (product, u * at as f64 * product.magnitude())
    };
    items.iter().enumerate().map(multiply).collect()
}
