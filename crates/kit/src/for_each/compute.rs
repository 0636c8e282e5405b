//! The type that each float dtype is computed in.

use keyfold_core::{Element, bf16, f16};

use crate::math::Real;

/// An element of a float dtype: `f32` and `f64` are computed as they are, half types as `f32`.
///
/// One body of plain arithmetic and the functions of [`Real`] thereby serves every float dtype.
pub trait Compute: Element {
    /// The type of the computation.
    type Real: Real;

    /// Converts the element to that type, exactly.
    fn widen(self) -> Self::Real;

    /// Rounds to the nearest element.
    fn narrow(value: Self::Real) -> Self;
}

impl Compute for f32 {
    type Real = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }
}

impl Compute for f64 {
    type Real = f64;

    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }

    #[inline(always)]
    fn narrow(value: f64) -> f64 {
        value
    }
}

impl Compute for f16 {
    type Real = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(value: f32) -> f16 {
        f16::from_f32(value)
    }
}

impl Compute for bf16 {
    type Real = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}
