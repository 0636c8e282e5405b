//! Reductions and softmax.

use keyfold_core::{Complex, DType, DTypeKind};

use super::{Expected, Given, accumulator, axis, sum_error};
use crate::array::{Array, for_each_index};
use crate::number::{Number, unit, wrap};

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Expected> {
    Some(match name {
        "aten::sum" | "aten::mean" => {
            sum(given.array(0), None, false, given.dtype(1), name == "aten::mean")
        }
        "aten::sum.dim" | "aten::mean.dim" => {
            let is_mean = name == "aten::mean.dim";
            sum(given.array(0), given.ints(1), given.flag(2), given.dtype(3), is_mean)
        }
        "aten::max" => extreme(given.array(0), None, false, false),
        "aten::min" => extreme(given.array(0), None, false, true),
        "aten::amax" => extreme(given.array(0), given.ints(1), given.flag(2), false),
        "aten::amin" => extreme(given.array(0), given.ints(1), given.flag(2), true),
        "aten::all" => truth(given.array(0), given.ints(1), given.flag(2), true),
        "aten::any" => truth(given.array(0), given.ints(1), given.flag(2), false),
        "keyfold::has_inf_nan" => {
            let mut expected = Expected::empty(DType::Bool, &[]);
            let found = given.array(0).items.iter().any(|item| !item.magnitude().is_finite());
            expected.push(Number::Whole(found.into()), 0.0);
            expected
        }
        "aten::argmax" | "aten::argmin" => {
            let dims = given.int(1).map(|dim| vec![dim]);
            place(given.array(0), dims, given.flag(2), name == "aten::argmin")
        }
        "aten::softmax" | "aten::log_softmax" => {
            let x = given.array(0);
            softmax(x, given.dim(1, x.shape.len()), name == "aten::log_softmax")
        }
        _ => return None,
    })
}

/// Returns the shape of a reduction, and for each of its elements the elements that it reduces.
fn lanes(x: &Array, dims: Option<Vec<i64>>, keepdim: bool) -> (Vec<usize>, Vec<Vec<Number>>) {
    let rank = x.shape.len();
    let reduced: Vec<bool> = match dims {
        None => vec![true; rank],
        Some(dims) => {
            let dims: Vec<usize> = dims.into_iter().map(|dim| axis(dim, rank)).collect();
            (0..rank).map(|d| dims.contains(&d)).collect()
        }
    };
    let kept: Vec<usize> = (0..rank).map(|d| if reduced[d] { 1 } else { x.shape[d] }).collect();
    let mut found = vec![Vec::new(); kept.iter().product()];
    let mut items = x.items.iter();
    for_each_index(&x.shape, |index| {
        let own = index.iter().zip(&kept).zip(&reduced);
        let at = own.fold(0, |at, ((i, size), gone)| at * size + if *gone { 0 } else { *i });
        found[at].extend(items.next().copied());
    });
    let shape = match keepdim {
        true => kept,
        false => (0..rank).filter(|d| !reduced[*d]).map(|d| x.shape[d]).collect(),
    };
    (shape, found)
}

/// A sum with compensation (A. Neumaier, 1974).
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    sum: f64,
    rest: f64,
}

impl Sum {
    pub(super) fn add(&mut self, x: f64) {
        let total = self.sum + x;
        self.rest += match self.sum.abs() >= x.abs() {
            true => (self.sum - total) + x,
            false => (x - total) + self.sum,
        };
        self.sum = total;
    }

    pub(super) fn total(self) -> f64 {
        // With an infinity the compensation is NaN.
        if self.rest.is_finite() { self.sum + self.rest } else { self.sum }
    }
}

/// Adds numbers up; returns the sum and the sum of the magnitudes.
pub(super) fn total(items: impl Iterator<Item = Number>, dtype: DType) -> (Number, f64) {
    let (mut whole, mut re, mut im) = (0_i128, Sum::default(), Sum::default());
    let mut sizes = 0.0;
    for item in items {
        match item {
            Number::Whole(w) => whole = whole.wrapping_add(w),
            other => {
                let c = other.complex();
                re.add(c.re);
                im.add(c.im);
                sizes += other.magnitude();
            }
        }
    }
    let sum = match dtype.kind() {
        DTypeKind::Float => Number::Float(re.total()),
        DTypeKind::Complex => Number::Complex(Complex::new(re.total(), im.total())),
        _ => wrap(whole, dtype),
    };
    (sum, if f64::is_finite(sizes) { sizes } else { 0.0 })
}

/// Returns the dtype of a sum of elements of a dtype.
pub(super) fn sum_dtype(from: DType) -> DType {
    match from.kind() {
        DTypeKind::Float | DTypeKind::Complex => from,
        DTypeKind::UInt => DType::U64,
        _ => DType::I64,
    }
}

