//! Exponential, logarithmic and related functions of complex numbers.

use std::f64::consts::LN_2;

use super::complex::{Pair, pair};
use super::power::two_sum;
use super::value::Value;

/// Returns a product that is 0 if a factor is, also with infinity (with the product's sign) or NaN.
fn product<'g>(a: Value<'g>, b: Value<'g>) -> Value<'g> {
    let zero = a.num(0.0);
    let beside = |zero: Value<'g>, other: Value<'g>| {
        other.is_nan().choose(zero, other.is_negative().choose(-zero, zero))
    };
    let value = (b.equals(zero) & !a.is_finite()).choose(beside(b, a), a * b);
    (a.equals(zero) & !b.is_finite()).choose(beside(a, b), value)
}

/// Returns `long * long + short * short - 1`, for numbers below 2. The squares and their sums are
/// double-floats, since they may cancel to their last digits.
fn squared_modulus_minus_one<'g>(long: Value<'g>, short: Value<'g>) -> Value<'g> {
    let ((of_long, long_rest), (of_short, short_rest)) =
        (long.two_product(long), short.two_product(short));
    let (beyond, rest) = two_sum(of_long, long.num(-1.0));
    let (sum, other) = two_sum(beyond, of_short);
    let (digits, last) = two_sum(long_rest, short_rest);
    let (sum, more) = two_sum(sum, digits);
    sum + (other + rest + (more + last))
}

/// Returns the hyperbolic sine and cosine divided by a common factor, and the factor, which may
/// overflow.
fn hyperbolic<'g>(x: Value<'g>) -> (Value<'g>, Value<'g>, Value<'g>) {
    let exp_limit = x.abs().above(x.num(x.format().exp_limit));
    let root = (x.abs() * 0.5).exp();
    let half = root * 0.5;
    let (sinh, cosh) = x.sinh_cosh();
    let (sinh, cosh) = (exp_limit.choose(half.copysign(x), sinh), exp_limit.choose(half, cosh));
    (sinh, cosh, exp_limit.choose(root, x.num(1.0)))
}

impl<'g> Pair<'g> {
    /// Returns `e ** z`, as a product of two factors that don't overflow early.
    pub(super) fn exp(self) -> Pair<'g> {
        let Pair { re, im } = self;
        let (zero, one) = (re.num(0.0), re.num(1.0));
        let exp_limit = re.abs().above(re.num(re.format().exp_limit));
        let first = exp_limit.choose(re * 0.5, re).exp();
        let second = exp_limit.choose(first, one);
        let value = pair(im.cos() * first * second, im.sin() * first * second);
        // An infinite modulus with an undefined angle.
        let lost = re.above(zero);
        let lost = pair(lost.choose(re, zero), lost.choose(re.num(f64::NAN), zero.copysign(im)));
        let value = Pair::choose(!im.is_finite() & re.is_infinite(), lost, value);
        Pair::choose(im.equals(zero), pair(re.exp(), im), value)
    }

    /// Returns the natural logarithm.
    pub(super) fn log(self) -> Pair<'g> {
        let format = self.re.format();
        let (re, im) = (self.re.abs(), self.im.abs());
        let upright = re.above(im);
        let (long, short) = (upright.choose(re, im), upright.choose(im, re));
        // Near 1, by the difference of the squared modulus from 1.
        let near = squared_modulus_minus_one(long, short).log1p() * 0.5;
        // Scaled by a power of two if the squared modulus would overflow or lose digits.
        let up = (format.mantissa + 2) as f64;
        let (zero, one) = (long.num(0.0), long.num(1.0));
        let small = long.below(long.num(format.least_normal)) & long.above(zero);
        let large =
            long.above(long.num(format.greatest / 4.0)) & long.below(long.num(f64::INFINITY));
        let scale = small.choose(long.num(up.exp2()), large.choose(long.num(0.25), one));
        let apart = small.choose(long.num(-up * LN_2), large.choose(long.num(2.0 * LN_2), zero));
        let length = (long * scale).hypot(short * scale).log() + apart;
        let is_near = long.above(long.num(0.5)) & long.below(long.num(2.0));
        pair(is_near.choose(near, length), self.im.atan2(self.re))
    }

    pub(super) fn sin(self) -> Pair<'g> {
        let (sin, cos) = (self.re.sin(), self.re.cos());
        let (sinh, cosh, factor) = hyperbolic(self.im);
        let value = pair(product(product(sin, cosh), factor), product(product(cos, sinh), factor));
        let lost = self.im.is_infinite() & !self.re.is_finite();
        Pair::choose(lost, pair(self.re.num(f64::NAN), self.im), value)
    }

    pub(super) fn cos(self) -> Pair<'g> {
        let (sin, cos) = (self.re.sin(), self.re.cos());
        let (sinh, cosh, factor) = hyperbolic(self.im);
        let value = pair(cos * cosh * factor, product(-product(sin, sinh), factor));
        let lost = self.im.is_infinite() & !self.re.is_finite();
        Pair::choose(lost, self.num(f64::INFINITY, f64::NAN), value)
    }

    /// Returns the hyperbolic tangent, without overflow or cancellation.
    pub(super) fn tanh(self) -> Pair<'g> {
        let Pair { re, im } = self;
        let (zero, one) = (re.num(0.0), re.num(1.0));
        let size = re.abs();
        let (sin, cos) = (im.sin(), im.cos());
        let small = (-(size + size)).exp();
        let exp_limit = pair(one.copysign(re), sin * 4.0 * cos * small);
        let (wide, high) = re.sinh_cosh();
        let below = wide * wide + cos * cos;
        let near = pair(wide * high / below, sin * cos / below);
        let value = Pair::choose(size.above(re.num(20.0)), exp_limit, near);
        let nan = re.num(f64::NAN);
        let lost = Pair::choose(re.equals(zero), pair(re, nan), pair(nan, nan));
        let lost = Pair::choose(re.is_infinite(), pair(one.copysign(re), zero.copysign(im)), lost);
        let value = Pair::choose(im.is_finite(), value, lost);
        Pair::choose(im.equals(zero), pair(re.tanh(), im), value)
    }
}
