//! Outputs of pointwise operations, products and reductions.

use keyfold_core::{Error, ErrorKind, Result};

use super::{
    Inferred, Inputs, check_dims, check_rank, like, shape_error, show, statistics, typed,
    value_error,
};
use crate::{DataType, Pointwise, PointwiseMode, Port, TensorSpec};

/// A pointwise operation writes the dimensions that its inputs are broadcast to. Inputs have as many
/// dimensions as each other, or one element.
pub(super) fn pointwise(
    pointwise: &Pointwise,
    inputs: Inputs<'_>,
) -> Result<Vec<(Port, Inferred)>> {
    let mode = pointwise.mode;
    if let Some((name, value)) = pointwise.foreign() {
        return Err(value_error(format!(
            "{name} is {value}, but {} has no such attribute: its formula is {}",
            mode.name(),
            mode.formula()
        )));
    }
    let (output, ports): (Port, &[Port]) = match () {
        () if mode.is_backward() => (Port::Dx, &[Port::Dy, Port::X]),
        () => (Port::Y, &[Port::X, Port::B, Port::T]),
    };
    let operands: Vec<(Port, &TensorSpec)> =
        ports.iter().filter_map(|&port| Some((port, inputs.find(port)?))).collect();
    // The operand whose dimensions and strides lead: that of most dimensions, then of most elements.
    let lead = operands.iter().rev().max_by_key(|entry| (entry.1.rank(), entry.1.numel()));
    let &(lead_port, lead) = lead.ok_or_else(|| value_error("it reads no tensor".to_string()))?;
    let mut dims = lead.dims.clone();
    for &(port, tensor) in &operands {
        if tensor.numel() == Some(1) && tensor.rank() <= dims.len() {
            continue;
        }
        let fits = |(&size, &other): (&i64, &i64)| size == other || size == 1 || other == 1;
        if tensor.rank() != dims.len() || !tensor.dims.iter().zip(&dims).all(fits) {
            return Err(shape_error(format!(
                "{} and {} can't be broadcast: they need as many dimensions as each other, and sizes \
                 that are equal or 1",
                show(lead_port, lead),
                show(port, tensor)
            )));
        }
        for (size, &other) in dims.iter_mut().zip(&tensor.dims) {
            *size = if *size == 1 { other } else { *size };
        }
    }
    let mut inferred = like(&dims, lead)?;
    if mode.is_logical() {
        inferred.dtype = Some(DataType::Bool);
    }
    if mode == PointwiseMode::GenIndex {
        inferred.dtype = Some(DataType::I32);
        let rank = dims.len();
        let axis = pointwise.axis.ok_or_else(|| {
            value_error(format!("gen_index has no axis: it needs one of the {rank} dimensions"))
        })?;
        if usize::try_from(axis).ok().is_none_or(|axis| axis >= rank) {
            return Err(Error::new(
                ErrorKind::Index,
                format!("axis {axis} of gen_index is outside the {rank} dimensions of {dims:?}"),
            ));
        }
    }
    Ok(vec![(output, inferred)])
}

/// Returns whether a dimension has the heads of an attention, of which several in a row share one of
/// so many: grouped queries.
fn shares_heads(rank: usize, axis: usize, heads: i64, shared: i64) -> bool {
    (rank, axis) == (4, 1) && shared > 0 && heads % shared == 0
}

