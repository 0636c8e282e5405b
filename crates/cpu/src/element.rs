//! What kernels ask of an element type.

use keyfold_core::{Element, bf16, f16};

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
}

macro_rules! float {
    // Both floats, since no trait of the standard library has these methods.
    ($type:ident) => {
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
        }
    };
}

float!(f32);
float!(f64);

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
}

/// An element type whose elements are moved.
pub(crate) trait Moved: Element {
    /// As they are stored: see [`Number`].
    type Stored: Element;
}

impl Moved for bool {
    type Stored = u8;
}

impl Moved for f16 {
    type Stored = f16;
}

impl Moved for bf16 {
    type Stored = bf16;
}

impl Moved for f32 {
    type Stored = f32;
}

impl Moved for f64 {
    type Stored = f64;
}

impl Moved for i64 {
    type Stored = i64;
}
