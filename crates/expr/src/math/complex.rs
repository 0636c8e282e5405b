//! Functions of complex numbers that hold to the ends of the range, which products of whole parts
//! don't: a quotient without squares, functions without `inf * 0`.

use keyfold_core::Complex;

use super::Real;

/// A float with what the functions here take from the standard library.
pub trait Part: Real {
    /// The standard library's exponential.
    fn std_exp(self) -> Self;
    /// The sine and the cosine of radians.
    fn std_sin_cos(self) -> (Self, Self);
    /// The hyperbolic sine and cosine.
    fn std_sinh_cosh(self) -> (Self, Self);
    /// The length of the hypotenuse.
    fn std_hypot(self, other: Self) -> Self;
}

macro_rules! part {
    // A macro, since these methods are in no trait of the standard library.
    ($($float:ident)*) => {$(
        impl Part for $float {
            fn std_exp(self) -> Self {
                $float::exp(self)
            }
            fn std_sin_cos(self) -> (Self, Self) {
                $float::sin_cos(self)
            }
            fn std_sinh_cosh(self) -> (Self, Self) {
                ($float::sinh(self), $float::cosh(self))
            }
            fn std_hypot(self, other: Self) -> Self {
                $float::hypot(self, other)
            }
        }
    )*};
}

part! { f32 f64 }

/// The quotient, scaled by the divisor's greater part so that no square overflows or vanishes
/// (R. L. Smith, "Algorithm 116: Complex division", 1962); 0 for what is finite by infinity.
pub fn quotient<T: Part>(a: Complex<T>, b: Complex<T>) -> Complex<T> {
    let (re, im) = (Real::abs(b.re), Real::abs(b.im));
    if re == T::ZERO && im == T::ZERO {
        return Complex::new(a.re / re, a.im / re);
    }
    if re >= im {
        let ratio = b.im / b.re;
        let ratio = if re == T::INFINITY && im < re { T::ZERO } else { ratio };
        let scale = T::ONE / (b.re + b.im * ratio);
        return Complex::new((a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale);
    }
    let ratio = b.re / b.im;
    let scale = T::ONE / (b.im + b.re * ratio);
    Complex::new((a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale)
}

/// `length (cos angle + i sin angle)`; the sine of 0 is 0 and stays so, however long.
fn polar<T: Part>(length: T, angle: T) -> Complex<T> {
    let (sin, cos) = angle.std_sin_cos();
    let im = if angle == T::ZERO { angle } else { length * sin };
    Complex::new(length * cos, im)
}

/// `e ** z`
pub fn exp<T: Part>(z: Complex<T>) -> Complex<T> {
    if z.re == T::NEG_INFINITY {
        return Complex::new(T::ZERO, T::ZERO);
    }
    polar(z.re.std_exp(), z.im)
}

/// The root with a real part that isn't negative, without cancellation.
pub fn sqrt<T: Part>(z: Complex<T>) -> Complex<T> {
    if z.im == T::INFINITY || z.im == T::NEG_INFINITY {
        return Complex::new(T::INFINITY, z.im);
    }
    let root = Real::sqrt((z.re.std_hypot(z.im) + Real::abs(z.re)) * T::HALF);
    if root == T::ZERO {
        return Complex::new(root, z.im);
    }
    let other = z.im / (root * T::TWO);
    if z.re >= T::ZERO {
        return Complex::new(root, other);
    }
    Complex::new(Real::abs(other), Real::copysign(root, z.im))
}

/// A product that is 0 where the first factor is, however large the other.
fn unless_zero<T: Part>(first: T, other: T) -> T {
    if first == T::ZERO { first } else { first * other }
}

/// The sine.
pub fn sin<T: Part>(z: Complex<T>) -> Complex<T> {
    let ((sin, cos), (sinh, cosh)) = (z.re.std_sin_cos(), z.im.std_sinh_cosh());
    Complex::new(unless_zero(sin, cosh), unless_zero(sinh, cos))
}

/// The cosine.
pub fn cos<T: Part>(z: Complex<T>) -> Complex<T> {
    let ((sin, cos), (sinh, cosh)) = (z.re.std_sin_cos(), z.im.std_sinh_cosh());
    Complex::new(cos * cosh, -unless_zero(sin, sinh))
}

/// The hyperbolic tangent, of its real and its turning part, which neither overflow nor cancel.
pub fn tanh<T: Part>(z: Complex<T>) -> Complex<T> {
    let size = Real::abs(z.re);
    let (sin, cos) = z.im.std_sin_cos();
    if size > T::from_f64(20.0) {
        let small = (-(size * T::TWO)).std_exp();
        let turned = T::from_f64(4.0) * sin * cos * small;
        return Complex::new(Real::copysign(T::ONE, z.re), turned);
    }
    let (wide, far) = z.re.std_sinh_cosh();
    let below = wide * wide + cos * cos;
    Complex::new(wide * far / below, sin * cos / below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn z(re: f64, im: f64) -> Complex<f64> {
        Complex::new(re, im)
    }

    /// Apart by so many units of the last place, relative to the length.
    fn close(got: Complex<f64>, expected: Complex<f64>) -> bool {
        (got - expected).norm() <= 4.0 * f64::EPSILON * expected.norm()
    }

    #[test]
    fn quotients_hold_to_the_ends_of_the_range() {
        assert!(close(quotient(z(1.0, 0.0), z(0.0, 1e300)), z(0.0, -1e-300)));
        assert!(close(quotient(z(1e-300, 0.0), z(1e-300, 1e-300)), z(0.5, -0.5)));
        assert_eq!(quotient(z(1.0, 1.0), z(f64::INFINITY, 0.0)), z(0.0, 0.0));
        assert!(quotient(z(1.0, 0.0), z(0.0, 0.0)).re.is_infinite());
        let single = quotient(Complex::new(1.0_f32, 0.0), Complex::new(1e25, 0.0));
        assert_eq!(single.re, 1e-25);
        for (a, b) in [(z(1.5, -2.0), z(0.25, 3.0)), (z(-7.0, 1e-3), z(5.0, 4.0))] {
            assert!(close(quotient(a, b), a / b));
        }
    }

    #[test]
    fn functions_hold_where_parts_overflow() {
        assert_eq!(tanh(z(400.0, 1.0)).re, 1.0);
        assert!(tanh(z(400.0, 1.0)).im.abs() < 1e-300);
        assert_eq!(exp(z(1000.0, 0.0)), z(f64::INFINITY, 0.0));
        assert_eq!(exp(z(f64::NEG_INFINITY, f64::INFINITY)), z(0.0, 0.0));
        assert_eq!(sin(z(0.0, 800.0)), z(0.0, f64::INFINITY));
        assert_eq!(cos(z(0.0, 800.0)).re, f64::INFINITY);
        assert_eq!(cos(z(0.0, 800.0)).im, 0.0);
        assert_eq!(sqrt(z(f64::INFINITY, 1.0)), z(f64::INFINITY, 0.0));
        for number in [z(0.3, 0.4), z(-2.0, 1.0), z(1e-3, -5.0), z(-0.7, -0.2)] {
            assert!(close(tanh(number), number.tanh()));
            assert!(close(exp(number), number.exp()));
            assert!(close(sin(number), number.sin()));
            assert!(close(cos(number), number.cos()));
            assert!(close(sqrt(number) * sqrt(number), number));
            assert!(sqrt(number).re >= 0.0);
        }
    }
}