fn sum(
    x: &Array,
    dims: Option<Vec<i64>>,
    keepdim: bool,
    dtype: Option<DType>,
    is_mean: bool,
) -> Expected {
    let is_whole = x.dtype.kind() < DTypeKind::Float;
    let own = if is_mean && is_whole { DType::F64 } else { sum_dtype(x.dtype) };
    let dtype = dtype.unwrap_or(own);
    let (shape, lanes) = lanes(x, dims, keepdim);
    let mut expected = Expected::empty(dtype, &shape);
    for lane in lanes {
        let (count, u) = (lane.len() as f64, sum_error(lane.len(), dtype));
        let (sum, sizes) = total(lane.into_iter().map(|item| item.cast(dtype)), dtype);
        let error = u * sizes;
        match (sum, is_mean) {
            (Number::Float(sum), true) => {
                let mean = sum / count;
                expected.push(Number::Float(mean), error / count + division_error(mean, dtype));
            }
            (Number::Complex(sum), true) => {
                let mean = sum / count;
                let error = error / count + division_error(mean.norm(), dtype);
                expected.push(Number::Complex(mean), error);
            }
            (sum, _) => expected.push(sum, error),
        }
    }
    expected
}

/// The error of a division.
fn division_error(value: f64, dtype: DType) -> f64 {
    5.0 * unit(accumulator(dtype)) * value.abs()
}

/// Returns the position of the first greatest or smallest element, or of the first NaN.
fn find(lane: &[Number], least: bool) -> usize {
    let mut best = 0;
    for (at, item) in lane.iter().enumerate() {
        if item.is_nan() {
            return at;
        }
        let better = match (item, lane[best]) {
            (Number::Whole(a), Number::Whole(b)) => {
                if least {
                    *a < b
                } else {
                    *a > b
                }
            }
            (a, b) => {
                if least {
                    a.float() < b.float()
                } else {
                    a.float() > b.float()
                }
            }
        };
        if better {
            best = at;
        }
    }
    best
}

fn extreme(x: &Array, dims: Option<Vec<i64>>, keepdim: bool, least: bool) -> Expected {
    let (shape, lanes) = lanes(x, dims, keepdim);
    let mut expected = Expected::empty(x.dtype, &shape);
    lanes.iter().for_each(|lane| expected.push(lane[find(lane, least)], 0.0));
    expected
}

fn place(x: &Array, dims: Option<Vec<i64>>, keepdim: bool, least: bool) -> Expected {
    let (shape, lanes) = lanes(x, dims, keepdim);
    let mut expected = Expected::empty(DType::I64, &shape);
    for lane in lanes {
        expected.push(Number::Whole(find(&lane, least) as i128), 0.0);
    }
    expected
}

fn truth(x: &Array, dims: Option<Vec<i64>>, keepdim: bool, all: bool) -> Expected {
    let (shape, lanes) = lanes(x, dims, keepdim);
    let mut expected = Expected::empty(DType::Bool, &shape);
    for lane in lanes {
        let mut truths = lane.into_iter().map(Number::truth);
        let holds = if all { truths.all(|truth| truth) } else { truths.any(|truth| truth) };
        expected.push(Number::Whole(holds.into()), 0.0);
    }
    expected
}

/// The exponentials' arguments are rounded, so their error grows with the distance from the
/// maximum.
fn softmax(x: &Array, dim: usize, log: bool) -> Expected {
    let dtype = if x.dtype.is_floating() { x.dtype } else { DType::F64 };
    let u = unit(accumulator(dtype));
    let size = x.shape.get(dim).copied().unwrap_or(1);
    let inner: usize = x.shape.iter().skip(dim + 1).product();
    let lanes = x.items.len().checked_div(size).unwrap_or(0);
    let mut expected = Expected::empty(dtype, &x.shape);
    expected.array.items = vec![Number::Float(0.0); x.items.len()];
    expected.errors = vec![0.0; x.items.len()];
    for lane in 0..lanes {
        let first = lane / inner * size * inner + lane % inner;
        let items = (0..size).map(|i| x.items[first + i * inner].float());
        let greater = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
        let most = items.clone().fold(f64::NEG_INFINITY, greater);
        let least = items.clone().filter(|x| x.is_finite()).fold(most, f64::min);
        let mut sum = Sum::default();
        items.clone().for_each(|x| sum.add((x - most).exp()));
        let range = if (most - least).is_finite() { most - least } else { 0.0 };
        let steps = size as f64 + 16.0 + range;
        for (i, item) in items.enumerate() {
            let from = item - most;
            let (value, error) = match log {
                false => {
                    let value = from.exp() / sum.total();
                    (value, u * steps * value.abs())
                }
                true => {
                    let value = from - sum.total().ln();
                    (value, u * (steps + from.abs() + most.abs()))
                }
            };
            expected.array.items[first + i * inner] = Number::Float(value);
            expected.errors[first + i * inner] = if error.is_finite() { error } else { 0.0 };
        }
    }
    expected
}