/// A product of `[..., M, K]` with `[..., K, N]` is `[..., M, N]`; what stands before is broadcast, and
/// heads of `a` may share matrices of `b`.
pub(super) fn matmul(inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let (a, b) = (inputs.get(Port::A)?, inputs.get(Port::B)?);
    check_rank(Port::A, a, 2..=8)?;
    let rank = a.rank();
    let pair = || format!("{} and {}", show(Port::A, a), show(Port::B, b));
    if b.rank() != rank {
        return Err(shape_error(format!("{} need as many dimensions as each other", pair())));
    }
    let (k, rows) = (a.dims[rank - 1], b.dims[rank - 2]);
    if k != rows {
        return Err(shape_error(format!(
            "{} don't fit: a has {k} columns and b has {rows} rows, which must be as many",
            pair()
        )));
    }
    let mut dims = a.dims.clone();
    for (axis, (size, &other)) in dims.iter_mut().zip(&b.dims).take(rank - 2).enumerate() {
        let broadcasts = *size == other || *size == 1 || other == 1;
        if !broadcasts && !shares_heads(rank, axis, *size, other) {
            let or = if (rank, axis) == (4, 1) { ", or a's a multiple of b's" } else { "" };
            return Err(shape_error(format!(
                "{} don't fit: their sizes {size} and {other} of dimension {axis} must be equal or 1{or}",
                pair()
            )));
        }
        *size = other.max(*size);
    }
    dims[rank - 1] = b.dims[rank - 1];
    for port in [Port::MOverride, Port::NOverride, Port::KOverride] {
        let Some(tensor) = inputs.find(port) else { continue };
        let fits = |axis: usize| {
            tensor.dims[axis] == 1 || (axis + 2 < rank && tensor.dims[axis] == dims[axis])
        };
        if tensor.rank() != rank || !(0..rank).all(fits) {
            return Err(shape_error(format!(
                "{} holds a number for each product of {dims:?}: its last two sizes must be 1, and the \
                 others 1 or those of the products",
                show(port, tensor)
            )));
        }
    }
    // Packed in row-major order: strides of a, which may be transposed, say nothing of c.
    let strides = crate::Layout::Packed.strides(&dims)?;
    Ok(vec![(Port::C, Inferred { dims, strides, dtype: None })])
}

/// Rows `[1, T, K]` with matrices `[E, K, N]`, from the offsets `[E, 1, 1]` of each matrix's first row.
pub(super) fn grouped_matmul(inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let (token, weight) = (inputs.get(Port::Token)?, inputs.get(Port::Weight)?);
    let offset = inputs.get(Port::FirstTokenOffset)?;
    check_rank(Port::Token, token, 3..=3)?;
    check_rank(Port::Weight, weight, 3..=3)?;
    let (&[batch, rows, k], &[experts, weight_rows, n]) = (&token.dims[..], &weight.dims[..])
    else {
        unreachable!("both have 3 dimensions");
    };
    if batch != 1 {
        let token = show(Port::Token, token);
        return Err(shape_error(format!("{token} must begin with 1: [1, rows, columns]")));
    }
    if k != weight_rows {
        return Err(shape_error(format!(
            "{} and {} don't fit: token has {k} columns and weight has {weight_rows} rows",
            show(Port::Token, token),
            show(Port::Weight, weight)
        )));
    }
    let why = "the index of the first row for each matrix of weight";
    check_dims(Port::FirstTokenOffset, offset, &[experts, 1, 1], why)?;
    Ok(vec![(Port::Y, like(&[1, rows, n], token)?)])
}

/// A reduction is proposed over all dimensions.
pub(super) fn reduction(inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let x = inputs.get(Port::X)?;
    Ok(vec![(Port::Y, like(&vec![1; x.rank()], x)?)])
}

pub(super) fn accepts_reduction(inputs: Inputs<'_>, y: &TensorSpec) -> Result<()> {
    let x = inputs.get(Port::X)?;
    let fits = |(axis, (&size, &from)): (usize, (&i64, &i64))| {
        size == 1 || size == from || shares_heads(x.rank(), axis, from, size)
    };
    if x.rank() == y.rank() && y.dims.iter().zip(&x.dims).enumerate().all(fits) {
        return Ok(());
    }
    Err(shape_error(format!(
        "{} can't be reduced to {}: each size must be 1, where it is reduced, or that of x; dimension 1 of \
         4 may be reduced in groups, to a size that divides x's",
        show(Port::X, x),
        show(Port::Y, y)
    )))
}

/// Sums and sums of squares are `[1, C, 1, ...]`.
pub(super) fn gen_stats(inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let x = inputs.get(Port::X)?;
    check_rank(Port::X, x, 3..=5)?;
    let mut dims = vec![1; x.rank()];
    dims[1] = x.dims[1];
    let sum = typed(&dims, x, statistics(x))?;
    Ok(vec![(Port::Sum, sum.clone()), (Port::SqSum, sum)])
}
