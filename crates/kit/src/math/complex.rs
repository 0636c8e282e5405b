//! Functions of complex numbers that are right over the whole range of floats: intermediate results
//! neither overflow nor underflow, and `inf * 0` doesn't occur.
//!
//! At infinities, NaN and signed zeros they follow C99's Annex G, and so NumPy. Where the annex leaves a
//! sign open, zeros and infinities get the sign of the operand's part.

use keyfold_core::Complex;

use super::Real;

/// The type of a complex number's parts; the functions compute in float64.
pub trait ComplexFloat: Real {
    /// Applies a function of float64 parts to a number of this type, and rounds the result once.
    fn via_f64(z: Complex<Self>, f: impl Fn(Complex<f64>) -> Complex<f64>) -> Complex<Self>;
    /// The hypotenuse of two parts that are numbers of this type.
    fn hypot(re: f64, im: f64) -> f64;
    /// `e ** z`
    fn exp_part(z: Complex<Self>) -> Complex<Self>;
}

impl ComplexFloat for f64 {
    fn via_f64(z: Complex<f64>, f: impl Fn(Complex<f64>) -> Complex<f64>) -> Complex<f64> {
        f(z)
    }

    fn hypot(re: f64, im: f64) -> f64 {
        re.hypot(im)
    }

    fn exp_part(z: Complex<f64>) -> Complex<f64> {
        exp_part(z)
    }
}

impl ComplexFloat for f32 {
    fn via_f64(z: Complex<f32>, f: impl Fn(Complex<f64>) -> Complex<f64>) -> Complex<f32> {
        let value = f(Complex::new(z.re.into(), z.im.into()));
        Complex::new(value.re as f32, value.im as f32)
    }

    fn hypot(re: f64, im: f64) -> f64 {
        if re.is_infinite() || im.is_infinite() {
            return f64::INFINITY;
        }
        // The square of a float32 neither overflows nor underflows in float64.
        (re * re + im * im).sqrt()
    }

    fn exp_part(z: Complex<f32>) -> Complex<f32> {
        // The comparison is false for NaN, which the general function handles.
        if z.re.abs() <= 80.0 && z.im.is_finite() {
            let (hypot, (sin, cos)) = (f32::exp(z.re), z.im.sin_cos());
            return Complex::new(hypot * cos, hypot * sin);
        }
        Self::via_f64(z, exp_part)
    }
}

/// The quotient, scaled by the divisor's greater part so that no square overflows or underflows (R. L.
/// Smith, "Algorithm 116: Complex division", 1962); 0 for a finite number divided by infinity.
pub fn quotient<T: ComplexFloat>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    let b = Complex::new(b.re.to_f64(), b.im.to_f64());
    T::via_f64(a, |a| {
        let (re, im) = (b.re.abs(), b.im.abs());
        if re == 0.0 && im == 0.0 {
            return Complex::new(a.re / re, a.im / re);
        }
        // Both operands are scaled by 1/4 if the denominator could overflow.
        let far = re.max(im) > f64::MAX / 4.0;
        let (a, b) = if far { (a * 0.25, b * 0.25) } else { (a, b) };
        if re >= im {
            let ratio = b.im / b.re;
            let ratio = if re == f64::INFINITY && im < re { 0.0 } else { ratio };
            // Dividing is safe, but not multiplying by the reciprocal: the reciprocal of the smallest
            // numbers is infinite.
            let below = b.re + b.im * ratio;
            return Complex::new((a.re + a.im * ratio) / below, (a.im - a.re * ratio) / below);
        }
        let ratio = b.re / b.im;
        let below = b.im + b.re * ratio;
        Complex::new((a.re * ratio + a.im) / below, (a.im * ratio - a.re) / below)
    })
}

/// `z / abs(z)`; 0 of 0; the sign of one infinite part; NaN of two, as in NumPy.
pub fn sign<T: ComplexFloat>(z: Complex<T>) -> Complex<T> {
    T::via_f64(z, |z| {
        let (re, im) = (z.re.abs(), z.im.abs());
        match (re == f64::INFINITY, im == f64::INFINITY) {
            (true, true) => return Complex::new(f64::NAN, f64::NAN),
            (true, false) => return Complex::new(1f64.copysign(z.re), 0.0),
            (false, true) => return Complex::new(0.0, 1f64.copysign(z.im)),
            (false, false) => {}
        }
        // Scale by a power of two if the absolute value would overflow or lose digits.
        let size = re.max(im);
        let scale = if size > 1e300 {
            2f64.powi(-60)
        } else if size < 1e-290 {
            2f64.powi(120)
        } else {
            1.0
        };
        let (re, im) = (z.re * scale, z.im * scale);
        let hypot = T::hypot(re, im);
        if hypot == 0.0 {
            return Complex::new(0.0, 0.0);
        }
        Complex::new(re / hypot, im / hypot)
    })
}

