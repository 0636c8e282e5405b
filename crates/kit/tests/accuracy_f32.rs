//! Errors of the float32 functions, in units in the last place, over the bit patterns of float32: every
//! 3989th, or at the distance set by KEYFOLD_FLOAT_STEP (1: all of them, which takes hours).

use keyfold_kit::isa::{self, Level};
use keyfold_kit::math::slices;

const BLOCK: usize = 4096;

/// The instruction level is set for the whole process, so tests run one at a time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_available())
}

/// The error of `got` in units of the spacing of float32 around `exact`; infinite if only one of them is
/// NaN, if the sign is wrong, or if only one of them is or rounds to infinity.
fn ulps(got: f32, exact: f64) -> f64 {
    let near = exact as f32;
    if got.is_nan() || exact.is_nan() {
        return if got.is_nan() && exact.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got.is_sign_negative() != near.is_sign_negative() {
        return f64::INFINITY;
    }
    if got == near {
        // The correctly rounded result: an error of at most a half.
        return if near.is_finite() { (f64::from(got) - exact).abs() / ulp(exact) } else { 0.0 };
    }
    // Infinity counts as 2^128, the number that would follow the greatest float32.
    let got =
        if got.is_infinite() { 2f64.powi(128).copysign(f64::from(got)) } else { f64::from(got) };
    (got - exact).abs() / ulp(exact)
}

fn ulp(x: f64) -> f64 {
    let exponent = ((x.abs().to_bits() >> 52) as i32 - 1023).clamp(-126, 127);
    2f64.powi(exponent - 23)
}

/// The distance between the bit patterns of a sweep.
fn step() -> usize {
    let given = std::env::var("KEYFOLD_FLOAT_STEP").ok().and_then(|step| step.parse().ok());
    given.unwrap_or(3989).max(1)
}

/// The worst error over a sweep at each level, and the argument where it occurs.
fn worst(
    step: usize,
    f: impl Fn(&[f32], &mut [f32]),
    exact: impl Fn(f64) -> f64,
) -> Vec<(Level, f64, f32)> {
    let _guard = alone();
    let mut worst: Vec<_> = levels().map(|level| (level, 0.0, 0.0)).collect();
    let (mut x, mut y) = (Vec::with_capacity(BLOCK), Vec::with_capacity(BLOCK));
    let mut out = [0.0; BLOCK];
    let mut patterns = (0..=u32::MAX).step_by(step);
    loop {
        x.clear();
        x.extend(patterns.by_ref().take(BLOCK).map(f32::from_bits));
        if x.is_empty() {
            return worst;
        }
        y.clear();
        y.extend(x.iter().map(|x| exact(f64::from(*x))));
        for (level, error, place) in &mut worst {
            assert_eq!(isa::set_level(*level), *level);
            f(&x, &mut out[..x.len()]);
            for ((x, y), got) in x.iter().zip(&y).zip(&out) {
                let here = ulps(*got, *y);
                if here > *error {
                    (*error, *place) = (here, *x);
                }
            }
        }
    }
}

fn check(name: &str, bound: f64, f: impl Fn(&[f32], &mut [f32]), exact: impl Fn(f64) -> f64) {
    check_every(step(), name, bound, f, exact);
}

fn check_every(
    step: usize,
    name: &str,
    bound: f64,
    f: impl Fn(&[f32], &mut [f32]),
    exact: impl Fn(f64) -> f64,
) {
    let worst = worst(step, f, exact);
    for (level, error, place) in &worst {
        let level = level.name();
        #[allow(clippy::print_stdout, reason = "the table of errors")]
        {
            println!("f32 {name:8} {level:9} {error:.3} ulp at {place:e}");
        }
    }
    for (level, error, place) in worst {
        assert!(error <= bound, "{name} at {}: {error} ulp at {place:e}", level.name());
    }
}

#[test]
fn exponentials_are_within_2_ulp() {
    check("exp", 2.0, slices::exp, f64::exp);
    check("exp2", 2.0, slices::exp2, f64::exp2);
    check("expm1", 2.0, slices::expm1, f64::exp_m1);
}

#[test]
fn logarithms_are_within_2_ulp() {
    check("log", 2.0, slices::log, f64::ln);
    check("log2", 2.0, slices::log2, f64::log2);
    check("log10", 2.0, slices::log10, f64::log10);
    check("log1p", 2.0, slices::log1p, f64::ln_1p);
}

#[test]
fn roots_are_within_2_ulp() {
    check("sqrt", 0.5, slices::sqrt, f64::sqrt);
    check("rsqrt", 2.0, slices::rsqrt, |x| 1.0 / x.sqrt());
}

#[test]
fn tanh_and_sigmoid_are_within_2_ulp() {
    check("tanh", 2.0, slices::tanh, f64::tanh);
    check("sigmoid", 2.0, slices::sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
}

#[test]
fn sine_and_cosine_are_within_2_ulp() {
    check("sin", 2.0, slices::sin, f64::sin);
    check("cos", 2.0, slices::cos, f64::cos);
}

/// The error function in float64: its series below 3, the continued fraction of erfc above.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() || a > 6.0 {
        return if a.is_nan() { x } else { 1f64.copysign(x) };
    }
    let value = if a < 3.0 {
        // 2 / sqrt(pi) exp(-x^2) times the sum of 2^k x^(2k+1) / (2k+1)!!: all terms have one sign.
        let (mut term, mut sum, mut k) = (a, a, 0.0);
        while term > sum * 1e-18 {
            k += 1.0;
            term *= 2.0 * a * a / (2.0 * k + 1.0);
            sum += term;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-a * a).exp() * sum
    } else {
        let mut fraction = a;
        for k in (1..60).rev() {
            fraction = a + f64::from(k) / 2.0 / fraction;
        }
        1.0 - (-a * a).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

/// The complementary error function in float64, with more digits than a float32.
fn erfc(x: f64) -> f64 {
    if x.is_nan() || x < 3.0 {
        return 1.0 - erf(x);
    }
    let mut fraction = x;
    for k in (1..60).rev() {
        fraction = x + f64::from(k) / 2.0 / fraction;
    }
    (-x * x).exp() / (fraction * std::f64::consts::PI.sqrt())
}

#[test]
fn erfc_is_within_4_ulp_down_to_underflow() {
    check("erfc", 4.0, slices::erfc, erfc);
}

#[test]
fn erf_is_within_4_ulp() {
    check("erf", 4.0, slices::erf, erf);
}

#[test]
fn integers_are_exact() {
    check("floor", 0.0, slices::floor, f64::floor);
    check("ceil", 0.0, slices::ceil, f64::ceil);
    check("round", 0.0, slices::round, f64::round_ties_even);
    check("trunc", 0.0, slices::trunc, f64::trunc);
    check("abs", 0.0, slices::abs, f64::abs);
    check("sign", 0.0, slices::sign, |x| if x == 0.0 || x.is_nan() { x } else { x.signum() });
}

#[test]
fn powers_are_within_4_ulp() {
    let exponents = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        3.0,
        0.5,
        -0.5,
        0.333_333_34,
        -2.0,
        17.0,
        -35.0,
        1e-3,
        127.3,
        -77.7,
        1e-40,
        8.3e6,
        -16_777_215.0,
        16_777_216.0,
        3e38,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    for y in exponents {
        check_every(
            step() * 16 + 1,
            &format!("pow {y:e}"),
            4.0,
            |x, out| slices::pow(x, &vec![y; x.len()], out),
            |x| x.powf(f64::from(y)),
        );
    }
}

#[test]
fn min_and_max_give_nan_if_either_is() {
    let _guard = alone();
    for level in levels() {
        isa::set_level(level);
        let x = [1.0, 2.0, f32::NAN, 1.0, f32::INFINITY, -1.0];
        let y = [2.0, 1.0, 1.0, f32::NAN, 1.0, f32::NEG_INFINITY];
        let mut out = [0.0; 6];
        slices::min(&x, &y, &mut out);
        assert_eq!(&out[..2], [1.0, 1.0]);
        assert!(out[2].is_nan() && out[3].is_nan());
        assert_eq!(&out[4..], [1.0, f32::NEG_INFINITY]);
        slices::max(&x, &y, &mut out);
        assert_eq!(&out[..2], [2.0, 2.0]);
        assert!(out[2].is_nan() && out[3].is_nan());
        assert_eq!(&out[4..], [f32::INFINITY, -1.0]);
    }
}
