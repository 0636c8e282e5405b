//! Floor division of floats and its remainder: as Python's, exact for quotients of every size.
//!
//! With mantissas m as whole numbers, `a = ma 2^i` and `b = mb 2^j` leave `(ma 2^(i - j) mod mb) 2^j`. The
//! power of two modulo mb is found by squaring.

use super::value::Value;

impl<'g> Value<'g> {
    /// `a - a / m * m` of whole numbers.
    fn rest(self, m: Value<'g>) -> Value<'g> {
        self - (self / m) * m
    }

    /// `x y mod m` of whole numbers from 0 to m. The quotient comes from floats of the same width, whose
    /// error is less than 3; the difference is exact modulo the width.
    fn times_modulo(self, y: Value<'g>, m: Value<'g>, float: keyfold_core::DType) -> Value<'g> {
        let quotient = (self.cast(float) * y.cast(float) / m.cast(float)).cast(self.dtype);
        let rest = (self * y - quotient * m).rest(m);
        rest.below(rest.int(0)).choose(rest + m, rest)
    }

    /// The mantissa and the exponent, as they are stored, of a number that isn't negative; those of
    /// subnormal numbers are as those of the smallest normal ones.
    fn stored_parts(self) -> (Value<'g>, Value<'g>) {
        let mantissa = self.format().mantissa;
        let bits = self.bits();
        let exponent = bits.shift_right(bits.int(mantissa));
        let fraction = bits & bits.int((1 << mantissa) - 1);
        let subnormal = exponent.equals(bits.int(0));
        let whole = subnormal.choose(fraction, fraction | bits.int(1 << mantissa));
        (whole, subnormal.choose(bits.int(1), exponent))
    }

    /// `a mod b` of finite numbers that aren't negative.
    fn modulo_of_sizes(self, b: Value<'g>) -> Value<'g> {
        let format = self.format();
        let ((m, i), (n, j)) = (self.stored_parts(), b.stored_parts());
        let (zero, one) = (m.int(0), m.int(1));
        let distance = i - j;
        let distance = distance.below(zero).choose(zero, distance);
        // The exponent's first bits at once, as many as a shift can be; the others one by one.
        let rounds = if self.is_single() { 4 } else { 6 };
        let mut power = one.shift_left(distance.shift_right(m.int(rounds))).rest(n);
        for bit in (0..rounds).rev() {
            power = power.times_modulo(power, n, self.dtype);
            let twice = power + power;
            let twice = twice.below(n).choose(twice, twice - n);
            power = (distance & m.int(1 << bit)).equals(zero).choose(power, twice);
        }
        let rest = m.rest(n).times_modulo(power, n, self.dtype);
        let value = rest.cast(self.dtype).scaled(j - m.int(format.bias + format.mantissa));
        self.below(b).choose(self, value)
    }

    /// As C's fmod: the remainder of the truncated quotient, with the sign of `a`.
    fn fmod(self, b: Value<'g>) -> Value<'g> {
        let value = self.abs().modulo_of_sizes(b.abs()).copysign(self);
        let value = b.is_infinite().choose(self, value);
        let defined = self.is_finite() & b.differs(self.num(0.0)) & !b.is_nan();
        defined.choose(value, self.num(f64::NAN))
    }

    /// Whether a rest and a divisor have other signs, so that the quotient was rounded up.
    fn rounded_up(self, b: Value<'g>) -> Value<'g> {
        let zero = self.num(0.0);
        self.differs(zero) & !self.is_nan() & (self.below(zero) ^ b.below(zero))
    }

    /// The remainder, with the divisor's sign.
    pub(super) fn remainder(self, b: Value<'g>) -> Value<'g> {
        let rest = self.fmod(b);
        let value = rest.rounded_up(b).choose(rest + b, rest);
        let zero = self.num(0.0);
        rest.equals(zero).choose(zero.copysign(b), value)
    }

    /// The quotient rounded down, so that `a == quotient * b + remainder` as far as floats go.
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