/// Above this argument exp, sinh and cosh are computed as two factors, each of which is multiplied with
/// a sine or cosine separately, so that they neither overflow nor underflow.
const TWO_FACTOR_LIMIT: f64 = 700.0;

/// A product that is 0 if a factor is, even if the other is infinite (then with the product's sign) or
/// NaN.
fn product(a: f64, b: f64) -> f64 {
    if a == 0.0 && !b.is_finite() {
        if b.is_nan() { a } else { a * b.signum() }
    } else if b == 0.0 && !a.is_finite() {
        if a.is_nan() { b } else { b * a.signum() }
    } else {
        a * b
    }
}

/// `e ** z`
pub fn exp<T: ComplexFloat>(z: Complex<T>) -> Complex<T> {
    T::exp_part(z)
}

fn exp_part(z: Complex<f64>) -> Complex<f64> {
    if z.im == 0.0 {
        return Complex::new(z.re.exp(), z.im);
    }
    if !z.im.is_finite() && z.re.is_infinite() {
        // The absolute value is infinite or 0, and the angle is undefined.
        return match z.re > 0.0 {
            true => Complex::new(z.re, f64::NAN),
            false => Complex::new(0.0, 0f64.copysign(z.im)),
        };
    }
    let (first, second) = match z.re.abs() > TWO_FACTOR_LIMIT {
        true => ((z.re * 0.5).exp(), (z.re * 0.5).exp()),
        false => (z.re.exp(), 1.0),
    };
    let (sin, cos) = z.im.sin_cos();
    Complex::new(cos * first * second, sin * first * second)
}

/// Returns `a + b` rounded, and the rounding error (D. E. Knuth, "The Art of Computer Programming" 2,
/// 4.2.2).
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// `long * long + short * short - 1`, for numbers below 2. Squares and sums are carried as rounded
/// values and errors, since they may cancel down to the last digits.
fn square_minus_one(long: f64, short: f64) -> f64 {
    let (of_long, of_short) = (long * long, short * short);
    let (beyond, rest) = two_sum(of_long, -1.0);
    let (sum, other) = two_sum(beyond, of_short);
    let digits = (long.mul_add(long, -of_long), short.mul_add(short, -of_short));
    let (digits, last) = two_sum(digits.0, digits.1);
    let (sum, more) = two_sum(sum, digits);
    sum + (other + rest + (more + last))
}

/// The natural logarithm.
pub fn log<T: ComplexFloat>(z: Complex<T>) -> Complex<T> {
    T::via_f64(z, |z| {
        let (re, im) = (z.re.abs(), z.im.abs());
        let (long, short) = if re > im { (re, im) } else { (im, re) };
        let hypot = if long > 0.5 && long < 2.0 {
            // If the absolute value is near 1, the logarithm is computed from its square minus 1.
            0.5 * square_minus_one(long, short).ln_1p()
        } else if long > f64::MAX / 4.0 && long < f64::INFINITY {
            (long * 0.25).hypot(short * 0.25).ln() + std::f64::consts::LN_2 * 2.0
        } else if long < f64::MIN_POSITIVE && long > 0.0 {
            // 2^54.
            const TWO_54: f64 = 18_014_398_509_481_984.0;
            (long * TWO_54).hypot(short * TWO_54).ln() - std::f64::consts::LN_2 * 54.0
        } else {
            T::hypot(long, short).ln()
        };
        Complex::new(hypot, z.im.atan2(z.re))
    })
}

/// The square root whose real part isn't negative, without cancellation.
pub fn sqrt<T: ComplexFloat>(z: Complex<T>) -> Complex<T> {
    T::via_f64(z, |z| {
        if z.im.is_infinite() {
            return Complex::new(f64::INFINITY, z.im);
        }
        let size = z.re.abs().max(z.im.abs());
        // Scale by a power of four if squares or sums would leave the range.
        let (up, down) = if size > f64::MAX / 4.0 {
            (1.0 / 16.0, 4.0)
        } else if size < 1e-290 {
            (2f64.powi(120), 2f64.powi(-60))
        } else {
            (1.0, 1.0)
        };
        let (re, im) = (z.re * up, z.im * up);
        let root = ((T::hypot(re, im) + re.abs()) * 0.5).sqrt();
        if root == 0.0 {
            return Complex::new(root, z.im);
        }
        let other = im / (root * 2.0) * down;
        let root = root * down;
        if re >= 0.0 {
            return Complex::new(root, other);
        }
        Complex::new(other.abs(), root.copysign(z.im))
    })
}

