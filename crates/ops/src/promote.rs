//! Dtype promotion: the dtype of a result of several operands.
//!
//! - Tensors of one kind (bool < integer < float): the wider dtype, as the array API standard has it;
//!   `float16` with `bfloat16` gives `float32`.
//! - `float16` and `bfloat16` are computed in `float32` and rounded once, sums and products too.
//! - bool with another dtype: the other dtype.
//! - Integer with float tensors: the standard leaves it open; as in NumPy, `int64` with `float32` gives
//!   `float64`.
//! - Python numbers are weak: the tensor's dtype stays where it can hold the number's kind, else
//!   it promotes with the default dtype of the number's kind (`int64`, `float64`). An integer that the
//!   dtype can't hold is an error, not a wrapped value.
//! - 0-dim tensors promote as tensors; they aren't weak.
//! - `div`, `mean`, `softmax` and the functions of floats (`exp`, `sin`, ...) compute in floats:
//!   integers and bools become `float64`.
//! - `sum` of signed integers and bools is `int64`, of unsigned integers `uint64`; sums wrap around.
//! - Comparisons give bool.
//! - Arithmetic of bools is NumPy's: `add` is "or", `mul` is "and"; `sub`, `neg` and `pow` are
//!   refused.

use keyfold_core::{DType, Error, ErrorKind, Result};

use crate::op::Op;

/// Returns the dtype that kernels compute a result of `dtype` in: float32 for float16 and bfloat16, which
/// have no arithmetic.
pub(crate) fn computed(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// Returns the dtype of a result that is always floating or complex.
pub(crate) fn floating(dtype: DType) -> DType {
    match dtype.is_integral() || dtype == DType::Bool {
        true => DType::DEFAULT_FLOAT,
        false => dtype,
    }
}

/// Refuses a write of `from` elements into a tensor of `to`, if `to` is of a lower kind.
///
/// # Errors
/// [`ErrorKind::DType`].
pub(crate) fn check_assignable(op: &Op, from: DType, to: DType) -> Result<()> {
    if from.promote(to).kind() == to.kind() {
        return Ok(());
    }
    Err(lossy(op, from, to))
}

#[cold]
fn lossy(op: &Op, from: DType, to: DType) -> Error {
    op.error(
        ErrorKind::DType,
        format!(
            "can't write {from} elements into a {to} tensor without losing what they are; convert \
             them with aten::to"
        ),
    )
}
