//! Interpolation, one dimension of space after the other.

use keyfold_core::{DType, Result, Scalar};
use keyfold_tensor::Tensor;

use super::calls::sizes;
use super::node::Node;
use crate::{PaddingMode, Resample, ResampleMode};

/// Returns `a`, `b`, `d` and the size: output `o` reads at `(o a - b) / d`. The validator has
/// proven that none of the products overflows.
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

/// Adds each element of `dy` to the neighbours that its output was interpolated from, along one
/// dimension of space after the other. Elements that no output reads stay 0, also where `dy` holds
/// infinities: a product with a matrix of weights would compute `inf * 0` there.
pub(super) fn backward(
    node: &Node<'_>,
    attributes: &Resample,
    dy: &Tensor,
    dims: &[i64],
) -> Result<Tensor> {
    let calls = node.calls();
    // Sums of halves are accumulated in float32.
    let wide = if node.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (rank, mut dx) = (dy.ndim(), calls.to(dy, wide)?);
    let z = calls.full(&[1], 0.0, DType::I64)?;
    for (axis, &size) in dims.iter().enumerate().skip(2) {
        let (outputs, from_last) = (dx.shape()[axis] as i64, rank - 1 - axis);
        let numbers = numbers(attributes, axis - 2, size);
        let mut shape = sizes(&dx);
        shape[axis] = size;
        let mut sum = calls.full(&shape, 0.0, wide)?;
        // The neighbours as expressions of the place: index, whether it is read, and its weight.
        let neighbours: &[(&str, &str, &str)] = match attributes.mode {
            ResampleMode::Nearest => &[("((2 * p + d) // (2 * d))", "", "g")],
            _ => &[
                ("(p // d)", "", "g * (1.0 - (p % d) / d)"),
                ("(p // d + 1)", "p % d != 0", "g * ((p % d) / d)"),
            ],
        };
        for (neighbour, is_read, weighted) in neighbours {
            let is_inside = match attributes.padding_mode {
                PaddingMode::EdgeValue => String::new(),
                _ => format!("{neighbour} >= 0 and {neighbour} < n"),
            };
            let conditions = [*is_read, &is_inside].map(|text| (!text.is_empty()).then_some(text));
            let condition = conditions.into_iter().flatten().collect::<Vec<_>>().join(" and ");
            let value = match condition.as_str() {
                "" => (*weighted).to_string(),
                condition => format!("where({condition}, {weighted}, 0.0)"),
            };
            let is_constant = !value.contains('p');
            let place = format!("p = index({from_last}) * a - b; ");
            let place = if is_constant { "" } else { &place };
            let text = format!("g; a, b, d, n: {place}{value}");
            let part = calls.to(&calls.map(&text, &[&dx], &numbers)?, wide)?;
            let text =
                format!("z[1]; a, b, d, n: p = index(0) * a - b; clamp({neighbour}, 0, n - 1)");
            let index = calls.to(&calls.shaped(&text, &[&z], &numbers, &[outputs])?, DType::I64)?;
            let axis = axis as i64;
            let args = [(&sum).into(), axis.into(), (&index).into(), (&part).into()];
            sum = calls.one("aten::index_add", &args)?;
        }
        dx = sum;
    }
    Ok(dx)
}
