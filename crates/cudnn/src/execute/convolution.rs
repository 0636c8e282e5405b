//! Convolutions and their gradients.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_tensor::{Tensor, ValueRef};

use super::calls::{padded, sizes};
use super::node::{Node, Results};
use crate::{Convolution, ConvolutionMode, Port};

/// Padding as operators take it, the same before and behind, and what is left over.
struct Padding {
    both: Vec<i64>,
    pre: Vec<i64>,
    post: Vec<i64>,
}

impl Padding {
    fn of(conv: &Convolution) -> Padding {
        let pairs = || conv.pre_padding.iter().zip(&conv.post_padding);
        Padding {
            both: pairs().map(|(&pre, &post)| pre.min(post)).collect(),
            pre: pairs().map(|(&pre, &post)| (pre - post).max(0)).collect(),
            post: pairs().map(|(&pre, &post)| (post - pre).max(0)).collect(),
        }
    }
}

/// Returns the dtype that a convolution works in: operators convolve floats.
fn working(node: &Node<'_>) -> DType {
    if node.dtype.is_floating() { node.dtype } else { DType::F64 }
}

/// Returns a filter as it is read: forwards.
fn oriented(conv: &Convolution, w: &Tensor) -> Result<Tensor> {
    match conv.mode {
        ConvolutionMode::CrossCorrelation => Ok(w.clone()),
        ConvolutionMode::Convolution => {
            w.flip(&(2..w.ndim() as i64).collect::<Vec<_>>())?.contiguous()
        }
    }
}

/// Returns a result with `alpha` and `beta`.
fn blended(node: &Node<'_>, conv: &Convolution, port: Port, result: Tensor) -> Result<Results> {
    let (alpha, beta) = (conv.alpha.0, conv.beta.0);
    let calls = node.calls();
    let result = if beta != 0.0 {
        let uid = node.op.output(port).ok_or_else(|| {
            Error::new(ErrorKind::Value, format!("it has no tensor at its port {port}"))
        })?;
        let old = node.program.load(node.memory, node.program.place(uid), result.dtype())?;
        let numbers = [Scalar::Float(alpha), Scalar::Float(beta)];
        calls.map("x, o; a, b: a * x + b * o", &[&result, &old], &numbers)?
    } else if alpha != 1.0 {
        calls.map("x; a: a * x", &[&result], &[Scalar::Float(alpha)])?
    } else {
        result
    };
    Ok(vec![(port, result)])
}

pub(super) fn forward(node: &Node<'_>, conv: &Convolution) -> Result<Results> {
    let (calls, dtype, padding) = (node.calls(), working(node), Padding::of(conv));
    let (x, w) = (node.read_as(Port::X, dtype)?, node.read_as(Port::W, dtype)?);
    let groups = x.shape()[1] / w.shape()[1];
    let x = calls.pad(&x, &padding.pre, &padding.post, 0.0)?;
    let w = oriented(conv, &w)?;
    let zeros = vec![0_i64; conv.stride.len()];
    let args = [
        (&x).into(),
        (&w).into(),
        ValueRef::None,
        ValueRef::Ints(&conv.stride),
        ValueRef::Ints(&padding.both),
        ValueRef::Ints(&conv.dilation),
        false.into(),
        ValueRef::Ints(&zeros),
        (groups as i64).into(),
    ];
    if conv.alpha.0 == 1.0 && conv.beta.0 == 0.0 {
        let result = calls.into("aten::convolution.out", &args, node.target(Port::Y, dtype))?;
        return Ok(node.done(Port::Y, result, dtype));
    }
    blended(node, conv, Port::Y, calls.one("aten::convolution", &args)?)
}

/// Computes a convolution with a bias and an activation, of which `last` writes the result.
pub(super) fn fused(
    node: &Node<'_>,
    conv: &Convolution,
    bias: Option<&Tensor>,
    activation: &str,
    (last, port): (&Node<'_>, Port),
) -> Result<Results> {
    let (calls, padding) = (node.calls(), Padding::of(conv));
    let (x, w) = (node.read(Port::X)?, node.read(Port::W)?);
    let groups = x.shape()[1] / w.shape()[1];
    let x = calls.pad(&x, &padding.pre, &padding.post, 0.0)?;
    let w = oriented(conv, &w)?;
    let bias = bias.map(|bias| calls.reshape(bias, &[-1])).transpose()?;
    let args = [
        (&x).into(),
        (&w).into(),
        bias.as_ref().map_or(ValueRef::None, ValueRef::Tensor),
        ValueRef::Ints(&conv.stride),
        ValueRef::Ints(&padding.both),
        ValueRef::Ints(&conv.dilation),
        (groups as i64).into(),
        activation.into(),
    ];
    let name = "keyfold::convolution_activation.out";
    let result = calls.into(name, &args, last.target(port, node.dtype))?;
    Ok(last.done(port, result, node.dtype))
}

/// Calls the gradient of a convolution, and returns the one that is wanted: 0 is the input's, 1 the
/// filter's.
fn gradient(
    node: &Node<'_>,
    conv: &Convolution,
    (dy, x, w): (&Tensor, &Tensor, &Tensor),
    wanted: usize,
) -> Result<Tensor> {
    let padding = Padding::of(conv);
    let groups = x.shape()[1] / w.shape()[1];
    let zeros = vec![0_i64; conv.stride.len()];
    let mask = [ValueRef::Bool(wanted == 0), ValueRef::Bool(wanted == 1), ValueRef::Bool(false)];
    let args = [
        dy.into(),
        x.into(),
        w.into(),
        ValueRef::None,
        ValueRef::Ints(&conv.stride),
        ValueRef::Ints(&padding.both),
        ValueRef::Ints(&conv.dilation),
        false.into(),
        ValueRef::Ints(&zeros),
        (groups as i64).into(),
        ValueRef::Refs(&mask),
    ];
    let results = node.calls().several("aten::convolution_backward", &args)?;
    let result = results.into_iter().nth(wanted).flatten();
    result.ok_or_else(|| {
        Error::new(ErrorKind::Return, "aten::convolution_backward lacks a gradient".to_string())
    })
}

/// Returns memory of sizes whose elements aren't read.
fn unread(node: &Node<'_>, shape: &[i64]) -> Result<Tensor> {
    let shape: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
    Tensor::empty(&shape, node.dtype, node.calls().device())
}

pub(super) fn data_gradient(node: &Node<'_>, conv: &Convolution) -> Result<Results> {
    let padding = Padding::of(conv);
    let (dy, w) = (node.read(Port::Dy)?, oriented(conv, &node.read(Port::W)?)?);
    let dims = node.output_dims(Port::Dx)?;
    let padded = padded(dims, &padding.pre, &padding.post)?;
    let dx = gradient(node, conv, (&dy, &unread(node, &padded)?, &w), 0)?;
    let dx = node.calls().crop(&dx, &padding.pre, &dims[2..])?;
    blended(node, conv, Port::Dx, dx)
}

pub(super) fn filter_gradient(node: &Node<'_>, conv: &Convolution) -> Result<Results> {
    let padding = Padding::of(conv);
    let (x, dy) = (node.read(Port::X)?, node.read(Port::Dy)?);
    let x = node.calls().pad(&x, &padding.pre, &padding.post, 0.0)?;
    let w = unread(node, node.output_dims(Port::Dw)?)?;
    let dw = gradient(node, conv, (&dy, &x, &w), 1)?;
    debug_assert_eq!(sizes(&dw), sizes(&w));
    blended(node, conv, Port::Dw, oriented(conv, &dw)?)
}
