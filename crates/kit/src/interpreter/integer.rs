//! Integer operations with the same semantics for every width.

/// An integer: everything wraps, division rounds down, and a divisor of 0 gives 0.
pub(crate) trait Integer: Copy + PartialOrd + 'static {
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
    // A macro, since the standard library has no trait for integers.
    ($($signed:ident $unsigned:ident;)*) => {$(
        impl Integer for $signed {
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
        impl Integer for $unsigned {
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
