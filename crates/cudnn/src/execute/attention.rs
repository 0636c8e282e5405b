//! Scaled-dot-product attention and its gradients.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_tensor::{Tensor, ValueRef};

use super::Precision;
use super::calls::{Calls, sizes};
use super::node::{Node, Results, converted};
use super::program::dtype_of;
use super::reduction::log_sum_exp;
use crate::{Alignment, Attention, Port};

/// The masked scores, `-inf` where a query doesn't see a key, and what they are made of.
struct Scores {
    q: Tensor,
    /// Keys and values for each head of `q`.
    k: Tensor,
    v: Tensor,
    scale: f64,
    scores: Tensor,
}

/// Returns a tensor with a head for each of `q`'s: each head of keys serves several in a row.
fn repeated(calls: &Calls, x: &Tensor, heads: usize) -> Result<Tensor> {
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

fn scores(node: &Node<'_>, attention: &Attention) -> Result<Scores> {
    let calls = node.calls();
    let q = node.read(Port::Q)?;
    let heads = q.shape()[1];
    let k = repeated(calls, &node.read(Port::K)?, heads)?;
    let v = repeated(calls, &node.read(Port::V)?, heads)?;
    let scale = node.number(Port::AttnScale)?.unwrap_or(1.0);
    let number = |port: Port| Ok::<f64, Error>(node.number(port)?.unwrap_or(1.0));
    let factor = scale * number(Port::DescaleQ)? * number(Port::DescaleK)?;
    let products = calls.matmul(&q, &k.transpose(2, 3)?)?;
    let factors = [Scalar::Float(factor)];
    let mut scores = match node.find(Port::Bias)? {
        Some(bias) => calls.map("s, b; f: s * f + b", &[&products, &bias], &factors)?,
        None if factor == 1.0 => products,
        None => calls.map("s; f: s * f", &[&products], &factors)?,
    };
    let lengths =
        match (node.find_as(Port::SeqLenQ, DType::I64)?, node.find_as(Port::SeqLenKv, DType::I64)?)
        {
            (Some(rows), Some(keys)) => Some([rows, keys]),
            _ => None,
        };
    let (mut conditions, mut inputs) = (Vec::new(), vec![&scores]);
    let mut header = "s".to_string();
    if let Some(lengths) = &lengths {
        header.push_str(", rows, keys");
        inputs.extend(lengths);
        conditions.push("index(1) < rows and index(0) < keys");
    }
    let mut numbers = vec![("n", k.shape()[2] as i64), ("m", q.shape()[2] as i64)];
    let (left, right) = (attention.left_bound, attention.right_bound);
    if let Some(left) = left {
        numbers.push(("left", left));
        conditions.push("index(0) >= diagonal - left");
    }
    if let Some(right) = right {
        numbers.push(("right", right));
        conditions.push("index(0) <= diagonal + right");
    }
    if !conditions.is_empty() {
        let diagonal = match (attention.alignment, &lengths) {
            _ if left.is_none() && right.is_none() => "",
            (Alignment::TopLeft, _) => "diagonal = index(1); ",
            (Alignment::BottomRight, None) => "diagonal = index(1) + n - m; ",
            (Alignment::BottomRight, Some(_)) => "diagonal = index(1) + keys - rows; ",
        };
        let names: Vec<&str> = numbers.iter().map(|number| number.0).collect();
        let text = format!(
            "{header}; {}: {diagonal}where({}, s, -inf)",
            names.join(", "),
            conditions.join(" and ")
        );
        let numbers: Vec<Scalar> = numbers.iter().map(|number| Scalar::Int(number.1)).collect();
        scores = calls.map(&text, &inputs, &numbers)?;
    }
    Ok(Scores { q, k, v, scale, scores })
}

/// Returns the weights of keys, given the logarithms of sums of exponentials; 0 where there are none.
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
    let calls = node.calls();
    let Scores { v, scores, .. } = scores(node, attention)?;
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
    let mut o = calls.matmul(&kept, &v)?;
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
    let calls = node.calls();
    let Scores { q, k, v, scale, scores } = scores(node, attention)?;
    let (o, dout, stats) = (node.read(Port::O)?, node.read(Port::Do)?, node.read(Port::Stats)?);
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
    let heads = |port: Port| node.output_dims(port).map(|dims| dims[1]);
    let dk = calls.matmul(&scaled.transpose(2, 3)?, &q)?;
    results.extend([
        (Port::Dq, calls.matmul(&scaled, &k)?),
        (Port::Dk, gathered(calls, &dk, heads(Port::Dk)?)?),
        (Port::Dv, gathered(calls, &dv, heads(Port::Dv)?)?),
    ]);
    Ok(results)
}
