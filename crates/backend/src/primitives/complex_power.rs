//! Powers of complex numbers.

use keyfold_core::DType;

use super::complex::{Pair, pair};
use super::value::Value;

/// The magnitude of integer exponents from which powers are computed with the logarithm.
const LOG_FROM: f64 = 100.0;
/// The number of bits of integer exponents below it.
const EXPONENT_BITS: i64 = 7;

/// Returns a product that is infinite if a factor is, as in C99's G.5.1.
fn product<'g>(a: Pair<'g>, b: Pair<'g>) -> Pair<'g> {
    let plain = a * b;
    let endless = |z: Pair<'g>| z.re.is_infinite() | z.im.is_infinite();
    let (zero, one) = (a.re.num(0.0), a.re.num(1.0));
    let boxed = |part: Value<'g>| part.is_infinite().choose(one, zero).copysign(part);
    let known = |part: Value<'g>| part.is_nan().choose(zero.copysign(part), part);
    let turn = |z: Pair<'g>| Pair::choose(endless(z), z.each(boxed), z.each(known));
    let turned = (turn(a) * turn(b)).each(|part| part * f64::INFINITY);
    let lost = plain.re.is_nan() & plain.im.is_nan() & (endless(a) | endless(b));
    Pair::choose(lost, turned, plain)
}

impl<'g> Pair<'g> {
    /// Returns the power with an integer exponent from 1 to 127, by repeated squaring.
    fn power_by_squaring(self, count: Value<'g>) -> Pair<'g> {
        let zero = count.int(0);
        let (mut square, mut power) = (self, self);
        for bit in 0..EXPONENT_BITS {
            let unset = (count & count.int(1 << bit)).equals(zero);
            if bit > 0 {
                let first = (count & count.int((1 << bit) - 1)).equals(zero);
                let next = Pair::choose(first, square, power * square);
                power = Pair::choose(unset, power, next);
            }
            if bit + 1 < EXPONENT_BITS {
                square = square * square;
            }
        }
        power
    }

    /// Returns `a ** b`. It is 1 for exponent 0; for base 0 it is 0 if the exponent's real part is
    /// positive, else NaN. Integer exponents below 100 multiply; others use modulus and angle of
    /// the base, or `exp(b * log(a))` if these aren't finite.
    pub(super) fn pow(self, b: Pair<'g>) -> Pair<'g> {
        let (zero, format) = (self.re.num(0.0), self.re.format());
        let count = b.re.abs();
        let products = self.power_by_squaring(count.cast(DType::I32));
        let inverse = self.num(1.0, 0.0).quotient(products);
        let products = Pair::choose(b.re.below(zero), inverse, products);
        let few = b.im.equals(zero) & count.below(zero.num(LOG_FROM)) & b.re.floor().equals(b.re);
        let (length, angle) = (self.abs(), self.im.atan2(self.re));
        let size = length.pow(b.re) * (-b.im * angle).exp();
        let turn = b.im * length.log() + b.re * angle;
        let turned = pair(size * turn.cos(), size * turn.sin());
        let normal = size.is_finite() & size.at_least(zero.num(format.least_normal));
        let value = product(b, self.log()).exp();
        let value = Pair::choose(normal & turn.is_finite(), turned, value);
        let value = Pair::choose(few, products, value);
        let none = b.re.above(zero).choose(zero, zero.num(f64::NAN));
        let value = Pair::choose(self.is_zero(), pair(none, none), value);
        Pair::choose(b.is_zero(), self.num(1.0, 0.0), value)
    }
}
