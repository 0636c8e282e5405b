//! Element types: their arithmetic, and their bits.

use std::ops::{Add, Mul};

use crate::bits::Bits;
use keyfold_core::{Complex, bf16, f16};

/// Numbers that are added and multiplied.
///
/// Numbers are stored as themselves, bools as bytes: memory of other libraries may have bytes other than
/// 0 and 1, which count as true, but which Rust's `bool` must not hold.
pub(crate) trait Number: Copy + Send + Sync + 'static {
    type Stored: Bits;
    const ZERO: Self;

    fn load(stored: Self::Stored) -> Self;
    fn store(self) -> Self::Stored;

    /// The sum; integers wrap, and for bools it is "or".
    fn add(self, other: Self) -> Self;
    /// The product; integers wrap, and for bools it is "and".
    fn mul(self, other: Self) -> Self;
}

macro_rules! number {
    // A macro, since no trait of the standard library covers both wrapping and plain arithmetic.
    ($($type:ty, $zero:expr, $add:expr, $mul:expr;)*) => {$(
        impl Number for $type {
            type Stored = $type;
            const ZERO: Self = $zero;

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
                $add(self, other)
            }
            #[inline]
            fn mul(self, other: Self) -> Self {
                $mul(self, other)
            }
        }
    )*};
}

number! {
    u8, 0, u8::wrapping_add, u8::wrapping_mul;
    u16, 0, u16::wrapping_add, u16::wrapping_mul;
    u32, 0, u32::wrapping_add, u32::wrapping_mul;
    u64, 0, u64::wrapping_add, u64::wrapping_mul;
    f32, 0.0, Add::add, Mul::mul;
    f64, 0.0, Add::add, Mul::mul;
    Complex<f32>, Complex::new(0.0, 0.0), Add::add, Mul::mul;
    Complex<f64>, Complex::new(0.0, 0.0), Add::add, Mul::mul;
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

/// An element type as bits of its size, so that one kernel moves all element types of that size.
///
/// # Safety
/// `Bits` has the size and the alignment of the type.
pub(crate) unsafe trait HasBits: Copy + 'static {
    type Bits: Bits;
}

/// An element type with arithmetic. Signed integers wrap like unsigned ones of their size, so they share
/// the unsigned type's arithmetic.
pub(crate) trait HasNumber: HasBits {
    type Number: Number;
}

macro_rules! elements {
    // A macro, since the fifteen types share nothing that a function could compute.
    ($($type:ty: $bits:ty $(, $number:ty)?;)*) => {$(
        // SAFETY: size and alignment are those of the bits beside it.
        unsafe impl HasBits for $type {
            type Bits = $bits;
        }
        $(impl HasNumber for $type {
            type Number = $number;
        })?
    )*};
}

elements! {
    bool: u8, bool;
    u8: u8, u8;
    i8: u8, u8;
    u16: u16, u16;
    i16: u16, u16;
    u32: u32, u32;
    i32: u32, u32;
    u64: u64, u64;
    i64: u64, u64;
    f16: u16;
    bf16: u16;
    f32: u32, f32;
    f64: u64, f64;
    Complex<f32>: [u32; 2], Complex<f32>;
    Complex<f64>: [u64; 2], Complex<f64>;
}
