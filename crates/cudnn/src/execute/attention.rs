//! Scaled-dot-product attention and its gradients.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_tensor::{Tensor, ValueRef};

use super::Precision;
use super::calls::{Calls, sizes};
use super::node::{Node, Results, converted};
use super::program::dtype_of;
use super::reduction::log_sum_exp;
use crate::{Alignment, Attention, Port};

/// What an attention reads.
struct Inputs {
    q: Tensor,
    /// Keys and values for each head of `q`.
    k: Tensor,
    v: Tensor,
    bias: Option<Tensor>,
    lengths: Option<[Tensor; 2]>,
    scale: f64,
}

/// Returns a tensor with a head for each of `q`'s: each head of keys serves several in a row.
pub(super) fn repeated(calls: &Calls, x: &Tensor, heads: usize) -> Result<Tensor> {
    let have = x.shape()[1];
    if have == heads {
        return Ok(x.clone());
    }
    let shape = sizes(x);
    let (rows, depth) = (x.shape()[2], x.shape()[3]);
    let wide = x.unsqueeze(2)?.broadcast_to(&[x.shape()[0], have, heads / have, rows, depth])?;
    calls.reshape(&wide, &[shape[0], heads as i64, shape[2], shape[3]])
}

/// Sums up heads that were repeated.
fn gathered(calls: &Calls, x: &Tensor, heads: i64) -> Result<Tensor> {
    let shape = sizes(x);
    if shape[1] == heads {
        return Ok(x.clone());
    }
    let split = calls.reshape(x, &[shape[0], heads, shape[1] / heads, shape[2], shape[3]])?;
    let sum = calls.reduce("sum", &split, &[2])?;
    calls.reshape(&sum, &[shape[0], heads, shape[2], shape[3]])
}

fn inputs(node: &Node<'_>) -> Result<Inputs> {
    let calls = node.calls();
    let q = node.read(Port::Q)?;
    let heads = q.shape()[1];
    let length = |port: Port| node.find_as(port, DType::I64);
    Ok(Inputs {
        k: repeated(calls, &node.read(Port::K)?, heads)?,
        v: repeated(calls, &node.read(Port::V)?, heads)?,
        bias: node.find(Port::Bias)?,
        lengths: length(Port::SeqLenQ)?.zip(length(Port::SeqLenKv)?).map(|(q, kv)| [q, kv]),
        scale: node.number(Port::AttnScale)?.unwrap_or(1.0),
        q,
    })
}

/// Evaluates an expression of `x` where a query sees a key, and another elsewhere. Queries are the
/// rows of `x`, keys its columns. `None` where each query sees all keys.
fn where_seen(
    calls: &Calls,
    attention: &Attention,
    inputs: &Inputs,
    x: &Tensor,
    (seen, unseen): (&str, &str),
) -> Result<Option<Tensor>> {
    let (mut conditions, mut tensors, mut header) = (Vec::new(), vec![x], "x".to_string());
    if let Some(lengths) = &inputs.lengths {
        header.push_str(", rows, keys");
        tensors.extend(lengths);
        conditions.push("index(1) < rows and index(0) < keys");
    }
    let mut numbers = Vec::new();
    let bounds = [
        ("left", attention.left_bound, "index(0) > diagonal - left"),
        ("right", attention.right_bound, "index(0) <= diagonal + right"),
    ];
    for (name, bound, condition) in bounds {
        if let Some(bound) = bound {
            numbers.push((name, bound));
            conditions.push(condition);
        }
    }
    if conditions.is_empty() {
        return Ok(None);
    }
    let diagonal = match (attention.alignment, &inputs.lengths) {
        _ if numbers.is_empty() => "",
        (Alignment::TopLeft, _) => "diagonal = index(1); ",
        (Alignment::BottomRight, Some(_)) => "diagonal = index(1) + keys - rows; ",
        (Alignment::BottomRight, None) => {
            numbers.push(("apart", inputs.k.shape()[2] as i64 - inputs.q.shape()[2] as i64));
            "diagonal = index(1) + apart; "
        }
    };
    if !numbers.is_empty() {
        let names: Vec<&str> = numbers.iter().map(|number| number.0).collect();
        header = format!("{header}; {}", names.join(", "));
    }
    let condition = conditions.join(" and ");
    let text = format!("{header}: {diagonal}where({condition}, {seen}, {unseen})");
    let numbers: Vec<Scalar> = numbers.iter().map(|number| Scalar::Int(number.1)).collect();
    calls.map(&text, &tensors, &numbers).map(Some)
}

