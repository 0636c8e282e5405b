//! Powers, with logarithms in double-float arithmetic: the logarithm of a power needs additional
//! bits, as many as the result's exponent has.

use std::f64::consts::LOG2_E;

use keyfold_expr::coefficients::{ATANH, LN2, LOG10_E, LOG10_E_SINGLE, TWO_THIRDS};

use super::value::Value;

/// 2/3 and ln 2 as double-floats of float32; the high part of ln 2 has 15 bits.
const TWO_THIRDS_SINGLE: [f64; 2] = [0.666_666_686_534_881_6, -1.986_821_492_513_020_8e-8];
const LN2_SINGLE: [f64; 2] = [22_713.0 / 32_768.0, 1.428_606_820_309_417e-6];

/// A number as the unevaluated sum of two floats (double-float).
pub(super) type DoubleFloat<'g> = (Value<'g>, Value<'g>);

/// Returns `a + b` for `|a| >= |b|`, and its rounding error.
pub(super) fn fast_two_sum<'g>(a: Value<'g>, b: Value<'g>) -> DoubleFloat<'g> {
    let high = a + b;
    (high, b - (high - a))
}

/// Returns `a + b` and its rounding error (D. E. Knuth, "The Art of Computer Programming" 2,
/// 4.2.2).
pub(super) fn two_sum<'g>(a: Value<'g>, b: Value<'g>) -> DoubleFloat<'g> {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// Returns the product of two double-floats.
fn double_product<'g>(a: DoubleFloat<'g>, b: DoubleFloat<'g>) -> DoubleFloat<'g> {
    let (high, low) = a.0.two_product(b.0);
    (high, low + (a.0 * b.1 + a.1 * b.0))
}

impl<'g> Value<'g> {
    /// Returns the product and its rounding error (T. Dekker, "A floating-point technique for
    /// extending the available precision", 1971).
    pub(super) fn two_product(self, other: Value<'g>) -> DoubleFloat<'g> {
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

    /// Returns a double-float constant: of float64, or of float32.
    fn double_constant(self, double: [f64; 2], single: [f64; 2]) -> DoubleFloat<'g> {
        let [high, low] = if self.is_single() { single } else { double };
        (self.num(high), self.num(low))
    }

    /// Returns `e ** (t + low)`, with `low` small relative to t: a power of two times the
    /// exponential of a number below 1, so that powers of two are exact.
    fn exp_double(self, low: Value<'g>) -> Value<'g> {
        let k = (self * LOG2_E).round();
        let ln2 = self.double_constant(LN2, LN2_SINGLE);
        let rest = ((self - k * ln2.0) - k * ln2.1) + low;
        let near = rest.exp().scaled(k.cast(self.format().integer));
        // Beyond this the result is 0 or infinite, and the low part may be NaN.
        let end = self.num(if self.is_single() { 160.0 } else { 1000.0 });
        self.abs().below(end).choose(near, self.exp())
    }

    /// Returns the natural logarithm of a positive finite number, as a double-float.
    fn log_double(self) -> DoubleFloat<'g> {
        let single = self.is_single();
        let (k, m) = self.exponent_and_mantissa();
        let f = m - 1.0;
        // s = f / (m + 1), as a double-float.
        let below = m + 1.0;
        let below_low = m - (below - 1.0);
        let inverse = 1.0 / below;
        let s = f * inverse;
        let (back, back_low) = s.two_product(below);
        let s = (s, (((f - back) - back_low) - s * below_low) * inverse);
        let z = double_product(s, s);
        let more = z.0 * z.0.polynomial(&ATANH[..if single { 4 } else { 8 }]);
        let two_thirds = self.double_constant(TWO_THIRDS, TWO_THIRDS_SINGLE);
        let (factor, factor_low) = fast_two_sum(two_thirds.0, more);
        let series = double_product(z, (factor, factor_low + two_thirds.1));
        let (whole, whole_low) = fast_two_sum(self.num(2.0), series.0);
        let part = double_product(s, (whole, whole_low + series.1));
        // |k ln 2| is the greater unless k is 0, and then the sum is exact.
        let ln2 = self.double_constant(LN2, LN2_SINGLE);
        let (high, low) = fast_two_sum(k * ln2.0, part.0);
        (high, low + (k * ln2.1 + part.1))
    }

    /// Returns the logarithm to base 10, exact for powers of ten.
    pub(super) fn log10(self) -> Value<'g> {
        let (high, low) = double_product(
            self.log_double(),
            self.double_constant(LOG10_E, LOG10_E_SINGLE.map(f64::from)),
        );
        let normal = self.above(self.num(0.0)) & self.below(self.num(f64::INFINITY));
        normal.choose(high + low, self.log())
    }

    /// Returns `x ** y` as `e ** (y log(x))`, with logarithm and product as double-floats; special
    /// operands follow C's annex F.
    pub(super) fn pow(self, y: Value<'g>) -> Value<'g> {
        let (zero, one, infinity) = (self.num(0.0), self.num(1.0), self.num(f64::INFINITY));
        let size = self.abs();
        let (log, low) = size.log_double();
        let log = size.below(infinity).choose(log, size);
        let log = size.equals(zero).choose(self.num(f64::NEG_INFINITY), log);
        let (t, t_low) = y.two_product(log);
        let value = t.exp_double(t_low + y * low);
        let value = size.equals(one).choose(one, value);
        let half = y * 0.5;
        let whole = y.floor().equals(y);
        let odd = whole & half.floor().not_equal(half);
        let rootless = self.below(zero) & self.above(self.num(f64::NEG_INFINITY)) & !whole;
        let value = rootless.choose(self.num(f64::NAN), value);
        let value = (odd & self.is_negative()).choose(-value, value);
        (y.equals(zero) | self.equals(one)).choose(one, value)
    }
}
