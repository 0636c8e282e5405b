//! The type rules: which dtypes a function takes, the dtype it is computed in, and that of its result.

use keyfold_core::{DType, DTypeKind, Error, ErrorKind, Result, Scalar};

use super::types::Type;
use crate::graph::{Binary, Unary};

/// Returns the error of a function that isn't defined for a dtype.
/// [`Lowered::new`](crate::Lowered::new) returns it to callers. Code generators return it for a
/// step that they have no code for, so that a mistake in lowering shows as an error instead of
/// another function's numbers.
#[cold]
pub fn undefined(name: &str, dtype: DType, why: &str) -> Error {
    Error::new(ErrorKind::DType, format!("{name} isn't defined for {dtype}: {why}"))
}

/// Returns the error of a function of bits for uint64 and a signed dtype, which have no integer dtype
/// in common.
#[cold]
fn mixed_signs(name: &str, a: DType, b: DType) -> Error {
    let message = format!(
        "{name} isn't defined for {a} and {b} together: no integer dtype holds the numbers of both; \
         convert one of them first, as x.to(\"{a}\") does"
    );
    Error::new(ErrorKind::DType, message)
}

/// Renames the function in an error of [`undefined`] or [`mixed_signs`]; other errors are unchanged.
#[cold]
pub(super) fn renamed(error: Error, name: &str) -> Error {
    match error.message().split_once(" isn't defined for ") {
        Some((_, rest)) => Error::new(error.kind(), format!("{name} isn't defined for {rest}")),
        None => error,
    }
}

/// Returns the dtype of functions whose result is floating for every operand.
fn floating(ty: Type) -> Type {
    match ty.dtype().kind() {
        DTypeKind::Bool | DTypeKind::UInt | DTypeKind::Int => ty.with(DType::DEFAULT_FLOAT),
        _ => ty,
    }
}

/// The computation of a unary function for an operand's type.
pub(super) enum TypeRule {
    /// The result is the operand, as for integers rounded to integers.
    Same,
    /// The result is this bool for every operand.
    Known(bool),
    /// 0, of the operand's type.
    Zero,
    /// Computed in the first type, with a result of the second.
    Compute(Type, Type),
}

pub(super) fn unary_rule(op: Unary, ty: Type) -> Result<TypeRule> {
    let (dtype, kind) = (ty.dtype(), ty.dtype().kind());
    let name = op.name();
    let no = |why: &str| Err(undefined(name, dtype, why));
    let plain = Ok(TypeRule::Compute(ty, ty));
    let whole = matches!(kind, DTypeKind::Bool | DTypeKind::UInt | DTypeKind::Int);
    match op {
        Unary::Neg if kind == DTypeKind::Bool => no("write ~x for \"not\", or convert it"),
        Unary::Neg => plain,
        Unary::Not if whole => plain,
        Unary::Not => no("it takes bools and whole numbers"),
        Unary::Abs => match kind {
            DTypeKind::Bool | DTypeKind::UInt => Ok(TypeRule::Same),
            _ => Ok(TypeRule::Compute(ty, ty.with(dtype.real()))),
        },
        Unary::Sign if kind == DTypeKind::Bool => Ok(TypeRule::Same),
        Unary::Sign => plain,
        Unary::Conj if kind == DTypeKind::Complex => plain,
        Unary::Real | Unary::Imag if kind == DTypeKind::Complex => {
            Ok(TypeRule::Compute(ty, ty.with(dtype.real())))
        }
        Unary::Conj | Unary::Real => Ok(TypeRule::Same),
        Unary::Imag => Ok(TypeRule::Zero),
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => match kind {
            DTypeKind::Complex => no("complex numbers have no order"),
            DTypeKind::Float => plain,
            _ => Ok(TypeRule::Same),
        },
        Unary::IsNan if whole => Ok(TypeRule::Known(false)),
        Unary::IsFinite if whole => Ok(TypeRule::Known(true)),
        Unary::IsNan | Unary::IsFinite => Ok(TypeRule::Compute(ty, ty.with(DType::Bool))),
        Unary::Expm1 | Unary::Log1p | Unary::Sigmoid | Unary::Erf | Unary::Erfc
            if kind == DTypeKind::Complex =>
        {
            no("it takes real numbers")
        }
        _ => Ok(TypeRule::Compute(floating(ty), floating(ty))),
    }
}

pub(super) fn binary_rule(op: Binary, a: Type, b: Type) -> Result<(Type, Type)> {
    let ty = a.promote_with(b);
    let (dtype, kind) = (ty.dtype(), ty.dtype().kind());
    let no = |why: &str| Err(undefined(op.name(), dtype, why));
    let is_whole = |ty: Type| matches!(ty.dtype().kind(), DTypeKind::UInt | DTypeKind::Int);
    match op {
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr
            if is_whole(a) && is_whole(b) && !is_whole(ty) =>
        {
            Err(mixed_signs(op.name(), a.dtype(), b.dtype()))
        }
        Binary::Add | Binary::Mul => Ok((ty, ty)),
        Binary::Sub if kind == DTypeKind::Bool => {
            no("write a ^ b for \"exclusive or\", or convert")
        }
        Binary::Sub => Ok((ty, ty)),
        Binary::Div => Ok((floating(ty), floating(ty))),
        Binary::FloorDiv | Binary::Mod | Binary::Pow if kind == DTypeKind::Bool => {
            no("convert the operands to whole numbers or floats")
        }
        Binary::FloorDiv | Binary::Mod | Binary::Min | Binary::Max
            if kind == DTypeKind::Complex =>
        {
            no("complex numbers have no order")
        }
        Binary::FloorDiv | Binary::Mod | Binary::Pow | Binary::Min | Binary::Max => Ok((ty, ty)),
        Binary::Eq | Binary::Ne => Ok((ty, ty.with(DType::Bool))),
        Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => match kind {
            DTypeKind::Complex => no("complex numbers have no order"),
            _ => Ok((ty, ty.with(DType::Bool))),
        },
        Binary::And | Binary::Or | Binary::Xor => match kind {
            DTypeKind::Float | DTypeKind::Complex => no("it takes bools and whole numbers"),
            _ => Ok((ty, ty)),
        },
        Binary::Shl | Binary::Shr => match kind {
            DTypeKind::UInt | DTypeKind::Int => Ok((ty, ty)),
            _ => no("it takes whole numbers"),
        },
    }
}

/// Returns the exponent 1, 2 or 3 of a power that takes at most two products.
pub(super) fn small_power(number: Scalar) -> Option<u32> {
    let value = number.as_f64();
    [1, 2, 3]
        .into_iter()
        .find(|&power| f64::from(power) == value && !matches!(number, Scalar::Complex(_)))
}
