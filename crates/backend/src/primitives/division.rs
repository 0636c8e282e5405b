//! Floor division of floats and its remainder, as in Python: exact for quotients of any size.
//!
//! With integer mantissas, `a = ma 2^i` and `b = mb 2^j` have the remainder `(ma 2^(i - j) mod mb)
//! 2^j`. The power of two modulo mb is computed by repeated squaring.

use super::value::Value;

impl<'g> Value<'g> {
    /// Returns `a - a / m * m` of integers.
    fn modulo(self, m: Value<'g>) -> Value<'g> {
        self - (self / m) * m
    }

    /// Returns `x y mod m` of integers from 0 to m. The quotient is computed in floats of the same
    /// width with an error below 3; the difference is exact modulo the width.
    fn times_modulo(self, y: Value<'g>, m: Value<'g>, float: keyfold_core::DType) -> Value<'g> {
        let quotient = (self.cast(float) * y.cast(float) / m.cast(float)).cast(self.dtype);
        let rest = (self * y - quotient * m).modulo(m);
        rest.below(rest.int(0)).choose(rest + m, rest)
    }

    /// Returns the stored mantissa and exponent of a nonnegative number; subnormal numbers have the
    /// exponent of the smallest normal ones.
    fn stored_parts(self) -> (Value<'g>, Value<'g>) {
        let mantissa = self.format().mantissa;
        let bits = self.bits();
        let exponent = bits.shift_right(bits.int(mantissa));
        let fraction = bits & bits.int((1 << mantissa) - 1);
        let subnormal = exponent.equals(bits.int(0));
        let whole = subnormal.choose(fraction, fraction | bits.int(1 << mantissa));
        (whole, subnormal.choose(bits.int(1), exponent))
    }

    /// Returns `a mod b` of finite nonnegative numbers.
    fn modulo_nonnegative(self, b: Value<'g>) -> Value<'g> {
        let format = self.format();
        let ((m, i), (n, j)) = (self.stored_parts(), b.stored_parts());
        let (zero, one) = (m.int(0), m.int(1));
        let distance = i - j;
        let distance = distance.below(zero).choose(zero, distance);
        // The exponent's leading bits in one shift, the others one by one.
        let rounds = if self.is_single() { 4 } else { 6 };
        let mut power = one.shift_left(distance.shift_right(m.int(rounds))).modulo(n);
        for bit in (0..rounds).rev() {
            power = power.times_modulo(power, n, self.dtype);
            let twice = power + power;
            let twice = twice.below(n).choose(twice, twice - n);
            power = (distance & m.int(1 << bit)).equals(zero).choose(power, twice);
        }
        let rest = m.modulo(n).times_modulo(power, n, self.dtype);
        let value = rest.cast(self.dtype).scaled(j - m.int(format.bias + format.mantissa));
        self.below(b).choose(self, value)
    }

    /// Returns C's fmod: the remainder of the truncated quotient, with the sign of `a`.
    fn fmod(self, b: Value<'g>) -> Value<'g> {
        let value = self.abs().modulo_nonnegative(b.abs()).copysign(self);
        let value = b.is_infinite().choose(self, value);
        let defined = self.is_finite() & b.not_equal(self.num(0.0)) & !b.is_nan();
        defined.choose(value, self.num(f64::NAN))
    }

    /// Returns whether remainder and divisor have different signs, so that the quotient has to be
    /// rounded down.
    fn rounded_up(self, b: Value<'g>) -> Value<'g> {
        let zero = self.num(0.0);
        self.not_equal(zero) & !self.is_nan() & (self.below(zero) ^ b.below(zero))
    }

    /// Returns the remainder, with the divisor's sign.
    pub(super) fn remainder(self, b: Value<'g>) -> Value<'g> {
        let rest = self.fmod(b);
        let value = rest.rounded_up(b).choose(rest + b, rest);
        let zero = self.num(0.0);
        rest.equals(zero).choose(zero.copysign(b), value)
    }

    /// Returns the quotient rounded down, so that `a == quotient * b + remainder` up to rounding.
    pub(super) fn floor_divide(self, b: Value<'g>) -> Value<'g> {
        let zero = self.num(0.0);
        let rest = self.fmod(b);
        let quotient = (self - rest) / b;
        let quotient = rest.rounded_up(b).choose(quotient - 1.0, quotient);
        let down = quotient.floor();
        let near = (quotient - down).above(self.num(0.5)).choose(down + 1.0, down);
        let near = quotient.equals(zero).choose(zero.copysign(self / b), near);
        b.equals(zero).choose(self / b, near)
    }
}