/// Returns the masked scores, `-inf` where a query doesn't see a key.
fn scores(node: &Node<'_>, attention: &Attention, inputs: &Inputs) -> Result<Tensor> {
    let calls = node.calls();
    let number = |port: Port| Ok::<f64, Error>(node.number(port)?.unwrap_or(1.0));
    let factor = inputs.scale * number(Port::DescaleQ)? * number(Port::DescaleK)?;
    let products = calls.matmul(&inputs.q, &inputs.k.transpose(2, 3)?)?;
    let factors = [Scalar::Float(factor)];
    let scores = match &inputs.bias {
        Some(bias) => calls.map("s, b; f: s * f + b", &[&products, bias], &factors)?,
        None if factor == 1.0 => products,
        None => calls.map("s; f: s * f", &[&products], &factors)?,
    };
    let masked = where_seen(calls, attention, inputs, &scores, ("x", "-inf"))?;
    Ok(masked.unwrap_or(scores))
}

/// Returns the mask that the operator of attention takes: of bools, or what is added to the scores.
fn mask(node: &Node<'_>, attention: &Attention, inputs: &Inputs) -> Result<(Option<Tensor>, bool)> {
    let bounds = (attention.left_bound, attention.right_bound, attention.alignment);
    if inputs.bias.is_none()
        && inputs.lengths.is_none()
        && bounds == (None, Some(0), Alignment::TopLeft)
    {
        return Ok((None, true));
    }
    let calls = node.calls();
    let (rows, keys) = (inputs.q.shape()[2] as i64, inputs.k.shape()[2] as i64);
    let zeros = calls.full(&[1, 1, rows, keys], 0.0, node.dtype)?;
    let mask = match &inputs.bias {
        None => where_seen(calls, attention, inputs, &zeros, ("x == 0", "False"))?,
        Some(bias) => {
            let whole = calls.map("b, z: b + z", &[bias, &zeros], &[])?;
            let masked = where_seen(calls, attention, inputs, &whole, ("x", "-inf"))?;
            Some(masked.unwrap_or(whole))
        }
    };
    Ok((mask, false))
}

/// Returns whether the operator of attention computes it: without dropout, and in floats of one
/// width.
fn is_plain(node: &Node<'_>, attention: &Attention) -> bool {
    let scales = [
        Port::DescaleQ,
        Port::DescaleK,
        Port::DescaleV,
        Port::DescaleS,
        Port::ScaleS,
        Port::ScaleO,
    ];
    let is_f8 = node.input_spec(Port::Q).is_some_and(|spec| dtype_of(spec).is_f8());
    attention.dropout.is_none_or(|p| p.0 == 0.0)
        && !is_f8
        && scales.iter().all(|&port| node.op.input(port).is_none())
        && ![Port::AmaxS, Port::AmaxO, Port::Dbias].iter().any(|&port| node.wants(port))
}

/// Returns the weights of keys, given the logarithms of sums of exponentials; 0 where there are
/// none.
fn weights(calls: &Calls, scores: &Tensor, stats: &Tensor) -> Result<Tensor> {
    calls.map("s, l: where(s == -inf, 0.0, exp(s - l))", &[scores, stats], &[])
}

/// Drops weights, of which all are scaled to the same expectation.
fn dropped(node: &Node<'_>, attention: &Attention, weights: &Tensor) -> Result<Tensor> {
    let Some(p) = attention.dropout.map(|p| p.0).filter(|&p| p > 0.0) else {
        return Ok(weights.clone());
    };
    let whole = |port: Port| {
        let number = node.scalar(port)?;
        Ok::<i64, Error>(number.and_then(Scalar::as_i64).unwrap_or(0))
    };
    // The probability in steps of the random words, which have 32 bits.
    let threshold = (p * 4_294_967_296.0).round() as i64;
    let args: [ValueRef<'_>; 5] = [
        weights.into(),
        threshold.into(),
        (1.0 / (1.0 - p)).into(),
        whole(Port::Seed)?.into(),
        whole(Port::Offset)?.into(),
    ];
    let results = node.calls().several("keyfold::dropout_threshold", &args)?;
    results.into_iter().next().flatten().ok_or_else(|| {
        Error::new(ErrorKind::Return, "keyfold::dropout_threshold lacks a result".to_string())
    })
}

