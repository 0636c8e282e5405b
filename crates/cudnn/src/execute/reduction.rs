//! Reductions, statistics, softmax and masks.

use keyfold_core::{DType, Result};
use keyfold_tensor::{Tensor, ValueRef};

use super::calls::{Calls, sizes};
use super::node::{Node, Results};
use crate::{DiagonalBandMask, PointwiseMode, Port, Reduction, ReductionMode};

/// The magnitude of integers; that of the least one, which has none, is the greatest one.
const SATURATED_ABS: &str = "x: where(x < 0, where(-x < 0, bitwise_not(x), -x), x)";

pub(super) fn reduce(node: &Node<'_>, reduction: &Reduction) -> Result<Results> {
    let (calls, mut x) = (node.calls(), node.read(Port::X)?);
    let shape = node.output_dims(Port::Y)?;
    let mut dims = shape.to_vec();
    // Groups of heads are a dimension of their own.
    if dims.len() == 4 && dims[1] != 1 && dims[1] != x.shape()[1] as i64 {
        let mut split = sizes(&x);
        split.splice(1..2, [dims[1], x.shape()[1] as i64 / dims[1]]);
        x = calls.reshape(&x, &split)?;
        dims.insert(2, 1);
    }
    let axes: Vec<i64> = (0..dims.len())
        .filter(|&axis| dims[axis] == 1 && x.shape()[axis] != 1)
        .map(|axis| axis as i64)
        .collect();
    // Integers are reduced in 64 bits, and squares of them in float64, so that none overflows but a
    // sum or a product of int64.
    let whole = !x.dtype().is_floating();
    let x = if whole { calls.to(&x, DType::I64)? } else { x };
    let map = |text: &str| calls.map(text, &[&x], &[]);
    let magnitudes = || map(if whole { SATURATED_ABS } else { "x: abs(x)" });
    let y = match reduction.mode {
        ReductionMode::Add => calls.reduce("sum", &x, &axes),
        ReductionMode::Avg if whole => calls.reduce("mean", &calls.to(&x, DType::F64)?, &axes),
        ReductionMode::Avg => calls.reduce("mean", &x, &axes),
        ReductionMode::Min => calls.reduce("amin", &x, &axes),
        ReductionMode::Max => calls.reduce("amax", &x, &axes),
        ReductionMode::Amax => calls.reduce("amax", &magnitudes()?, &axes),
        ReductionMode::Norm1 => calls.reduce("sum", &magnitudes()?, &axes),
        ReductionMode::Norm2 => {
            let wide = if whole { calls.to(&x, DType::F64)? } else { x.clone() };
            let squares = calls.map("x: x * x", &[&wide], &[])?;
            calls.map("x: sqrt(x)", &[&calls.reduce("sum", &squares, &axes)?], &[])
        }
        ReductionMode::Mul => product(calls, &x, &axes, &dims),
        ReductionMode::MulNoZeros => product(calls, &map("x: where(x == 0, 1, x)")?, &axes, &dims),
    }?;
    let y = if dims.len() == shape.len() { y } else { calls.reshape(&y, shape)? };
    Ok(vec![(Port::Y, y)])
}

/// Multiplies elements: the last of their running products.
fn product(calls: &Calls, x: &Tensor, axes: &[i64], dims: &[i64]) -> Result<Tensor> {
    if axes.is_empty() {
        return Ok(x.clone());
    }
    let kept = (0..x.ndim() as i64).filter(|axis| !axes.contains(axis));
    let order: Vec<i64> = kept.chain(axes.iter().copied()).collect();
    let moved = calls.one("aten::permute", &[x.into(), ValueRef::Ints(&order)])?;
    let rows = calls.reshape(&moved, &[dims.iter().product(), -1])?;
    let products = calls.one("aten::cumprod", &[(&rows).into(), 1_i64.into()])?;
    calls.reshape(&products.select(1, -1)?, dims)
}

pub(super) fn gen_stats(node: &Node<'_>) -> Result<Results> {
    let (calls, x) = (node.calls(), node.read(Port::X)?);
    let dims = node.output_dims(Port::Sum)?;
    let squares = calls.map("x: x * x", &[&x], &[])?;
    Ok(vec![(Port::Sum, calls.sum_to(&x, dims)?), (Port::SqSum, calls.sum_to(&squares, dims)?)])
}

pub(super) fn softmax(node: &Node<'_>) -> Result<Results> {
    let (calls, x) = (node.calls(), node.read(Port::X)?);
    let y = calls.one("aten::softmax", &[(&x).into(), (-1_i64).into()])?;
    let mut results = vec![(Port::Y, y)];
    if node.wants(Port::Stats) {
        results.push((Port::Stats, log_sum_exp(calls, &x)?));
    }
    Ok(results)
}

/// Returns the logarithms of the sums of exponentials along the last dimension; -inf where all is
/// -inf.
pub(super) fn log_sum_exp(calls: &Calls, x: &Tensor) -> Result<Tensor> {
    let last = [x.ndim() as i64 - 1];
    let most = calls.reduce("amax", x, &last)?;
    let shift = calls.map("m: where(abs(m) == inf, 0.0, m)", &[&most], &[])?;
    let powers = calls.map("x, m: exp(x - m)", &[x, &shift], &[])?;
    let sums = calls.reduce("sum", &powers, &last)?;
    calls.map("s, m: log(s) + m", &[&sums, &shift], &[])
}

pub(super) fn band_mask(node: &Node<'_>, mask: &DiagonalBandMask) -> Result<Results> {
    let (calls, x, b) = (node.calls(), node.read(Port::X)?, node.read(Port::B)?);
    let sign = match mask.comparison {
        PointwiseMode::CmpEq => "==",
        PointwiseMode::CmpNeq => "!=",
        PointwiseMode::CmpGt => ">",
        PointwiseMode::CmpGe => ">=",
        PointwiseMode::CmpLt => "<",
        _ => "<=",
    };
    let b = calls.reshape(&b, &vec![1; sizes(&x).len()])?;
    let text = format!("x, b: where(index(1) {sign} index(0), x, b)");
    Ok(vec![(Port::Y, calls.map(&text, &[&x, &b], &[])?)])
}
