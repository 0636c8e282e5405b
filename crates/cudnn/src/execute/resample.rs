//! Interpolation, one dimension of space after the other.

use keyfold_core::{Result, Scalar};
use keyfold_tensor::Tensor;

use super::calls::sizes;
use super::node::Node;
use crate::{PaddingMode, Resample, ResampleMode};

/// The place that an element of the output reads: `(o a - b) / d`, of whole numbers.
fn numbers(attributes: &Resample, axis: usize, size: i64) -> [Scalar; 4] {
    let (stride, pre) = (attributes.stride[axis], attributes.pre_padding[axis]);
    [
        stride.numerator * pre.denominator,
        pre.numerator * stride.denominator,
        stride.denominator * pre.denominator,
        size,
    ]
    .map(Scalar::Int)
}

/// Returns how much of each of two neighbours is read at `place`: lines that define `low`, `q` and
/// `f`.
fn lines(attributes: &Resample, place: &str) -> String {
    match attributes.mode {
        ResampleMode::Nearest => {
            format!("q = (2 * ({place} * a - b) + d) // (2 * d); f = 0 * q; ")
        }
        _ => format!("p = {place} * a - b; q = p // d; f = p % d; "),
    }
}

pub(super) fn forward(node: &Node<'_>, attributes: &Resample, x: &Tensor) -> Result<Tensor> {
    let rank = x.ndim();
    let mut y = x.clone();
    let dims = node.output_dims(crate::Port::Y)?;
    for axis in 2..rank {
        let size = x.shape()[axis] as i64;
        let from_last = rank - 1 - axis;
        let read = |place: &str| {
            let index: Vec<String> = (0..rank)
                .map(|at| match at {
                    at if at == axis => format!("clamp({place}, 0, n - 1)"),
                    at => format!("index({})", rank - 1 - at),
                })
                .collect();
            format!("x[{}]", index.join(", "))
        };
        let neighbour = |place: &str| match attributes.padding_mode {
            PaddingMode::EdgeValue => read(place),
            _ => format!("where({place} >= 0 and {place} < n, {}, 0)", read(place)),
        };
        let lines = lines(attributes, &format!("index({from_last})"));
        // A neighbour without weight isn't read, so that its NaN stays there.
        let text = format!(
            "x[{rank}]; a, b, d, n: {lines}s = q + 1; lo = {}; hi = {}; w = f / d; \
             where(f == 0, lo, lo + w * (hi - lo))",
            neighbour("q"),
            neighbour("s")
        );
        let mut shape = sizes(&y);
        shape[axis] = dims[axis];
        let numbers = numbers(attributes, axis - 2, size);
        y = node.calls().to(&node.calls().shaped(&text, &[&y], &numbers, &shape)?, node.dtype)?;
    }
    Ok(y)
}

/// Multiplies each dimension of space with the transpose of what interpolates it.
pub(super) fn backward(
    node: &Node<'_>,
    attributes: &Resample,
    dy: &Tensor,
    dims: &[i64],
) -> Result<Tensor> {
    let (calls, mut dx) = (node.calls(), dy.clone());
    for (axis, &size) in dims.iter().enumerate().skip(2) {
        let rows = dy.shape()[axis] as i64;
        let lines = lines(attributes, "index(1)");
        let (low, high) = match attributes.padding_mode {
            PaddingMode::EdgeValue => ("clamp(q, 0, n - 1)", "clamp(q + 1, 0, n - 1)"),
            _ => ("q", "q + 1"),
        };
        let text = format!(
            "z[1]; a, b, d, n: {lines}w = f / d; i = index(0); \
             where(i == {low}, 1.0 - w, 0.0) + where(i == {high}, w, 0.0)"
        );
        let numbers = numbers(attributes, axis - 2, size);
        let like = calls.full(&[1], 0.0, node.dtype)?;
        let matrix =
            calls.to(&calls.shaped(&text, &[&like], &numbers, &[rows, size])?, node.dtype)?;
        let last = dy.ndim() as i64 - 1;
        let lanes = dx.transpose(axis as i64, last)?;
        dx = calls.matmul(&lanes, &matrix)?.transpose(axis as i64, last)?;
    }
    Ok(dx)
}
