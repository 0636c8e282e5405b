//! Outputs of operations that move elements only.

use keyfold_core::{Error, ErrorKind, Result};

use super::{Inferred, Inputs, check_list, like, shape_error, show, value_error};
use crate::{Concatenate, Layout, Port, Slice, TensorSpec, Transpose};

/// A reshape is proposed with the input's dimensions.
pub(super) fn reshape(inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let x = inputs.get(Port::X)?;
    Ok(vec![(Port::Y, Inferred { dtype: x.dtype, ..like(&x.dims, x)? })])
}

pub(super) fn accepts_reshape(inputs: Inputs<'_>, y: &TensorSpec) -> Result<()> {
    let x = inputs.get(Port::X)?;
    if x.numel() == y.numel() {
        return Ok(());
    }
    let count = |tensor: &TensorSpec| tensor.numel().map_or("too many".into(), |n| n.to_string());
    Err(shape_error(format!(
        "{} has {} elements and {} has {}, which must be as many",
        show(Port::X, x),
        count(x),
        show(Port::Y, y),
        count(y)
    )))
}

/// The input's dimension `permutation[i]` is the output's `i`.
pub(super) fn transpose(
    transpose: &Transpose,
    inputs: Inputs<'_>,
) -> Result<Vec<(Port, Inferred)>> {
    let x = inputs.get(Port::X)?;
    let permutation = &transpose.permutation;
    check_list("permutation", permutation.len(), x.rank(), "dimension of x")?;
    let mut sorted = permutation.clone();
    sorted.sort_unstable();
    if sorted.iter().zip(0..).any(|(&axis, want)| axis != want) {
        return Err(value_error(format!(
            "permutation {permutation:?} must have each dimension of {}, 0 to {}, once",
            show(Port::X, x),
            x.rank().saturating_sub(1)
        )));
    }
    let dims: Vec<i64> = permutation.iter().map(|&axis| x.dims[axis as usize]).collect();
    let strides = Layout::Packed.strides(&dims)?;
    Ok(vec![(Port::Y, Inferred { dims, strides, dtype: x.dtype })])
}

pub(super) fn slice(slice: &Slice, inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let x = inputs.get(Port::X)?;
    let lists = [("start", &slice.start), ("limit", &slice.limit), ("stride", &slice.stride)];
    for (name, list) in lists {
        check_list(name, list.len(), x.rank(), "dimension of x")?;
    }
    let mut dims = Vec::with_capacity(x.rank());
    for (axis, &size) in x.dims.iter().enumerate() {
        let (start, limit, stride) = (slice.start[axis], slice.limit[axis], slice.stride[axis]);
        if start < 0 || limit > size || start >= limit {
            return Err(Error::new(
                ErrorKind::Index,
                format!(
                    "{start} to {limit} is no part of dimension {axis} of {}: start must be 0 or more, \
                     less than limit, and limit at most {size}",
                    show(Port::X, x)
                ),
            ));
        }
        if stride < 1 {
            return Err(value_error(format!(
                "stride {stride} of dimension {axis} must be 1 or more"
            )));
        }
        dims.push((limit - start - 1) / stride + 1);
    }
    let inferred = like(&dims, x)?;
    Ok(vec![(Port::Y, Inferred { dtype: x.dtype, ..inferred })])
}

pub(super) fn concatenate(
    concatenate: &Concatenate,
    inputs: Inputs<'_>,
) -> Result<Vec<(Port, Inferred)>> {
    let first = inputs.get(Port::X)?;
    let axis = usize::try_from(concatenate.axis).ok().filter(|&axis| axis < first.rank());
    let axis = axis.ok_or_else(|| {
        let message = format!(
            "axis {} is outside the {} dimensions of {}",
            concatenate.axis,
            first.rank(),
            show(Port::X, first)
        );
        Error::new(ErrorKind::Index, message)
    })?;
    let count = inputs.0.len();
    if let Some(index) = concatenate.in_place_index
        && usize::try_from(index).ok().is_none_or(|index| index >= count)
    {
        let message =
            format!("in_place_index {index} is none of the {count} inputs: 0 to {}", count - 1);
        return Err(Error::new(ErrorKind::Index, message));
    }
    let mut dims = first.dims.clone();
    for (index, (port, tensor)) in inputs.0.iter().enumerate().skip(1) {
        let same = |i: usize| i == axis || tensor.dims[i] == first.dims[i];
        if tensor.rank() != first.rank() || !(0..first.rank()).all(same) {
            return Err(shape_error(format!(
                "input {index}, {}, doesn't follow {}: their sizes must be equal but in dimension {axis}",
                show(*port, tensor),
                show(Port::X, first)
            )));
        }
        dims[axis] = dims[axis].checked_add(tensor.dims[axis]).ok_or_else(|| {
            shape_error(format!("the sizes along dimension {axis} add up to more than 64 bits"))
        })?;
    }
    let inferred = like(&dims, first)?;
    Ok(vec![(Port::Y, Inferred { dtype: first.dtype, ..inferred })])
}
