//! Functions of floats.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, LOG2_E, PI};

use super::value::Value;

/// The low part of pi / 4 for float64 and float32; those of pi / 2 and pi are multiples.
const FRAC_PI_4_LOW: f64 = 3.061_616_997_868_383e-17;
const FRAC_PI_4_LOW_SINGLE: f64 = -2.185_569_4e-8;

/// The coefficients of the arc tangent below 7/16: `atan(x) = x - x z p(z)`, z = x^2 (from
/// FreeBSD's s_atan.c, by Sun Microsystems, 1993).
const ATAN: [f64; 11] = [
    3.333_333_333_333_293e-1,
    -1.999_999_999_987_648_3e-1,
    1.428_571_427_250_346_6e-1,
    -1.111_111_040_546_235_6e-1,
    9.090_887_133_436_507e-2,
    -7.691_876_205_044_83e-2,
    6.661_073_137_387_531e-2,
    -5.833_570_133_790_573_5e-2,
    4.976_877_994_615_932e-2,
    -3.653_157_274_421_691_6e-2,
    1.628_582_011_536_578_2e-2,
];

impl<'g> Value<'g> {
    pub(super) fn is_nan(self) -> Value<'g> {
        !self.equals(self)
    }

    pub(super) fn is_infinite(self) -> Value<'g> {
        self.abs().equals(self.num(f64::INFINITY))
    }

    pub(super) fn is_finite(self) -> Value<'g> {
        self.abs().below(self.num(f64::INFINITY))
    }

    /// Returns whether the sign bit is set, also of zeros.
    pub(super) fn is_negative(self) -> Value<'g> {
        let bits = self.bits();
        bits.below(bits.int(0))
    }

    /// Returns the absolute value with the sign of another number.
    pub(super) fn copysign(self, sign: Value<'g>) -> Value<'g> {
        let size = self.abs();
        sign.is_negative().choose(-size, size)
    }

    /// Returns the smaller; NaN if either is.
    pub(super) fn min(self, other: Value<'g>) -> Value<'g> {
        (self.below(other) | self.is_nan()).choose(self, other)
    }

    /// Returns the greater; NaN if either is.
    pub(super) fn max(self, other: Value<'g>) -> Value<'g> {
        (self.above(other) | self.is_nan()).choose(self, other)
    }

    pub(super) fn ceil(self) -> Value<'g> {
        -((-self).floor())
    }

    pub(super) fn trunc(self) -> Value<'g> {
        self.abs().floor().copysign(self)
    }

    /// Rounds to the nearest integer, ties to even, by adding a number whose last bit has the value
    /// 1.
    pub(super) fn round(self) -> Value<'g> {
        let units = 2f64.powi(self.format().mantissa as i32);
        let size = self.abs();
        let whole = ((size + units) - units).copysign(self);
        size.below(self.num(units)).choose(whole, self)
    }

    /// Returns -1, 0 or 1; 0.0 for both zeros, NaN for NaN.
    pub(super) fn sign(self) -> Value<'g> {
        let zero = self.num(0.0);
        let others = self.below(zero).choose(self.num(-1.0), self.abs());
        self.above(zero).choose(self.num(1.0), others)
    }

    /// Returns `e ** x - 1`. Near 0 the exponential's rounding error is divided out (W. Kahan): `(u
    /// - 1) x / log(u)` for `u = exp(x)`, as accurate as log.
    pub(super) fn expm1(self) -> Value<'g> {
        let one = self.num(1.0);
        let u = self.exp();
        let beyond = u - 1.0;
        let near = u.equals(one).choose(self, beyond * (self / u.log()));
        self.abs().below(one).choose(near, beyond)
    }

    /// Returns `log(1 + x)`: the logarithm of the rounded sum u, times `x / (u - 1)` (D. Goldberg,
    /// "What every computer scientist should know about floating-point arithmetic", 1991).
    pub(super) fn log1p(self) -> Value<'g> {
        let u = self + 1.0;
        let beyond = u - 1.0;
        let log = u.log();
        let near = log * (self / beyond);
        let exp_limit = self.above(self.num(1e6)).choose(log, near);
        beyond.equals(self.num(0.0)).choose(self, exp_limit)
    }

    /// Returns the logarithm to base 2, exact for powers of 2: the exponent plus the mantissa's
    /// logarithm.
    pub(super) fn log2(self) -> Value<'g> {
        let (exponent, mantissa) = self.exponent_and_mantissa();
        let near = exponent + mantissa.log() * LOG2_E;
        let normal = self.above(self.num(0.0)) & self.below(self.num(f64::INFINITY));
        normal.choose(near, self.log())
    }

    pub(super) fn rsqrt(self) -> Value<'g> {
        1.0 / self.sqrt()
    }

    /// Returns `1 - 2 / (exp(2 |x|) + 1)`, and near 0 `t / (t + 2)` for `t = exp(2 |x|) - 1`.
    pub(super) fn tanh(self) -> Value<'g> {
        let size = self.abs();
        let twice = size + size;
        let t = twice.expm1();
        let exp_limit = 1.0 - 2.0 / (t + 2.0);
        size.below(self.num(0.55)).choose(t / (t + 2.0), exp_limit).copysign(self)
    }

    /// Returns the logistic function, computed from `exp(-|x|)`, which can't overflow.
    pub(super) fn sigmoid(self) -> Value<'g> {
        let part = (-self.abs()).exp();
        let above = self.at_least(self.num(0.0)).choose(self.num(1.0), part);
        above / (part + 1.0)
    }

    /// Returns k and m with `x = 2^k m`, m from `sqrt(1/2)` to `sqrt(2)`, for a positive finite
    /// number.
    pub(super) fn exponent_and_mantissa(self) -> (Value<'g>, Value<'g>) {
        let format = self.format();
        let root_half = if self.is_single() { 0x3f35_04f3 } else { 0x3fe6_a09e_667f_3bcd };
        let tiny = self.below(self.num(format.least_normal));
        let more = (format.mantissa + 2) as f64;
        let normal = tiny.choose(self * more.exp2(), self);
        let bits = normal.bits();
        let above = bits - bits.int(root_half);
        let exponent = above.shift_right(bits.int(format.mantissa)).cast(self.dtype);
        let mantissa = bits - (above & bits.int(-1 << format.mantissa));
        let exponent = exponent - tiny.choose(self.num(more), self.num(0.0));
        (exponent, mantissa.bits_as(self.dtype))
    }

    /// Returns the number times `2^k` for an integer k, in two factors, so that a subnormal result
    /// is rounded once. Both factors are normal if the magnitude of k is at most twice the greatest
    /// exponent.
    pub(super) fn scaled(self, k: Value<'g>) -> Value<'g> {
        let format = self.format();
        let first = k.shift_right(k.int(1));
        let power = |k: Value<'g>| {
            let stored = k + k.int(format.bias);
            stored.shift_left(k.int(format.mantissa)).bits_as(self.dtype)
        };
        self * power(first) * power(k - first)
    }

    /// Returns the hyperbolic sine and cosine for absolute values at most
    /// [`exp_limit`](super::value::Format::exp_limit).
    pub(super) fn sinh_cosh(self) -> (Value<'g>, Value<'g>) {
        let up = self.exp();
        let down = 1.0 / up;
        let t = self.expm1();
        let near = (t + t / (t + 1.0)) * 0.5;
        let sinh = self.abs().below(self.num(1.0)).choose(near, (up - down) * 0.5);
        (sinh, (up + down) * 0.5)
    }

    /// Returns `sqrt(a * a + b * b)`, infinite if either is. Both are divided by the greater one's
    /// power of two.
    pub(super) fn hypot(self, other: Value<'g>) -> Value<'g> {
        let format = self.format();
        let (a, b) = (self.abs(), other.abs());
        let long = a.below(b).choose(b, a);
        let bits = long.bits();
        let power = (bits & bits.int(-1 << format.mantissa)).bits_as(self.dtype);
        // At least the smallest normal number.
        let least = self.num(format.least_normal);
        let power = power.below(least).choose(least, power);
        let (short_a, short_b) = (a / power, b / power);
        let length = power * (short_a * short_a + short_b * short_b).sqrt();
        (a.is_infinite() | b.is_infinite()).choose(self.num(f64::INFINITY), length)
    }

    /// Returns the angle of the point `(x, y)`, for `y.atan2(x)`.
    pub(super) fn atan2(self, x: Value<'g>) -> Value<'g> {
        let (y_size, x_size) = (self.abs(), x.abs());
        let steep = y_size.above(x_size);
        let ratio = steep.choose(x_size, y_size) / steep.choose(y_size, x_size);
        // 0 / 0, and equal infinities.
        let zero = self.num(0.0);
        let ratio =
            y_size.equals(x_size).choose(x_size.equals(zero).choose(zero, self.num(1.0)), ratio);
        // Above tan(pi / 8), the angle from pi / 4.
        let large = ratio.above(self.num(0.414_213_562_373_095));
        let u = large.choose((ratio - 1.0) / (ratio + 1.0), ratio);
        let z = u * u;
        let near = u - u * (z * z.polynomial(&ATAN));
        let low = if self.is_single() { FRAC_PI_4_LOW_SINGLE } else { FRAC_PI_4_LOW };
        let angle = large.choose((near + low) + FRAC_PI_4, near);
        let angle = steep.choose(FRAC_PI_2 - (angle - 2.0 * low), angle);
        let angle = x.is_negative().choose(PI - (angle - 4.0 * low), angle);
        // NaN for NaN.
        (angle + (self.is_nan() | x.is_nan()).choose(self + x, zero)).copysign(self)
    }
}
