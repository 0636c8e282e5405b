//! Which type a float computes in.

use keyfold_core::{Element, bf16, f16};

use crate::math::Real;

/// A float dtype's element: `f32` and `f64` compute as they are, half types in `f32`.
///
/// With it one body, of plain arithmetic and the functions of [`Real`], does for every float dtype.
pub trait Compute: Element {
    /// What it computes in.
    type Real: Real;

    /// The element in that type, exactly.
    fn up(self) -> Self::Real;

    /// The nearest element.
    fn down(value: Self::Real) -> Self;
}

impl Compute for f32 {
    type Real = f32;

    #[inline(always)]
    fn up(self) -> f32 {
        self
    }

    #[inline(always)]
    fn down(value: f32) -> f32 {
        value
    }
}

impl Compute for f64 {
    type Real = f64;

    #[inline(always)]
    fn up(self) -> f64 {
        self
    }

    #[inline(always)]
    fn down(value: f64) -> f64 {
        value
    }
}

impl Compute for f16 {
    type Real = f32;

    #[inline(always)]
    fn up(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn down(value: f32) -> f16 {
        f16::from_f32(value)
    }
}

impl Compute for bf16 {
    type Real = f32;

    #[inline(always)]
    fn up(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn down(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}
