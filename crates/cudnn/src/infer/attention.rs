//! Outputs of softmax, of masks, and of scaled-dot-product attention.

use keyfold_core::Result;

use super::{
    Inferred, Inputs, check_dims, check_one, check_ones, check_rank, like, shape_error, show,
    statistics, typed, value_error,
};
use crate::{Attention, DataType, DiagonalBandMask, PointwiseMode, Port};

pub(super) fn softmax(inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let x = inputs.get(Port::X)?;
    check_rank(Port::X, x, 1..=8)?;
    let mut dims = x.dims.clone();
    dims[x.rank() - 1] = 1;
    Ok(vec![(Port::Y, like(&x.dims, x)?), (Port::Stats, typed(&dims, x, statistics(x))?)])
}

pub(super) fn diagonal_band_mask(
    mask: &DiagonalBandMask,
    inputs: Inputs<'_>,
) -> Result<Vec<(Port, Inferred)>> {
    let x = inputs.get(Port::X)?;
    check_rank(Port::X, x, 2..=8)?;
    check_one(Port::B, inputs.get(Port::B)?)?;
    if !(PointwiseMode::CmpEq..=PointwiseMode::CmpLe).contains(&mask.comparison) {
        return Err(value_error(format!(
            "comparison {} is none: it must be cmp_eq, cmp_neq, cmp_gt, cmp_ge, cmp_lt or cmp_le",
            mask.comparison.name()
        )));
    }
    Ok(vec![(Port::Y, like(&x.dims, x)?)])
}

/// The sizes of an attention: those of `o`, those of the scores.
struct Sizes {
    o: [i64; 4],
    scores: [i64; 4],
}

fn sizes(attention: &Attention, inputs: Inputs<'_>) -> Result<Sizes> {
    let (q, k, v) = (inputs.get(Port::Q)?, inputs.get(Port::K)?, inputs.get(Port::V)?);
    for (port, tensor) in [(Port::Q, q), (Port::K, k), (Port::V, v)] {
        check_rank(port, tensor, 4..=4)?;
    }
    let (b, h, rows, d) = (q.dims[0], q.dims[1], q.dims[2], q.dims[3]);
    let (keys, depth) = (k.dims[2], v.dims[3]);
    let two = |left: Port, right: Port| -> Result<String> {
        Ok(format!("{} and {}", show(left, inputs.get(left)?), show(right, inputs.get(right)?)))
    };
    if k.dims[0] != b || k.dims[3] != d {
        return Err(shape_error(format!(
            "{} don't fit: k must be [{b}, heads, keys, {d}]",
            two(Port::Q, Port::K)?
        )));
    }
    if v.dims[0] != b || v.dims[2] != keys {
        return Err(shape_error(format!(
            "{} don't fit: v must be [{b}, heads, {keys}, depth]",
            two(Port::K, Port::V)?
        )));
    }
    for (port, heads) in [(Port::K, k.dims[1]), (Port::V, v.dims[1])] {
        if h % heads != 0 {
            return Err(shape_error(format!(
                "{} don't fit: the {h} heads of q must be a multiple of the {heads} heads of {port}",
                two(Port::Q, port)?
            )));
        }
    }
    for (name, bound, least) in
        [("left_bound", attention.left_bound, 1), ("right_bound", attention.right_bound, 0)]
    {
        if let Some(bound) = bound.filter(|&bound| bound < least) {
            return Err(value_error(format!("{name} {bound} must be {least} or more, or none")));
        }
    }
    check_dropout(attention, inputs)?;
    let sizes = Sizes { o: [b, h, rows, depth], scores: [b, h, rows, keys] };
    if let Some(bias) = inputs.find(Port::Bias) {
        let fits = |(&size, score): (&i64, i64)| size == 1 || size == score;
        if bias.rank() != 4 || !bias.dims.iter().zip(sizes.scores).all(fits) {
            return Err(shape_error(format!(
                "{} can't be added to the scores {:?}: its sizes must be theirs or 1",
                show(Port::Bias, bias),
                sizes.scores
            )));
        }
    }
    let lengths = [Port::SeqLenQ, Port::SeqLenKv];
    for port in lengths {
        let Some(tensor) = inputs.find(port) else { continue };
        check_dims(port, tensor, &[b, 1, 1, 1], "a length for each example")?;
        if let Some(missing) = lengths.into_iter().find(|&other| inputs.find(other).is_none()) {
            return Err(value_error(format!("{port} is given without {missing}: give both")));
        }
    }
    check_ones(inputs, &[Port::AttnScale, Port::Seed, Port::Offset])?;
    Ok(sizes)
}

fn check_dropout(attention: &Attention, inputs: Inputs<'_>) -> Result<()> {
    let ports = [Port::Seed, Port::Offset];
    let Some(dropout) = attention.dropout else {
        return match ports.into_iter().find(|&port| inputs.find(port).is_some()) {
            Some(port) => {
                Err(value_error(format!("{port} is given without a dropout probability")))
            }
            None => Ok(()),
        };
    };
    if !(0.0..1.0).contains(&dropout.0) {
        let dropout = dropout.0;
        return Err(value_error(format!("dropout {dropout} must be 0 or more and less than 1")));
    }
    match ports.into_iter().find(|&port| inputs.find(port).is_none()) {
        Some(port) => Err(value_error(format!(
            "dropout {} has no {port}: give seed and offset, which make it repeatable",
            dropout.0
        ))),
        None => Ok(()),
    }
}

pub(super) fn sdpa(attention: &Attention, inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let sizes = sizes(attention, inputs)?;
    let q = inputs.get(Port::Q)?;
    let scales = [
        Port::DescaleQ,
        Port::DescaleK,
        Port::DescaleV,
        Port::DescaleS,
        Port::ScaleS,
        Port::ScaleO,
    ];
    check_ones(inputs, &scales)?;
    let [b, h, rows, _] = sizes.o;
    let amax = typed(&[1, 1, 1, 1], q, DataType::F32)?;
    Ok(vec![
        (Port::O, like(&sizes.o, q)?),
        (Port::Stats, typed(&[b, h, rows, 1], q, statistics(q))?),
        (Port::AmaxS, amax.clone()),
        (Port::AmaxO, amax),
    ])
}

pub(super) fn sdpa_backward(
    attention: &Attention,
    inputs: Inputs<'_>,
) -> Result<Vec<(Port, Inferred)>> {
    let sizes = sizes(attention, inputs)?;
    for port in [Port::O, Port::Do] {
        check_dims(port, inputs.get(port)?, &sizes.o, "the dimensions of the forward's o")?;
    }
    let [b, h, rows, _] = sizes.o;
    let why = "a number for each row of the scores";
    check_dims(Port::Stats, inputs.get(Port::Stats)?, &[b, h, rows, 1], why)?;
    let mut outputs = Vec::new();
    for (gradient, of) in [(Port::Dq, Port::Q), (Port::Dk, Port::K), (Port::Dv, Port::V)] {
        let tensor = inputs.get(of)?;
        outputs.push((gradient, like(&tensor.dims, tensor)?));
    }
    if let Some(bias) = inputs.find(Port::Bias) {
        outputs.push((Port::Dbias, like(&bias.dims, bias)?));
    }
    Ok(outputs)
}
