//! Weak and strong types of values: plain numbers and dtypes.

use keyfold_core::{DType, DTypeKind, Scalar};

/// A strong dtype, or the kind of a weak number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Type {
    Strong(DType),
    /// A placeholder of the kind.
    Weak(Scalar),
}

impl Type {
    /// Returns the dtype, for a weak number its default.
    pub(super) fn dtype(self) -> DType {
        match self {
            Type::Strong(dtype) => dtype,
            Type::Weak(number) => number.dtype(),
        }
    }

    pub(super) fn is_weak(self) -> bool {
        matches!(self, Type::Weak(_))
    }

    /// Returns a type of another dtype and the same strength.
    pub(super) fn with(self, dtype: DType) -> Type {
        match self {
            Type::Strong(_) => Type::Strong(dtype),
            Type::Weak(_) => Type::Weak(placeholder(dtype.kind())),
        }
    }

    /// Returns the promoted type of two operands.
    pub(super) fn promote_with(self, other: Type) -> Type {
        match (self, other) {
            (Type::Strong(a), Type::Strong(b)) => Type::Strong(a.promote(b)),
            (Type::Strong(a), Type::Weak(b)) | (Type::Weak(b), Type::Strong(a)) => {
                Type::Strong(a.promote_scalar(b))
            }
            (Type::Weak(a), Type::Weak(b)) => {
                Type::Weak(placeholder(a.dtype().promote_scalar(b).kind()))
            }
        }
    }
}

/// Returns a placeholder number of that kind, whose value has no meaning.
pub(super) fn placeholder(kind: DTypeKind) -> Scalar {
    match kind {
        DTypeKind::Bool => Scalar::Bool(false),
        DTypeKind::UInt | DTypeKind::Int => Scalar::Int(0),
        DTypeKind::Float => Scalar::Float(0.0),
        DTypeKind::Complex => Scalar::Complex(Default::default()),
    }
}

/// Returns the dtype that elements of `dtype` are computed in: float32 for the halves.
#[inline]
pub fn computed(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}
