//! What kernels ask of an element type.

use keyfold_core::{DType, Element};

/// An element type that kernels are written for.
///
/// Elements are stored as themselves, bools as bytes: memory from other libraries may hold bytes
/// other than 0 and 1, which all count as true, and which Rust's `bool` mustn't see.
pub(crate) trait Number: Element {
    type Stored: Element;
    const ZERO: Self;

    fn load(stored: Self::Stored) -> Self;
    fn store(self) -> Self::Stored;

    /// Whole numbers wrap around; for bools it is "or".
    fn add(self, other: Self) -> Self;
    /// Whole numbers wrap around; for bools it is "and".
    fn mul(self, other: Self) -> Self;

    /// The conversion that the target's [`Number::from_number`] picks from.
    fn to_i64(self) -> i64;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn is_nonzero(self) -> bool;
    /// Converts as Rust's `as` does: floats to whole numbers truncate and saturate.
    fn from_number<N: Number>(number: N) -> Self;
}

macro_rules! float {
    // Both floats, since no trait of the standard library has these methods.
    ($type:ident, $other:ident, $to_other:ident, $to_self:ident) => {
        impl Number for $type {
            type Stored = $type;
            const ZERO: Self = 0.0;

            #[inline]
            fn load(stored: Self) -> Self {
                stored
            }
            #[inline]
            fn store(self) -> Self {
                self
            }
            #[inline]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline]
            fn $to_self(self) -> $type {
                self
            }
            #[inline]
            fn $to_other(self) -> $other {
                self as $other
            }
            #[inline]
            fn is_nonzero(self) -> bool {
                self != 0.0
            }
            #[inline]
            fn from_number<N: Number>(number: N) -> Self {
                number.$to_self()
            }
        }
    };
}

float!(f32, f64, to_f64, to_f32);
float!(f64, f32, to_f32, to_f64);

impl Number for i64 {
    type Stored = i64;
    const ZERO: Self = 0;

    #[inline]
    fn load(stored: i64) -> Self {
        stored
    }
    #[inline]
    fn store(self) -> i64 {
        self
    }
    #[inline]
    fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline]
    fn mul(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
    #[inline]
    fn to_i64(self) -> i64 {
        self
    }
    #[inline]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[inline]
    fn to_f64(self) -> f64 {
        self as f64
    }
    #[inline]
    fn is_nonzero(self) -> bool {
        self != 0
    }
    #[inline]
    fn from_number<N: Number>(number: N) -> Self {
        number.to_i64()
    }
}

impl Number for bool {
    type Stored = u8;
    const ZERO: Self = false;

    #[inline]
    fn load(stored: u8) -> Self {
        stored != 0
    }
    #[inline]
    fn store(self) -> u8 {
        u8::from(self)
    }
    #[inline]
    fn add(self, other: Self) -> Self {
        self | other
    }
    #[inline]
    fn mul(self, other: Self) -> Self {
        self & other
    }
    #[inline]
    fn to_i64(self) -> i64 {
        i64::from(self)
    }
    #[inline]
    fn to_f32(self) -> f32 {
        f32::from(u8::from(self))
    }
    #[inline]
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
    #[inline]
    fn is_nonzero(self) -> bool {
        self
    }
    #[inline]
    fn from_number<N: Number>(number: N) -> Self {
        number.is_nonzero()
    }
}

/// The dtypes that kernels take. The halves are computed in float32, see `promote::computed`.
pub(crate) const SUPPORTED: [DType; 6] =
    [DType::F16, DType::BF16, DType::F32, DType::F64, DType::I64, DType::Bool];

/// Runs the body with `$t` standing for the dtype's element type: of all that kernels compute in, of
/// the signed ones, or (as stored) of all whose elements are moved. A macro, since closures can't be generic. Ends the function with
/// the operator's error for any other dtype.
macro_rules! for_dtype {
    (all: $op:expr, $dtype:expr, $t:ident => $body:expr) => {
        $crate::element::for_dtype!(@ $op, $dtype, $t => $body; F32 f32, F64 f64, I64 i64, Bool bool)
    };
    (signed: $op:expr, $dtype:expr, $t:ident => $body:expr) => {
        $crate::element::for_dtype!(@ $op, $dtype, $t => $body; F32 f32, F64 f64, I64 i64)
    };
    (stored: $op:expr, $dtype:expr, $t:ident => $body:expr) => {
        $crate::element::for_dtype!(@ $op, $dtype, $t => $body; F32 f32, F64 f64, I64 i64, Bool u8,
            F16 ::keyfold_core::f16, BF16 ::keyfold_core::bf16)
    };
    (@ $op:expr, $dtype:expr, $t:ident => $body:expr; $($name:ident $type:ty),*) => {
        match $dtype {
            $(::keyfold_core::DType::$name => {
                type $t = $type;
                $body
            })*
            other => return Err($op.unsupported("self", other, &[$(::keyfold_core::DType::$name),*])),
        }
    };
}

pub(crate) use for_dtype;
