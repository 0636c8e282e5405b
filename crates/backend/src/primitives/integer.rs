//! Functions of integers: arithmetic wraps, division rounds down and returns 0 for divisor 0.

use keyfold_core::DTypeKind;

use super::NEGATIVE_POWER;
use super::value::Value;

impl<'g> Value<'g> {
    fn is_signed(self) -> bool {
        self.dtype.kind() == DTypeKind::Int
    }

    fn width(self) -> i64 {
        8 * self.dtype.size() as i64
    }

    pub(super) fn integer_abs(self) -> Value<'g> {
        match self.is_signed() {
            true => self.below(self.int(0)).choose(-self, self),
            false => self,
        }
    }

    pub(super) fn integer_sign(self) -> Value<'g> {
        let zero = self.int(0);
        let above = self.equals(zero).choose(zero, self.int(1));
        match self.is_signed() {
            true => self.below(zero).choose(self.int(-1), above),
            false => above,
        }
    }

    /// Returns the quotient, the remainder, and whether the quotient was rounded up.
    fn divided(self, b: Value<'g>) -> (Value<'g>, Value<'g>, Value<'g>) {
        let zero = self.int(0);
        let quotient = self / b;
        let rest = self - quotient * b;
        let up = match self.is_signed() {
            true => rest.not_equal(zero) & (rest.below(zero) ^ b.below(zero)),
            false => self.bool_constant(false),
        };
        (quotient, rest, up)
    }

    pub(super) fn integer_floor_divide(self, b: Value<'g>) -> Value<'g> {
        let (quotient, _, up) = self.divided(b);
        if !self.is_signed() {
            return quotient;
        }
        let zero = self.int(0);
        b.equals(zero).choose(zero, up.choose(quotient - self.int(1), quotient))
    }

    pub(super) fn integer_remainder(self, b: Value<'g>) -> Value<'g> {
        let (_, rest, up) = self.divided(b);
        let value = if self.is_signed() { up.choose(rest + b, rest) } else { rest };
        let zero = self.int(0);
        b.equals(zero).choose(zero, value)
    }

    /// Returns the power by repeated squaring; a negative exponent is a fault.
    pub(super) fn integer_pow(self, exponent: Value<'g>) -> Value<'g> {
        let (zero, one) = (self.int(0), self.int(1));
        let exponent = match self.is_signed() {
            true => (!exponent.below(zero)).checked(NEGATIVE_POWER).choose(exponent, zero),
            false => exponent,
        };
        let (mut square, mut result) = (self, one);
        let bits = self.width() - i64::from(self.is_signed());
        for bit in 0..bits {
            let unset = (exponent & self.int(1 << bit)).equals(zero);
            result = unset.choose(result, result * square);
            if bit + 1 < bits {
                square = square * square;
            }
        }
        result
    }

    /// Returns whether a shift count is from 0 to the width less 1.
    fn is_shift(self) -> Value<'g> {
        let inside = self.below(self.int(self.width()));
        match self.is_signed() {
            true => inside & !self.below(self.int(0)),
            false => inside,
        }
    }

    /// Shifts left; 0 for counts out of range.
    pub(super) fn shifted_left(self, by: Value<'g>) -> Value<'g> {
        let (inside, zero) = (by.is_shift(), self.int(0));
        inside.choose(self.shift_left(inside.choose(by, zero)), zero)
    }

    /// Shifts right; all bits the sign's for counts out of range.
    pub(super) fn shifted_right(self, by: Value<'g>) -> Value<'g> {
        let inside = by.is_shift();
        let value = self.shift_right(inside.choose(by, self.int(self.width() - 1)));
        if self.is_signed() { value } else { inside.choose(value, self.int(0)) }
    }
}
