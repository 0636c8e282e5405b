//! Scalar functions of float64 and complex128, from the standard library and from series.

use keyfold_core::Complex;
use keyfold_expr::{Binary, Unary};

/// Returns the value of a function of one real number.
pub(super) fn real(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign if x == 0.0 || x.is_nan() => x.abs(),
        Unary::Sign => x.signum(),
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log2 => x.log2(),
        Unary::Log10 => x.log10(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid if x >= 0.0 => 1.0 / (1.0 + (-x).exp()),
        Unary::Sigmoid => x.exp() / (1.0 + x.exp()),
        Unary::Erf => erf(x),
        Unary::Erfc => erfc(x),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        // The others take no real number, or return none.
        _ => x,
    }
}

/// Returns `exp(-x * x)` without the rounding error of the square.
fn exp_of_square(x: f64) -> f64 {
    let square = x * x;
    let rest = x.mul_add(x, -square);
    (-square).exp() * (1.0 - rest)
}

const TWO_OVER_SQRT_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI;

/// Returns erf by its series of positive terms (M. Abramowitz, I. Stegun, 7.1.6), and 1 - erfc
/// beyond 0.8.
fn erf(x: f64) -> f64 {
    let size = x.abs();
    if x.is_nan() {
        return x;
    }
    if size > 0.8 {
        return (1.0 - erfc_of_large(size)).copysign(x);
    }
    let (mut term, mut sum, mut n) = (size, size, 1.0);
    while term > sum * 1e-18 {
        term *= 2.0 * size * size / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    (TWO_OVER_SQRT_PI * exp_of_square(size) * sum).copysign(x)
}

fn erfc(x: f64) -> f64 {
    match x {
        x if x > 0.8 => erfc_of_large(x),
        x if x < -0.8 => 2.0 - erfc_of_large(-x),
        x => 1.0 - erf(x),
    }
}

/// Returns erfc by its continued fraction (M. Abramowitz, I. Stegun, 7.1.14), backwards.
fn erfc_of_large(x: f64) -> f64 {
    if x > 30.0 {
        return 0.0;
    }
    let terms = 30 + (250.0 / (x * x)) as i32;
    let mut fraction = x;
    for n in (1..=terms).rev() {
        fraction = x + f64::from(n) / 2.0 / fraction;
    }
    exp_of_square(x) / (fraction * std::f64::consts::PI.sqrt())
}

/// Returns the value of a function of one complex number.
pub(super) fn complex(op: Unary, c: Complex<f64>) -> Complex<f64> {
    match op {
        Unary::Neg => -c,
        Unary::Conj => c.conj(),
        Unary::Sign if c.norm() == 0.0 => Complex::default(),
        Unary::Sign => c / c.norm(),
        Unary::Exp => c.exp(),
        Unary::Log => c.ln(),
        Unary::Sqrt => c.sqrt(),
        Unary::Rsqrt => Complex::new(1.0, 0.0) / c.sqrt(),
        Unary::Sin => c.sin(),
        Unary::Cos => c.cos(),
        Unary::Tanh => c.tanh(),
        // The others take no complex number, or return a real one.
        _ => c,
    }
}

/// Returns `a // b` of floats as the language of expressions defines it: from the remainder.
fn floor_div(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let rest = a % b;
    let apart = rest != 0.0 && (rest < 0.0) != (b < 0.0);
    let quotient = (a - rest) / b - if apart { 1.0 } else { 0.0 };
    if quotient == 0.0 { 0f64.copysign(a / b) } else { quotient.round_ties_even() }
}

/// Returns `a % b` of floats, with the sign of `b`.
fn modulo(a: f64, b: f64) -> f64 {
    let rest = a % b;
    match rest {
        0.0 => 0f64.copysign(b),
        rest if (rest < 0.0) != (b < 0.0) => rest + b,
        rest => rest,
    }
}

/// Returns the value of an arithmetic function of two real numbers.
pub(super) fn real_binary(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Min | Binary::Max if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::Pow => a.powf(b),
        Binary::Mod => modulo(a, b),
        // The others return bools, or take integers only.
        _ => floor_div(a, b),
    }
}

/// Returns the value of an arithmetic function of two complex numbers.
pub(super) fn complex_binary(op: Binary, a: Complex<f64>, b: Complex<f64>) -> Complex<f64> {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        // Complex numbers have no other function.
        _ if b.norm() == 0.0 => Complex::new(1.0, 0.0),
        _ => a.powc(b),
    }
}

/// Returns the value of a function of two integers, before it is wrapped; `None` for a negative
/// exponent.
pub(super) fn whole_binary(op: Binary, a: i128, b: i128, bits: i128) -> Option<i128> {
    let is_bool = bits == 1;
    Some(match op {
        Binary::Add if is_bool => a | b,
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a.wrapping_mul(b),
        Binary::FloorDiv | Binary::Mod if b == 0 => 0,
        Binary::FloorDiv => (a - (a % b + b) % b) / b,
        Binary::Mod => (a % b + b) % b,
        Binary::Pow if b < 0 => return None,
        // The powers of an even base are 0 from the width on, those of an odd one have a period.
        Binary::Pow => {
            let (mut power, mut base, mut left) = (1_i128, a, b);
            while left > 0 {
                if left % 2 == 1 {
                    power = power.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                left /= 2;
            }
            power
        }
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl if b < 0 || b >= bits => 0,
        Binary::Shl => a << b,
        Binary::Shr if b < 0 || b >= bits => -i128::from(a < 0),
        Binary::Shr => a >> b,
        // The others return bools, or floats.
        _ => return None,
    })
}
