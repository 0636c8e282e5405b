//! The dtype of a result that several operands share.
//!
//! - Tensors of one kind (bool < whole < float): the wider dtype, as the array API standard has it;
//!   `float16` with `bfloat16` gives `float32`.
//! - `float16` and `bfloat16` are computed in `float32` and rounded once, sums and products too.
//! - bool with anything else: the other.
//! - Whole with float tensors: the standard leaves it open; we do as NumPy, `int64` with `float32`
//!   gives `float64`.
//! - Python numbers are weak: the tensor's dtype stays where it can hold the number's kind, else
//!   the default dtype of the number's kind comes in (`int64`, `float64`). A whole number that the
//!   dtype can't hold is an error, not a wrapped value.
//! - 0-dim tensors are tensors: nothing about them is weak.
//! - `div`, `mean`, `softmax` and the functions of floats (`exp`, `sin`, ...) compute in floats:
//!   whole numbers and bools become `float64`.
//! - `sum` of whole numbers and bools is `int64`, of unsigned ones `uint64`; they wrap around.
//! - Comparisons give bool.
//! - Arithmetic of bools is NumPy's: `add` is "or", `mul` is "and"; `sub`, `neg` and `pow` are
//!   refused.

use keyfold_core::{DType, Error, ErrorKind, Result};

use crate::op::Op;

/// The dtype that kernels compute a result of `dtype` in: float32 for the halves, which have no
/// arithmetic of their own.
pub(crate) fn computed(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// The dtype of a result that is floating whatever the argument's.
pub(crate) fn floating(dtype: DType) -> DType {
    match dtype.is_integral() || dtype == DType::Bool {
        true => DType::DEFAULT_FLOAT,
        false => dtype,
    }
}

/// Whether a tensor of `from` may be written into one of `to`: not if the kind gets lost.
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
