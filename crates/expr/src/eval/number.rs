//! What whole numbers and floats can do, the same for every width.

use keyfold_core::Complex;

/// Whole numbers: everything wraps, division rounds down and gives 0 for a divisor of 0.
pub(crate) trait Whole: Copy + PartialOrd + 'static {
    fn floor_div(self, other: Self) -> Self;
    fn modulo(self, other: Self) -> Self;
    /// The power, and whether the exponent was negative.
    fn power(self, exponent: Self) -> (Self, bool);
    fn shift_left(self, by: Self) -> Self;
    fn shift_right(self, by: Self) -> Self;
    fn sign(self) -> Self;
    fn absolute(self) -> Self;
}

macro_rules! whole {
    // A macro, since the standard library has no trait for whole numbers.
    ($($signed:ident $unsigned:ident;)*) => {$(
        impl Whole for $signed {
            #[inline(always)]
            fn floor_div(self, other: Self) -> Self {
                if other == 0 {
                    return 0;
                }
                let quotient = self.wrapping_div(other);
                let rest = self.wrapping_rem(other);
                quotient.wrapping_sub(Self::from(rest != 0 && (rest < 0) != (other < 0)))
            }
            #[inline(always)]
            fn modulo(self, other: Self) -> Self {
                if other == 0 {
                    return 0;
                }
                let rest = self.wrapping_rem(other);
                if rest != 0 && (rest < 0) != (other < 0) { rest.wrapping_add(other) } else { rest }
            }
            #[inline(always)]
            fn power(self, exponent: Self) -> (Self, bool) {
                if exponent < 0 {
                    return (0, true);
                }
                ((self as $unsigned).power(exponent as $unsigned).0 as $signed, false)
            }
            #[inline(always)]
            fn shift_left(self, by: Self) -> Self {
                (self as $unsigned).shift_left(by as $unsigned) as $signed
            }
            #[inline(always)]
            fn shift_right(self, by: Self) -> Self {
                self >> (by as $unsigned).min($signed::BITS as $unsigned - 1)
            }
            #[inline(always)]
            fn sign(self) -> Self {
                Self::from(self > 0) - Self::from(self < 0)
            }
            #[inline(always)]
            fn absolute(self) -> Self {
                self.wrapping_abs()
            }
        }
        impl Whole for $unsigned {
            #[inline(always)]
            fn floor_div(self, other: Self) -> Self {
                self.checked_div(other).unwrap_or(0)
            }
            #[inline(always)]
            fn modulo(self, other: Self) -> Self {
                self.checked_rem(other).unwrap_or(0)
            }
            #[inline(always)]
            fn power(self, exponent: Self) -> (Self, bool) {
                let (mut base, mut left, mut result) = (self, exponent, 1 as $unsigned);
                while left != 0 {
                    if left & 1 == 1 {
                        result = result.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    left >>= 1;
                }
                (result, false)
            }
            #[inline(always)]
            fn shift_left(self, by: Self) -> Self {
                let inside = self << (by & ($unsigned::BITS as $unsigned - 1));
                if by < $unsigned::BITS as $unsigned { inside } else { 0 }
            }
            #[inline(always)]
            fn shift_right(self, by: Self) -> Self {
                let inside = self >> (by & ($unsigned::BITS as $unsigned - 1));
                if by < $unsigned::BITS as $unsigned { inside } else { 0 }
            }
            #[inline(always)]
            fn sign(self) -> Self {
                Self::from(self != 0)
            }
            #[inline(always)]
            fn absolute(self) -> Self {
                self
            }
        }
    )*};
}

whole! {
    i8 u8;
    i16 u16;
    i32 u32;
    i64 u64;
}

/// What the operators need of floats beyond the functions of [`crate::math`].
pub(crate) trait Floating: Copy + 'static {
    fn floor_div(self, other: Self) -> Self;
    fn modulo(self, other: Self) -> Self;
}

macro_rules! floating {
    ($($float:ident)*) => {$(
        impl Floating for $float {
            // As Python's floats: the quotient that goes with the remainder of the divisor's sign.
            #[inline(always)]
            fn floor_div(self, other: Self) -> Self {
                if other == 0.0 {
                    return self / other;
                }
                let rest = self % other;
                let mut quotient = (self - rest) / other;
                if rest != 0.0 && (rest < 0.0) != (other < 0.0) {
                    quotient -= 1.0;
                }
                if quotient == 0.0 {
                    return (0.0 as $float).copysign(self / other);
                }
                let floor = quotient.floor();
                if quotient - floor > 0.5 { floor + 1.0 } else { floor }
            }
            #[inline(always)]
            fn modulo(self, other: Self) -> Self {
                let rest = self % other;
                if rest == 0.0 {
                    return (0.0 as $float).copysign(other);
                }
                if (rest < 0.0) != (other < 0.0) { rest + other } else { rest }
            }
        }
    )*};
}

floating! { f32 f64 }

/// Anything that can be converted by `as`, complex numbers included.
pub(crate) trait Convert<R>: Copy + 'static {
    fn convert(self) -> R;
}

macro_rules! convert {
    // A macro, since no trait offers `as`.
    ($($from:ident => $($to:ident)*;)*) => {$($(
        impl Convert<$to> for $from {
            #[inline(always)]
            fn convert(self) -> $to {
                self as $to
            }
        }
    )*
        impl Convert<Complex<f32>> for $from {
            #[inline(always)]
            fn convert(self) -> Complex<f32> {
                Complex::new(self as f32, 0.0)
            }
        }
        impl Convert<Complex<f64>> for $from {
            #[inline(always)]
            fn convert(self) -> Complex<f64> {
                Complex::new(self as f64, 0.0)
            }
        }
    )*};
}

convert! {
    u8 => u8 u16 u32 u64 f32 f64;
    u16 => u8 u16 u32 u64 f32 f64;
    u32 => u8 u16 u32 u64 f32 f64;
    u64 => u8 u16 u32 u64 f32 f64;
    i8 => u8 u16 u32 u64 f32 f64;
    i16 => u8 u16 u32 u64 f32 f64;
    i32 => u8 u16 u32 u64 f32 f64;
    i64 => u8 u16 u32 u64 f32 f64;
    f32 => u8 u16 u32 u64 i8 i16 i32 i64 f32 f64;
    f64 => u8 u16 u32 u64 i8 i16 i32 i64 f32 f64;
}