/// Returns sinh and cosh divided by a common factor, and the factor: their product may overflow.
fn sinh_cosh_factor(x: f64) -> (f64, f64, f64) {
    if x.abs() > TWO_FACTOR_LIMIT {
        let root = (x.abs() * 0.5).exp();
        let half = root * 0.5;
        return (half.copysign(x), half, root);
    }
    (x.sinh(), x.cosh(), 1.0)
}

/// The sine.
pub fn sin<T: ComplexFloat>(z: Complex<T>) -> Complex<T> {
    T::via_f64(z, |z| {
        if z.im.is_infinite() && !z.re.is_finite() {
            return Complex::new(f64::NAN, z.im);
        }
        let ((sin, cos), (sinh, cosh, factor)) = (z.re.sin_cos(), sinh_cosh_factor(z.im));
        let (re, im) = (product(sin, cosh), product(cos, sinh));
        Complex::new(product(re, factor), product(im, factor))
    })
}

/// The cosine.
pub fn cos<T: ComplexFloat>(z: Complex<T>) -> Complex<T> {
    T::via_f64(z, |z| {
        if z.im.is_infinite() && !z.re.is_finite() {
            return Complex::new(f64::INFINITY, f64::NAN);
        }
        let ((sin, cos), (sinh, cosh, factor)) = (z.re.sin_cos(), sinh_cosh_factor(z.im));
        let (re, im) = (cos * cosh, -product(sin, sinh));
        Complex::new(re * factor, product(im, factor))
    })
}

