//! Proofs of single tensors.

use keyfold_core::{Error, ErrorKind, Result};

use super::scalar;
use crate::{DataType, Port, TensorSpec};

/// The most dimensions that a tensor has.
const RANKS: std::ops::RangeInclusive<usize> = 1..=8;

/// Proves what a tensor says of itself.
pub(super) fn check(tensor: &TensorSpec) -> Result<()> {
    let error = |kind: ErrorKind, message: String| Err(Error::new(kind, message));
    let (dims, strides) = (&tensor.dims, &tensor.strides);
    if tensor.uid == 0 {
        return error(ErrorKind::Value, "its uid is 0, which is none: give another number".into());
    }
    let Some(dtype) = tensor.dtype else {
        let message =
            "it has no dtype: set it, or the graph's for tensors with memory and virtual ones";
        return error(ErrorKind::DType, message.into());
    };
    if !RANKS.contains(&dims.len()) {
        let message = format!("it has {} dimensions {dims:?}: 1 to 8 are possible", dims.len());
        return error(ErrorKind::Shape, message);
    }
    if let Some(axis) = dims.iter().position(|&size| size < 1) {
        let size = dims[axis];
        let message = format!("dimension {axis} of {dims:?} is {size}: sizes are 1 or more");
        return error(ErrorKind::Shape, message);
    }
    if strides.len() != dims.len() {
        let message =
            format!("{} strides {strides:?} for {} dimensions {dims:?}", strides.len(), dims.len());
        return error(ErrorKind::Shape, message);
    }
    if let Some(axis) = strides.iter().position(|&stride| stride < 0) {
        let stride = strides[axis];
        let message = format!("stride {axis} of {strides:?} is {stride}: strides are 0 or more");
        return error(ErrorKind::Shape, message);
    }
    check_bytes(tensor, dtype)?;
    check_strides(tensor)?;
    check_alignment(tensor.alignment, dtype)?;
    if tensor.by_value && tensor.is_virtual {
        let message = "it is given by value and virtual: it is one or the other";
        return error(ErrorKind::Value, message.into());
    }
    if tensor.by_value && tensor.numel() != Some(1) {
        let message = format!("it is given by value, but {dims:?} isn't one number");
        return error(ErrorKind::Shape, message);
    }
    match tensor.scalar {
        Some(_) if !tensor.by_value => {
            let message = "it has a scalar, but isn't by_value: a value of the graph has no memory";
            error(ErrorKind::Value, message.into())
        }
        Some(number) => scalar::check(number, dtype),
        None => Ok(()),
    }
}

/// Proves that all elements, and what they span, are counted in 64 bits.
fn check_bytes(tensor: &TensorSpec, dtype: DataType) -> Result<()> {
    let size = dtype.size() as i64;
    let reach =
        tensor.dims.iter().zip(&tensor.strides).try_fold(1_i64, |reach, (dim, stride)| {
            reach.checked_add((dim - 1).checked_mul(*stride)?)
        });
    let bytes = |count: Option<i64>| count.and_then(|count| count.checked_mul(size));
    if bytes(tensor.numel()).is_some() && bytes(reach).is_some() {
        return Ok(());
    }
    let (dims, strides) = (&tensor.dims, &tensor.strides);
    let message =
        format!("dimensions {dims:?} with strides {strides:?} of {dtype} overflow 64 bits");
    Err(Error::new(ErrorKind::Shape, message))
}

fn check_alignment(alignment: i64, dtype: DataType) -> Result<()> {
    let size = dtype.size() as i64;
    if alignment > 0 && alignment.count_ones() == 1 && alignment >= size {
        return Ok(());
    }
    let message = format!(
        "its alignment is {alignment} bytes: it must be a power of two, and {size} or more for {dtype}"
    );
    Err(Error::new(ErrorKind::Value, message))
}

/// Returns the first dimension, in the order of strides, whose elements overlap or interleave with
/// those of the dimensions before it, and the least stride with which they wouldn't.
fn overlap(tensor: &TensorSpec, may_broadcast: bool) -> Option<(usize, i64)> {
    let pairs = tensor.strides.iter().zip(&tensor.dims).enumerate();
    let counts = |dim: i64, stride: i64| dim > 1 && (stride != 0 || !may_broadcast);
    let mut axes: Vec<(i64, i64, usize)> = pairs
        .filter(|(_, (stride, dim))| counts(**dim, **stride))
        .map(|(axis, (stride, dim))| (*stride, *dim, axis))
        .collect();
    axes.sort_unstable();
    let mut reach = 1_i64;
    for (stride, dim, axis) in axes {
        if stride < reach {
            return Some((axis, reach));
        }
        // Below what `check_bytes` has proven.
        reach += (dim - 1) * stride;
    }
    None
}

/// Proves that elements overlap only where a dimension of stride 0 is broadcast.
fn check_strides(tensor: &TensorSpec) -> Result<()> {
    let Some((axis, least)) = overlap(tensor, true) else { return Ok(()) };
    let (dims, strides) = (&tensor.dims, &tensor.strides);
    let message = format!(
        "the elements of {dims:?} with strides {strides:?} overlap or interleave: stride {axis} is {}, and must \
         be {least} or more, or 0 for a dimension that is broadcast",
        strides[axis]
    );
    Err(Error::new(ErrorKind::Shape, message))
}

/// Proves that each element of a result has an address of its own.
pub(super) fn check_strides_of_output(port: Port, tensor: &TensorSpec) -> Result<()> {
    let Some((axis, least)) = overlap(tensor, false) else { return Ok(()) };
    let (dims, strides) = (&tensor.dims, &tensor.strides);
    let message = format!(
        "the elements of its output {port} (tensor {}, {dims:?} with strides {strides:?}) overlap or \
         interleave: stride {axis} is {}, and must be {least} or more",
        tensor.label(),
        strides[axis]
    );
    Err(Error::new(ErrorKind::Shape, message))
}
