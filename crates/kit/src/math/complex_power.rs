//! Powers of complex numbers, with C99's and NumPy's results at zeros and infinities.

use keyfold_core::Complex;

use super::complex::{ComplexFloat, exp, log, quotient};

/// From this absolute value on, integer exponents are computed by the logarithm, too.
const LOG_FROM: f64 = 100.0;

/// `a ** b`.
///
/// - 1 for an exponent 0, whatever the base; for a base 0 it is 0 if the exponent's real part is
///   positive, and NaN otherwise;
/// - products for integer exponents below 100, as in NumPy, so that `a ** 2` is `a * a`;
/// - otherwise from the absolute value and the angle of the base, or `exp(b * log(a))` if those aren't
///   finite.
pub fn power<T: ComplexFloat>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    let b = Complex::new(b.re.to_f64(), b.im.to_f64());
    T::via_f64(a, |a| {
        if b.re == 0.0 && b.im == 0.0 {
            return Complex::new(1.0, 0.0);
        }
        if a.re == 0.0 && a.im == 0.0 {
            return match b.re > 0.0 {
                true => Complex::new(0.0, 0.0),
                false => Complex::new(f64::NAN, f64::NAN),
            };
        }
        if b.im == 0.0 && b.re.abs() < LOG_FROM && b.re.trunc() == b.re {
            let power = integer_power(a, b.re.abs() as u32);
            return match b.re < 0.0 {
                true => quotient(Complex::new(1.0, 0.0), power),
                false => power,
            };
        }
        let (hypot, angle) = (a.norm(), a.im.atan2(a.re));
        let size = hypot.powf(b.re) * (-b.im * angle).exp();
        let turn = b.im * hypot.ln() + b.re * angle;
        if size.is_normal() && turn.is_finite() {
            let (sin, cos) = turn.sin_cos();
            return Complex::new(size * cos, size * sin);
        }
        exp(product(b, log(a)))
    })
}

/// A product of `count` equal factors, by squaring.
fn integer_power(a: Complex<f64>, count: u32) -> Complex<f64> {
    let (mut square, mut left) = (a, count);
    while left & 1 == 0 {
        square = square * square;
        left >>= 1;
    }
    let mut power = square;
    left >>= 1;
    while left > 0 {
        square = square * square;
        if left & 1 == 1 {
            power *= square;
        }
        left >>= 1;
    }
    power
}

/// A product that is infinite if a factor is, as in C99's G.5.1.
fn product(a: Complex<f64>, b: Complex<f64>) -> Complex<f64> {
    let plain = a * b;
    if !(plain.re.is_nan() && plain.im.is_nan()) {
        return plain;
    }
    let infinite = |z: Complex<f64>| z.re.is_infinite() || z.im.is_infinite();
    let boxed = |z: Complex<f64>| {
        let part = |x: f64| f64::from(u8::from(x.is_infinite())).copysign(x);
        Complex::new(part(z.re), part(z.im))
    };
    let known = |z: Complex<f64>| {
        let part = |x: f64| if x.is_nan() { 0f64.copysign(x) } else { x };
        Complex::new(part(z.re), part(z.im))
    };
    let (a, b) = match (infinite(a), infinite(b)) {
        (true, true) => (boxed(a), boxed(b)),
        (true, false) => (boxed(a), known(b)),
        (false, true) => (known(a), boxed(b)),
        (false, false) => return plain,
    };
    let (re, im) = (a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
    Complex::new(f64::INFINITY * re, f64::INFINITY * im)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn z(re: f64, im: f64) -> Complex<f64> {
        Complex::new(re, im)
    }

    #[test]
    fn powers_of_zero_and_with_integer_exponents() {
        let (zero, one) = (z(0.0, 0.0), z(1.0, 0.0));
        assert_eq!(power(zero, zero), one);
        assert_eq!(power(z(f64::NAN, 1.0), zero), one);
        assert_eq!(power(zero, z(2.5, 0.0)), zero);
        assert!(power(zero, z(-1.0, 0.0)).re.is_nan());
        assert_eq!(power(z(2.0, 1.0), z(2.0, 0.0)), z(3.0, 4.0));
        assert_eq!(power(z(0.0, 1.0), z(-1.0, 0.0)), z(0.0, -1.0));
        assert_eq!(power(z(0.0, 1.0), z(7.0, 0.0)), z(0.0, -1.0));
        assert_eq!(power(z(0.0, 1.0), z(96.0, 0.0)), one);
    }

    #[test]
    fn powers_agree_with_the_logarithm() {
        for base in [z(0.3, 0.4), z(-2.0, 1.0), z(1e-3, -5.0)] {
            for exponent in [z(0.5, 0.0), z(-1.5, 2.0), z(0.0, 1.0), z(4.0, -0.25)] {
                let expected = exp(exponent * log(base));
                let error = (power(base, exponent) - expected).norm();
                assert!(error <= 64.0 * f64::EPSILON * expected.norm(), "{base} ** {exponent}");
            }
        }
        // Only intermediate results overflow: the absolute value alone is out of range.
        let far = power(z(1e200, 0.0), z(2.0, 0.5));
        assert!(far.re.is_infinite() || far.im.is_infinite());
    }
}
