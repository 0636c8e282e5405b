//! Softmax and its logarithm, along one dimension.

use keyfold_plugin::{DType, Number, Result};

use crate::memory::View;

pub fn has(name: &str, dtypes: &[DType]) -> bool {
    matches!(name, "softmax" | "log_softmax") && !dtypes.iter().any(|dtype| dtype.is_complex())
}

pub fn run(name: &str, x: &View, axis: usize, out: &View) -> Result<()> {
    let lanes = x.lanes(1 << axis).into_iter().flat_map(|lane| {
        let most = lane.iter().map(|number| number.real()).fold(f64::NEG_INFINITY, f64::max);
        let exponents: Vec<f64> = lane.iter().map(|number| number.real() - most).collect();
        let total: f64 = exponents.iter().map(|e| e.exp()).sum();
        let of = |e: f64| if name == "softmax" { e.exp() / total } else { e - total.ln() };
        exponents.into_iter().map(of).map(Number::Float).collect::<Vec<_>>()
    });
    out.set_lanes(1 << axis, lanes);
    Ok(())
}
