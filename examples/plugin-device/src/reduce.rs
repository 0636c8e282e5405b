//! Reductions: one element of the output for each lane of the input.

use keyfold_plugin::{DType, Number, Result};

use crate::memory::View;

pub fn has(name: &str, dtypes: &[DType]) -> bool {
    match name {
        "sum" | "mean" | "all" | "any" | "has_inf_nan" => true,
        "max" | "min" | "argmax" | "argmin" => !dtypes.iter().any(|dtype| dtype.is_complex()),
        _ => false,
    }
}

pub fn run(name: &str, x: &View, dims: u64, out: &View) -> Result<()> {
    out.set(x.lanes(dims).iter().map(|lane| reduce(name, lane)));
    Ok(())
}

fn reduce(name: &str, lane: &[Number]) -> Number {
    match name {
        "sum" => sum(lane.iter().copied()),
        "mean" => sum(lane.iter().copied()) * Number::Float(1.0 / lane.len() as f64),
        "max" => lane[best(lane, greater)],
        "min" => lane[best(lane, |a, b| greater(b, a))],
        "argmax" => Number::Int(best(lane, greater) as i128),
        "argmin" => Number::Int(best(lane, |a, b| greater(b, a)) as i128),
        "has_inf_nan" => lane.iter().any(|number| !is_finite(*number)).into(),
        "all" => lane.iter().all(|number| number.is_true()).into(),
        _ => lane.iter().any(|number| number.is_true()).into(),
    }
}

/// Returns the sum in the widest dtype, which the output rounds once.
pub fn sum(numbers: impl Iterator<Item = Number>) -> Number {
    numbers.fold(Number::Int(0), |sum, number| sum + number)
}

fn is_finite(number: Number) -> bool {
    match number {
        Number::Complex(re, im) => re.is_finite() && im.is_finite(),
        number => number.real().is_finite(),
    }
}

fn greater(a: Number, b: Number) -> bool {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => a > b,
        _ => a.real() > b.real(),
    }
}

/// Returns the position of the first element that none is better than, or of the first NaN.
fn best(lane: &[Number], better: impl Fn(Number, Number) -> bool) -> usize {
    if let Some(nan) = lane.iter().position(|number| number.real().is_nan()) {
        return nan;
    }
    (1..lane.len()).fold(0, |best, at| if better(lane[at], lane[best]) { at } else { best })
}
