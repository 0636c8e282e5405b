//! Complex numbers as pairs of floats: arithmetic, and functions without exponentials.
//!
//! The formulas hold over the whole range: quotients without squares, absolute values scaled by
//! powers of two. Infinities, NaN and signed zeros are treated as in C99's Annex G.

use std::ops::{Add, Mul, Neg, Sub};

use keyfold_core::DType;

use super::value::Value;

/// A complex number.
#[derive(Clone, Copy)]
pub(super) struct Pair<'g> {
    pub(super) re: Value<'g>,
    pub(super) im: Value<'g>,
}

/// Returns the pair of a real and an imaginary part.
pub(super) fn pair<'g>(re: Value<'g>, im: Value<'g>) -> Pair<'g> {
    Pair { re, im }
}

impl<'g> Pair<'g> {
    /// Applies a function to both parts.
    pub(super) fn each(self, f: impl Fn(Value<'g>) -> Value<'g>) -> Pair<'g> {
        pair(f(self.re), f(self.im))
    }

    /// Converts both parts.
    pub(super) fn cast(self, dtype: DType) -> Pair<'g> {
        self.each(|part| part.cast(dtype))
    }

    /// Returns a pair of plain numbers.
    pub(super) fn num(self, re: f64, im: f64) -> Pair<'g> {
        pair(self.re.num(re), self.re.num(im))
    }

    /// Selects one of two numbers by a bool.
    pub(super) fn choose(condition: Value<'g>, then: Pair<'g>, otherwise: Pair<'g>) -> Pair<'g> {
        pair(condition.choose(then.re, otherwise.re), condition.choose(then.im, otherwise.im))
    }

    pub(super) fn conj(self) -> Pair<'g> {
        pair(self.re, -self.im)
    }

    pub(super) fn abs(self) -> Value<'g> {
        self.re.hypot(self.im)
    }

    pub(super) fn is_zero(self) -> Value<'g> {
        let zero = self.re.num(0.0);
        self.re.equals(zero) & self.im.equals(zero)
    }

    pub(super) fn is_nan(self) -> Value<'g> {
        self.re.is_nan() | self.im.is_nan()
    }

    pub(super) fn is_finite(self) -> Value<'g> {
        self.re.is_finite() & self.im.is_finite()
    }

    pub(super) fn equals(self, other: Pair<'g>) -> Value<'g> {
        self.re.equals(other.re) & self.im.equals(other.im)
    }

    /// Returns the quotient, scaled by the divisor's greater part so that no square overflows or
    /// underflows (R. L. Smith, "Algorithm 116: Complex division", 1962); 0 for a finite number
    /// divided by infinity.
    pub(super) fn quotient(self, b: Pair<'g>) -> Pair<'g> {
        let (re, im) = (b.re.abs(), b.im.abs());
        let none = b.is_zero();
        let at_zero = pair(self.re / re, self.im / re);
        let exp_limit = re.num(b.re.format().greatest / 4.0);
        let exp_limit = re.above(exp_limit) | im.above(exp_limit);
        let scale = exp_limit.choose(re.num(0.25), re.num(1.0));
        let (a, b) = (self.each(|part| part * scale), b.each(|part| part * scale));
        let upright = re.at_least(im);
        // The formula for the greater real part; otherwise both numbers are rotated by 90 degrees.
        let (long, short) = (upright.choose(b.re, b.im), upright.choose(b.im, b.re));
        let ratio = short / long;
        let flat = upright & re.is_infinite() & im.below(re);
        let ratio = flat.choose(re.num(0.0), ratio);
        let below = long + short * ratio;
        let (first, second) = (upright.choose(a.re, a.im), upright.choose(a.im, a.re));
        let along = (first + second * ratio) / below;
        let turned = first * ratio;
        let across = upright.choose(second - turned, turned - second) / below;
        let value = pair(along, across);
        Pair::choose(none, at_zero, value)
    }

    /// Returns `z / abs(z)`: 0 for 0; for one infinite part its sign; NaN for two.
    pub(super) fn sign(self) -> Pair<'g> {
        let (re, im) = (self.re.is_infinite(), self.im.is_infinite());
        let (zero, one) = (self.re.num(0.0), self.re.num(1.0));
        let scale = self.scale();
        let z = self.each(|part| part * scale);
        let length = z.abs();
        let value = z.each(|part| part / length);
        let value = Pair::choose(length.equals(zero), self.num(0.0, 0.0), value);
        let value = Pair::choose(im, pair(zero, one.copysign(self.im)), value);
        let value = Pair::choose(re, pair(one.copysign(self.re), zero), value);
        Pair::choose(re & im, self.num(f64::NAN, f64::NAN), value)
    }

    /// Returns a power of four by which scaling keeps sums and quotients within the range.
    fn scale(self) -> Value<'g> {
        let format = self.re.format();
        let (re, im) = (self.re.abs(), self.im.abs());
        let size = re.below(im).choose(im, re);
        let up = 4f64.powi(format.mantissa as i32);
        let one = size.num(1.0);
        let small = size.below(size.num(format.least_normal * up)).choose(size.num(up), one);
        size.above(size.num(format.greatest / 16.0)).choose(size.num(1.0 / 16.0), small)
    }

    /// Returns the square root with nonnegative real part, without cancellation.
    pub(super) fn sqrt(self) -> Pair<'g> {
        let zero = self.re.num(0.0);
        let scale = self.scale();
        // The exact square root of the scale's inverse.
        let down = 1.0 / scale.sqrt();
        let z = self.each(|part| part * scale);
        let root = ((z.abs() + z.re.abs()) * 0.5).sqrt();
        let other = z.im / (root + root) * down;
        let long = root * down;
        let right = pair(long, other);
        let left = pair(other.abs(), long.copysign(self.im));
        let value = Pair::choose(self.re.at_least(zero), right, left);
        let value = Pair::choose(root.equals(zero), pair(root, self.im), value);
        let endless = pair(self.re.num(f64::INFINITY), self.im);
        Pair::choose(self.im.is_infinite(), endless, value)
    }
}

impl Neg for Pair<'_> {
    type Output = Self;
    fn neg(self) -> Self {
        pair(-self.re, -self.im)
    }
}

impl Add for Pair<'_> {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        pair(self.re + other.re, self.im + other.im)
    }
}

impl Sub for Pair<'_> {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        pair(self.re - other.re, self.im - other.im)
    }
}

impl Mul for Pair<'_> {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        let re = self.re * other.re - self.im * other.im;
        pair(re, self.re * other.im + self.im * other.re)
    }
}