pub(super) fn forward(node: &Node<'_>, attention: &Attention) -> Result<Results> {
    let (calls, inputs) = (node.calls(), inputs(node)?);
    if is_plain(node, attention) {
        let (mask, is_causal) = mask(node, attention, &inputs)?;
        let args = [
            (&inputs.q).into(),
            (&inputs.k).into(),
            (&inputs.v).into(),
            mask.as_ref().map_or(ValueRef::None, ValueRef::Tensor),
            is_causal.into(),
            inputs.scale.into(),
        ];
        let results = calls.several("keyfold::attention", &args)?.into_iter().flatten();
        return Ok([Port::O, Port::Stats].into_iter().zip(results).collect());
    }
    let scores = scores(node, attention, &inputs)?;
    let stats = log_sum_exp(calls, &scores)?;
    let weights = weights(calls, &scores, &stats)?;
    let mut results = Vec::new();
    let greatest = |x: &Tensor| {
        let magnitudes = calls.map("x: abs(x)", &[x], &[])?;
        calls.reduce("amax", &magnitudes, &[0, 1, 2, 3])
    };
    if node.wants(Port::AmaxS) {
        results.push((Port::AmaxS, greatest(&weights)?));
    }
    let mut kept = dropped(node, attention, &weights)?;
    let number = |port: Port| Ok::<f64, Error>(node.number(port)?.unwrap_or(1.0));
    // 8-bit floats: the weights are scaled and rounded as the second product would read them.
    let of = node.input_spec(Port::Q).map(dtype_of).filter(|dtype| dtype.is_f8());
    let factor = number(Port::ScaleS)?;
    if factor != 1.0 {
        kept = calls.map("w; f: w * f", &[&kept], &[Scalar::Float(factor)])?;
    }
    if let (Some(dtype), Precision::AsSpec) = (of, node.precision()) {
        let bytes = converted(calls, &kept, dtype, DType::U8)?;
        kept = node.program.decoded(&bytes, dtype, node.dtype)?;
    }
    let mut o = calls.matmul(&kept, &inputs.v)?;
    let factor = number(Port::DescaleS)? * number(Port::DescaleV)?;
    if factor != 1.0 {
        o = calls.map("o; f: o * f", &[&o], &[Scalar::Float(factor)])?;
    }
    if node.wants(Port::AmaxO) {
        results.push((Port::AmaxO, greatest(&o)?));
    }
    let factor = number(Port::ScaleO)?;
    if factor != 1.0 {
        o = calls.map("o; f: o * f", &[&o], &[Scalar::Float(factor)])?;
    }
    if node.wants(Port::Stats) {
        results.push((Port::Stats, stats));
    }
    results.push((Port::O, o));
    Ok(results)
}

pub(super) fn backward(node: &Node<'_>, attention: &Attention) -> Result<Results> {
    let (calls, inputs) = (node.calls(), inputs(node)?);
    let (o, dout) = (node.read(Port::O)?, node.read(Port::Do)?);
    let heads = |port: Port| node.output_dims(port).map(|dims| dims[1]);
    if is_plain(node, attention) {
        let (mask, is_causal) = mask(node, attention, &inputs)?;
        let wide = if node.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let shape = sizes(&o);
        let stats = calls.reshape(&node.read_as(Port::Stats, wide)?, &shape[..3])?;
        let results = [(&o).into(), (&stats).into()];
        let args = [
            (&dout).into(),
            (&inputs.q).into(),
            (&inputs.k).into(),
            (&inputs.v).into(),
            mask.as_ref().map_or(ValueRef::None, ValueRef::Tensor),
            ValueRef::Refs(&results),
            is_causal.into(),
            inputs.scale.into(),
        ];
        let gradients = calls.several("keyfold::attention_backward", &args)?.into_iter().flatten();
        let ports = [Port::Dq, Port::Dk, Port::Dv].into_iter();
        let summed = |(port, gradient): (Port, Tensor)| {
            Ok((port, gathered(calls, &gradient, heads(port)?)?))
        };
        return ports.zip(gradients).map(summed).collect();
    }
    let scores = scores(node, attention, &inputs)?;
    let Inputs { q, k, v, scale, .. } = inputs;
    let stats = node.read(Port::Stats)?;
    let weights = weights(calls, &scores, &stats)?;
    let kept = dropped(node, attention, &weights)?;
    let dv = calls.matmul(&kept.transpose(2, 3)?, &dout)?;
    // The same words drop the gradients of what they dropped.
    let dkept = calls.matmul(&dout, &v.transpose(2, 3)?)?;
    let dweights = dropped(node, attention, &dkept)?;
    let products = calls.map("a, b: a * b", &[&dout, &o], &[])?;
    let level = calls.reduce("sum", &products, &[3])?;
    let text = "w, g, l: where(w == 0, 0.0, w * (g - l))";
    let dscores = calls.map(text, &[&weights, &dweights, &level], &[])?;
    let mut results = Vec::new();
    if let (true, Some(bias)) = (node.wants(Port::Dbias), node.input_spec(Port::Bias)) {
        results.push((Port::Dbias, calls.sum_to(&dscores, &bias.dims)?));
    }
    let scaled = match scale {
        1.0 => dscores,
        scale => calls.map("s; f: s * f", &[&dscores], &[Scalar::Float(scale)])?,
    };
    let dk = calls.matmul(&scaled.transpose(2, 3)?, &q)?;
    results.extend([
        (Port::Dq, calls.matmul(&scaled, &k)?),
        (Port::Dk, gathered(calls, &dk, heads(Port::Dk)?)?),
        (Port::Dv, gathered(calls, &dv, heads(Port::Dv)?)?),
    ]);
    Ok(results)
}
