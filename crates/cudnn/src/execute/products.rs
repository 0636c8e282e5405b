//! Matrix products.

use keyfold_core::{DType, Result, Scalar};
use keyfold_tensor::{Tensor, ValueRef};

use super::attention::repeated;
use super::node::{Node, Results};
use crate::Port;

pub(super) fn matmul(node: &Node<'_>) -> Result<Results> {
    let (calls, dtype) = (node.calls(), node.dtype);
    let (mut a, mut b) = (node.read(Port::A)?, node.read(Port::B)?);
    let number = |port: Port| node.find_as(port, DType::I64);
    if a.ndim() == 4 && (2..a.shape()[1]).contains(&b.shape()[1]) {
        b = repeated(calls, &b, a.shape()[1])?;
    }
    // Columns of `a` and rows of `b` beyond `k` may hold anything, NaN included.
    if let Some(k) = number(Port::KOverride)? {
        a = calls.map("x, n: where(index(0) < n, x, 0)", &[&a, &k], &[])?;
        b = calls.map("x, n: where(index(1) < n, x, 0)", &[&b, &k], &[])?;
    }
    let (m, n) = (number(Port::MOverride)?, number(Port::NOverride)?);
    if m.is_none() && n.is_none() {
        let target = node.target(Port::C, dtype);
        let c = calls.into("aten::matmul.out", &[(&a).into(), (&b).into()], target)?;
        return Ok(node.done(Port::C, c, dtype));
    }
    let mut c = calls.matmul(&a, &b)?;
    for (limit, axis) in [(m, 1), (n, 0)] {
        if let Some(limit) = limit {
            let text = format!("x, n: where(index({axis}) < n, x, 0)");
            c = calls.map(&text, &[&c, &limit], &[])?;
        }
    }
    Ok(vec![(Port::C, c)])
}

/// Computes a product with a bias and an activation, of which `last` writes the result.
pub(super) fn fused(
    node: &Node<'_>,
    bias: Option<&Tensor>,
    activation: &str,
    (last, port): (&Node<'_>, Port),
) -> Result<Results> {
    let calls = node.calls();
    let (a, b) = (node.read(Port::A)?, node.read(Port::B)?);
    let matrix = calls.reshape(&b, &[b.shape()[b.ndim() - 2] as i64, -1])?.transpose(0, 1)?;
    let bias = bias.map(|bias| calls.reshape(bias, &[-1])).transpose()?;
    let bias = bias.as_ref().map_or(ValueRef::None, ValueRef::Tensor);
    let args = [(&a).into(), (&matrix).into(), bias, activation.into()];
    let target = last.target(port, node.dtype);
    let result = calls.into("keyfold::linear_activation.out", &args, target)?;
    Ok(last.done(port, result, node.dtype))
}

/// Multiplies rows with the matrix of their group: each matrix's product replaces the rows from its
/// first one.
pub(super) fn grouped(node: &Node<'_>) -> Result<Results> {
    let calls = node.calls();
    let (token, weight) = (node.read(Port::Token)?, node.read(Port::Weight)?);
    let first = node.read_as(Port::FirstTokenOffset, DType::I64)?;
    let rows = calls.reshape(&token, &[token.shape()[1] as i64, -1])?;
    let shape = node.output_dims(Port::Y)?;
    let mut y = calls.full(&shape[1..], 0.0, node.dtype)?;
    for expert in 0..weight.shape()[0] as i64 {
        let product = calls.matmul(&rows, &weight.select(0, expert)?)?;
        let begins = first.select(0, expert)?;
        let text = "p, y, f: where(index(1) >= f, p, y)";
        y = calls.map(text, &[&product, &y, &begins], &[] as &[Scalar])?;
    }
    Ok(vec![(Port::Y, y)])
}