/// The hyperbolic tangent, from formulas that neither overflow nor cancel.
pub fn tanh<T: ComplexFloat>(z: Complex<T>) -> Complex<T> {
    T::via_f64(z, |z| {
        if z.im == 0.0 {
            return Complex::new(z.re.tanh(), z.im);
        }
        if !z.im.is_finite() {
            return match z.re {
                re if re.is_infinite() => Complex::new(1f64.copysign(re), 0f64.copysign(z.im)),
                re if re == 0.0 => Complex::new(re, f64::NAN),
                _ => Complex::new(f64::NAN, f64::NAN),
            };
        }
        let size = z.re.abs();
        let (sin, cos) = z.im.sin_cos();
        if size > 20.0 {
            let small = (-(size * 2.0)).exp();
            return Complex::new(1f64.copysign(z.re), 4.0 * sin * cos * small);
        }
        let (wide, far) = (z.re.sinh(), z.re.cosh());
        let below = wide * wide + cos * cos;
        Complex::new(wide * far / below, sin * cos / below)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn z(re: f64, im: f64) -> Complex<f64> {
        Complex::new(re, im)
    }

    /// Whether two numbers are within a few units in the last place, relative to the absolute value.
    fn close(got: Complex<f64>, expected: Complex<f64>) -> bool {
        (got - expected).norm() <= 4.0 * f64::EPSILON * expected.norm()
    }

    #[test]
    fn quotients_are_right_over_the_whole_range() {
        assert!(close(quotient(z(1.0, 0.0), z(0.0, 1e300)), z(0.0, -1e-300)));
        assert!(close(quotient(z(1e-300, 0.0), z(1e-300, 1e-300)), z(0.5, -0.5)));
        assert_eq!(quotient(z(1.0, 1.0), z(f64::INFINITY, 0.0)), z(0.0, 0.0));
        assert!(quotient(z(1.0, 0.0), z(0.0, 0.0)).re.is_infinite());
        assert_eq!(quotient(z(1e-320, 0.0), z(5e-321, 0.0)), z(1e-320 / 5e-321, 0.0));
        assert!(close(quotient(z(1e308, 0.0), z(1e308, 1e308)), z(0.5, -0.5)));
        let float32 = quotient(Complex::new(1.0_f32, 0.0), Complex::new(1e25, 0.0));
        assert_eq!(float32.re, 1e-25);
        for (a, b) in [(z(1.5, -2.0), z(0.25, 3.0)), (z(-7.0, 1e-3), z(5.0, 4.0))] {
            assert!(close(quotient(a, b), a / b));
        }
    }

    #[test]
    fn the_logarithm_near_absolute_value_one_has_all_its_digits() {
        // Parts of 26 bits, and the digits below them: exact squares, as integers.
        let exact = |long: f64, short: f64| {
            let scaled = |x: f64| (x * 2f64.powi(60)) as i128;
            let square = |x: i128| {
                let (high, low) = (x >> 30, x & ((1 << 30) - 1));
                (high * high - (1 << 60), 2 * high * low, low * low)
            };
            let ((a, b, c), (d, e, f)) = (square(scaled(long)), square(scaled(short)));
            // In units of 2^-120: the parts' squares at 2^-60, 2^-90 and 2^-120; the 1 was subtracted
            // twice, so it is added back.
            let whole = ((a + d + (1 << 60)) << 60) + ((b + e) << 30) + (c + f);
            whole as f64 * 2f64.powi(-120)
        };
        let mut angle = 0.01_f64;
        while angle < 0.785 {
            let (sin, cos) = angle.sin_cos();
            // A multiple of 2^-60, so that the reference is exact.
            let short = (sin * 2f64.powi(54)).round() * 2f64.powi(-54);
            for long in [cos, cos.next_up(), cos.next_down(), cos * (1.0 + 1e-9), cos * 0.99] {
                let beyond = exact(long, short);
                let expected = 0.5 * beyond.ln_1p();
                for (re, im) in [(long, short), (-short, long), (long, -short)] {
                    let got = log(z(re, im)).re;
                    let error = (got - expected).abs();
                    assert!(
                        error <= 2.0 * f64::EPSILON * expected.abs(),
                        "log({re} + {im}i): {got}, not {expected}"
                    );
                }
            }
            angle += 0.003;
        }
        assert_eq!(log(z(0.0, -1.0)).re, 0.0);
        assert_eq!(log(z(1.0, 1e-200)), z(0.0, 1e-200));
        assert_eq!(log(z(1.0, 1e-9)).re, 0.5e-18);
        // The squares of float32 are exact in float64.
        assert_eq!(log(Complex::new(0.6_f32, 0.8)).re, 2.384_185_8e-8);
    }

    #[test]
    fn functions_are_right_where_intermediate_results_overflow() {
        assert_eq!(tanh(z(400.0, 1.0)).re, 1.0);
        assert!(tanh(z(400.0, 1.0)).im.abs() < 1e-300);
        assert_eq!(exp(z(1000.0, 0.0)), z(f64::INFINITY, 0.0));
        assert_eq!(exp(z(f64::NEG_INFINITY, f64::INFINITY)), z(0.0, 0.0));
        assert_eq!(sin(z(0.0, 800.0)), z(0.0, f64::INFINITY));
        assert_eq!(cos(z(0.0, 800.0)).re, f64::INFINITY);
        assert_eq!(cos(z(0.0, 800.0)).im, 0.0);
        assert_eq!(sqrt(z(f64::INFINITY, 1.0)), z(f64::INFINITY, 0.0));
        // Only intermediate results overflow.
        assert!(close(exp(z(710.0, 0.8)), z(709.0, 0.8).exp() * std::f64::consts::E));
        let reduce_half_pi = std::f64::consts::FRAC_PI_4;
        let hypot = 1.7e308_f64.ln() + 0.5 * std::f64::consts::LN_2;
        assert!(close(log(z(1.7e308, 1.7e308)), z(hypot, reduce_half_pi)));
        let root = sqrt(z(1.7e308, 1.7e308));
        assert!(close(root * 0.5, sqrt(z(1.7e308 / 4.0, 1.7e308 / 4.0))));
        // sqrt(2^-1074 i) is 2^-537 sqrt(i).
        let small = 2f64.powi(-537) * std::f64::consts::FRAC_1_SQRT_2;
        assert!(close(sqrt(z(0.0, 5e-324)), z(small, small)));
        for number in [z(0.3, 0.4), z(-2.0, 1.0), z(1e-3, -5.0), z(-0.7, -0.2)] {
            assert!(close(tanh(number), number.tanh()));
            assert!(close(exp(number), number.exp()));
            assert!(close(sin(number), number.sin()));
            assert!(close(cos(number), number.cos()));
            assert!(close(log(number), number.ln()));
            assert!(close(sqrt(number) * sqrt(number), number));
            assert!(sqrt(number).re >= 0.0);
        }
    }
}
