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

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_tensor::Tensor;

use crate::map::cast;
use crate::op::Op;

/// The dtypes that products, random numbers and operations at positions take.
const SUPPORTED: [DType; 6] =
    [DType::F16, DType::BF16, DType::F32, DType::F64, DType::I64, DType::Bool];

/// What stands for an array in an operator: one, or a plain number.
#[derive(Clone, Copy)]
pub(crate) enum Operand<'a> {
    Tensor(&'a Tensor),
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl From<Scalar> for Operand<'_> {
    fn from(scalar: Scalar) -> Self {
        Operand::Scalar(scalar)
    }
}

/// Refuses a dtype of argument `self` that no kernel here takes.
pub(crate) fn check_supported(op: &Op, dtype: DType) -> Result<()> {
    check_argument(op, "self", dtype)
}

/// Refuses a dtype that no kernel here takes.
pub(crate) fn check_argument(op: &Op, argument: &str, dtype: DType) -> Result<()> {
    if SUPPORTED.contains(&dtype) {
        Ok(())
    } else {
        Err(op.unsupported(argument, dtype, &SUPPORTED))
    }
}

/// The dtype in which an operator of two operands computes.
///
/// # Errors
/// [`ErrorKind::DType`] for a dtype that isn't supported, [`ErrorKind::Value`] for a whole number
/// that the dtype can't hold.
pub(crate) fn common(op: &Op, a: Operand<'_>, b: Operand<'_>) -> Result<DType> {
    common_of(op, a, "other", b)
}

/// As [`common`], where the second argument has another name.
pub(crate) fn common_of(op: &Op, a: Operand<'_>, second: &str, b: Operand<'_>) -> Result<DType> {
    for (name, operand) in [("self", a), (second, b)] {
        if let Operand::Tensor(tensor) = operand {
            check_argument(op, name, tensor.dtype())?;
        }
    }
    let dtype = match (a, b) {
        (Operand::Tensor(a), Operand::Tensor(b)) => a.dtype().promote(b.dtype()),
        (Operand::Tensor(t), Operand::Scalar(s)) | (Operand::Scalar(s), Operand::Tensor(t)) => {
            t.dtype().promote_scalar(s)
        }
        (Operand::Scalar(a), Operand::Scalar(b)) => a.dtype().promote_scalar(b),
    };
    check_supported(op, dtype)?;
    for operand in [a, b] {
        if let Operand::Scalar(scalar) = operand {
            op.at(scalar.check(dtype))?;
        }
    }
    Ok(dtype)
}

/// The dtype that kernels compute a result of `dtype` in: float32 for the halves, which have no
/// arithmetic of their own. The result is rounded once, by [`rounded`].
pub(crate) fn computed(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// A result in the dtype that it should have, after it was computed in [`computed`]'s.
pub(crate) fn rounded(op: &Op, out: Tensor, dtype: DType) -> Result<Tensor> {
    if out.dtype() == dtype { Ok(out) } else { cast(op, &out, dtype) }
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
