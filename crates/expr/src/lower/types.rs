//! Weak and strong types: what a plain number is, and what becomes of it where it meets a dtype.

use keyfold_core::{DType, DTypeKind, Scalar};

/// A dtype that is settled, or a number's kind that isn't yet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Type {
    Strong(DType),
    /// A stand-in of the kind.
    Weak(Scalar),
}

impl Type {
    /// The dtype that it is, or becomes where nothing else is said.
    pub(super) fn dtype(self) -> DType {
        match self {
            Type::Strong(dtype) => dtype,
            Type::Weak(number) => number.dtype(),
        }
    }

    pub(super) fn is_weak(self) -> bool {
        matches!(self, Type::Weak(_))
    }

    /// The same strength with another dtype.
    pub(super) fn with(self, dtype: DType) -> Type {
        match self {
            Type::Strong(_) => Type::Strong(dtype),
            Type::Weak(_) => Type::Weak(stand_in(dtype.kind())),
        }
    }

    /// What a mixture is.
    pub(super) fn mix(self, other: Type) -> Type {
        match (self, other) {
            (Type::Strong(a), Type::Strong(b)) => Type::Strong(a.promote(b)),
            (Type::Strong(a), Type::Weak(b)) | (Type::Weak(b), Type::Strong(a)) => {
                Type::Strong(a.promote_scalar(b))
            }
            (Type::Weak(a), Type::Weak(b)) => {
                Type::Weak(stand_in(a.dtype().promote_scalar(b).kind()))
            }
        }
    }
}

/// A number of that kind; its value means nothing.
pub(super) fn stand_in(kind: DTypeKind) -> Scalar {
    match kind {
        DTypeKind::Bool => Scalar::Bool(false),
        DTypeKind::UInt | DTypeKind::Int => Scalar::Int(0),
        DTypeKind::Float => Scalar::Float(0.0),
        DTypeKind::Complex => Scalar::Complex(Default::default()),
    }
}

/// The dtype that elements of `dtype` are computed in: float32 for the halves.
#[inline]
pub fn computed(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}
