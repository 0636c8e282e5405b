//! Powers, and logarithms in two parts: a power's logarithm needs as many more bits than the result as the
//! result's exponent has.

use std::f64::consts::LOG2_E;

use keyfold_expr::coefficients::{ATANH, LN2, LOG10_E, LOG10_E_SINGLE, TWO_THIRDS};

use super::value::Value;

/// 2/3 and ln 2 in two parts, for float32; the first of ln 2 of 15 bits.
const TWO_THIRDS_SINGLE: [f64; 2] = [0.666_666_686_534_881_6, -1.986_821_492_513_020_8e-8];
const LN2_SINGLE: [f64; 2] = [22_713.0 / 32_768.0, 1.428_606_820_309_417e-6];

/// A number as the sum of two floats.
pub(super) type Two<'g> = (Value<'g>, Value<'g>);

/// `a + b` for `|a| >= |b|`, and its rounding error.
pub(super) fn sum<'g>(a: Value<'g>, b: Value<'g>) -> Two<'g> {
    let high = a + b;
    (high, b - (high - a))
}

/// `a + b`, and its rounding error (D. E. Knuth, "The Art of Computer Programming" 2, 4.2.2).
pub(super) fn sum_and_rest<'g>(a: Value<'g>, b: Value<'g>) -> Two<'g> {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// The product of two numbers of two parts each.
fn times<'g>(a: Two<'g>, b: Two<'g>) -> Two<'g> {
    let (high, low) = a.0.product(b.0);
    (high, low + (a.0 * b.1 + a.1 * b.0))
}

impl<'g> Value<'g> {
    /// The product and its rounding error (T. Dekker, "A floating-point technique for extending the
    /// available precision", 1971).
    pub(super) fn product(self, other: Value<'g>) -> Two<'g> {
        let splitter = if self.is_single() { 4097.0 } else { 134_217_729.0 };
        let halves = |x: Value<'g>| {
            let spread = x * splitter;
            let top = spread - (spread - x);
            (top, x - top)
        };
        let high = self * other;
        let ((a1, a2), (b1, b2)) = (halves(self), halves(other));
        (high, ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2)
    }

    /// A number of two parts, of float64 and of float32.
    fn two_parts(self, double: [f64; 2], single: [f64; 2]) -> Two<'g> {
        let [high, low] = if self.is_single() { single } else { double };
        (self.num(high), self.num(low))
    }

    /// `e ** (t + low)` where that is small beside t: a power of two times the exponential of a number below 1,
    /// so that powers of two are exact.
    fn exp_of_two(self, low: Value<'g>) -> Value<'g> {
        let k = (self * LOG2_E).round();
        let ln2 = self.two_parts(LN2, LN2_SINGLE);
        let rest = ((self - k * ln2.0) - k * ln2.1) + low;
        let near = rest.exp().scaled(k.cast(self.format().whole));
        // Beyond this the result is 0 or infinite, and the low part may be NaN.
        let end = self.num(if self.is_single() { 160.0 } else { 1000.0 });
        self.abs().below(end).choose(near, self.exp())
    }

    /// The natural logarithm of a positive finite number, in two parts.
    fn log_in_two(self) -> Two<'g> {
        let single = self.is_single();
        let (k, m) = self.exponent_and_mantissa();
        let f = m - 1.0;
        // s = f / (m + 1), in two parts.
        let below = m + 1.0;
        let below_low = m - (below - 1.0);
        let inverse = 1.0 / below;
        let s = f * inverse;
        let (back, back_low) = s.product(below);
        let s = (s, (((f - back) - back_low) - s * below_low) * inverse);
        let z = times(s, s);
        let more = z.0 * z.0.polynomial(&ATANH[..if single { 4 } else { 8 }]);
        let two_thirds = self.two_parts(TWO_THIRDS, TWO_THIRDS_SINGLE);
        let (factor, factor_low) = sum(two_thirds.0, more);
        let series = times(z, (factor, factor_low + two_thirds.1));
        let (whole, whole_low) = sum(self.num(2.0), series.0);
        let part = times(s, (whole, whole_low + series.1));
        // |k ln 2| is the greater unless k is 0, and then the sum is exact.
        let ln2 = self.two_parts(LN2, LN2_SINGLE);
        let (high, low) = sum(k * ln2.0, part.0);
        (high, low + (k * ln2.1 + part.1))
    }

    /// The logarithm to base 10, whole at powers of ten.
    pub(super) fn log10(self) -> Value<'g> {
        let (high, low) =
            times(self.log_in_two(), self.two_parts(LOG10_E, LOG10_E_SINGLE.map(f64::from)));
        let normal = self.above(self.num(0.0)) & self.below(self.num(f64::INFINITY));
        normal.choose(high + low, self.log())
    }

    /// `x ** y`: `e ** (y log(x))`, the logarithm and the product in two parts; at special operands as C's
    /// annex F has it.
    pub(super) fn pow(self, y: Value<'g>) -> Value<'g> {
        let (zero, one, infinity) = (self.num(0.0), self.num(1.0), self.num(f64::INFINITY));
        let size = self.abs();
        let (log, low) = size.log_in_two();
        let log = size.below(infinity).choose(log, size);
        let log = size.equals(zero).choose(self.num(f64::NEG_INFINITY), log);
        let (t, t_low) = y.product(log);
        let value = t.exp_of_two(t_low + y * low);
        let value = size.equals(one).choose(one, value);
        let half = y * 0.5;
        let whole = y.floor().equals(y);
        let odd = whole & half.floor().differs(half);
        let rootless = self.below(zero) & self.above(self.num(f64::NEG_INFINITY)) & !whole;
        let value = rootless.choose(self.num(f64::NAN), value);
        let value = (odd & self.is_negative()).choose(-value, value);
        (y.equals(zero) | self.equals(one)).choose(one, value)
    }
}
