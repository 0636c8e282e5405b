//! Indices of any integer dtype, converted to int64, which kernels of backends take.

use keyfold_core::{DType, ErrorKind, Result};
use keyfold_tensor::Tensor;

use crate::convert::cast;
use crate::cow::TensorCow;
use crate::op::Op;
use crate::pointwise::{Pointwise, parse};

/// Refuses an argument `index` that isn't of an integer dtype.
pub(crate) fn check_integer(op: &Op, index: &Tensor) -> Result<()> {
    check_integer_argument(op, "index", index)
}

/// As [`check_integer`], of an argument of that name.
pub(crate) fn check_integer_argument(op: &Op, name: &str, index: &Tensor) -> Result<()> {
    if index.dtype().is_integral() {
        return Ok(());
    }
    let message = format!("argument '{name}' must be of an integer dtype, not {}", index.dtype());
    Err(op.error(ErrorKind::DType, message))
}

/// Converts indices to int64; borrows them if they are int64.
///
/// # Errors
/// Those of the conversion.
#[inline]
pub(crate) fn as_int64<'a>(op: &Op, index: &'a Tensor) -> Result<TensorCow<'a>> {
    match index.dtype() {
        DType::I64 => Ok(TensorCow::Borrowed(index)),
        _ => convert_to_int64(op, index).map(TensorCow::from),
    }
}

/// Converts indices of another dtype to int64.
#[cold]
fn convert_to_int64(op: &Op, index: &Tensor) -> Result<Tensor> {
    if index.dtype() != DType::U64 {
        return cast(op, index, DType::I64);
    }
    // An index beyond int64 would wrap to a negative one, which counts from the end.
    if index.device().kind().is_host() && !op.is_meta() {
        check_int64(op, index)?;
        return cast(op, index, DType::I64);
    }
    // Reading a device's memory would wait for the device, so such an index is capped at the greatest int64,
    // which is out of range for every tensor.
    let capped = op.at(parse("minimum(index_, last)", &["index_"], &["last"]))?;
    let capped = Pointwise::new(op.clone(), capped).compute([index], [i64::MAX.into()])?;
    cast(op, &capped, DType::I64)
}

/// Refuses positions in the host's memory that are beyond int64.
fn check_int64(op: &Op, index: &Tensor) -> Result<()> {
    let whole = op.at(index.contiguous())?;
    let positions = op.at(whole.as_slice::<u64>())?;
    match positions.iter().find(|position| i64::try_from(**position).is_err()) {
        None => Ok(()),
        Some(beyond) => {
            let message = format!("index {beyond} is out of range: no dimension is that long");
            Err(op.error(ErrorKind::Index, message))
        }
    }
}
