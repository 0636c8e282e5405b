//! Results of the float64 functions beside the standard library's, which are within 1 ulp (tanh
//! and log1p: 2), over bit patterns and where each function changes; and special values.
//!
//! tests/test_accuracy.py measures the errors themselves.

use keyfold_expr::isa::{self, Level};
use keyfold_expr::math::slices;

/// Kernels are chosen for the whole process: one level at a time.
fn for_each_level(mut f: impl FnMut(Level)) {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        assert_eq!(isa::set_level(level), level);
        f(level);
    }
}

/// How many float64s apart; infinitely many where one is NaN or a zero of another sign.
fn apart(a: f64, b: f64) -> u64 {
    if a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan() {
        return 0;
    }
    if a.is_nan() || b.is_nan() || a.is_sign_negative() != b.is_sign_negative() {
        return u64::MAX;
    }
    a.to_bits().abs_diff(b.to_bits())
}

/// Every exponent and both signs, and a grid from `low` to `high`.
fn arguments(low: f64, high: f64) -> Vec<f64> {
    let step = (1 << 46) + 12_345;
    let patterns = (0..=u64::MAX).step_by(step).map(f64::from_bits);
    let grid = (0..=100_000).map(|k| low + (high - low) * f64::from(k) / 1e5);
    // A signalling NaN is no number's fault: libm treats it in its own way.
    let quiet = |x: f64| if x.is_nan() { f64::NAN } else { x };
    patterns.chain(grid).map(quiet).collect()
}

fn check(
    name: &str,
    (low, high): (f64, f64),
    bound: u64,
    f: fn(&[f64], &mut [f64]),
    expected: impl Fn(f64) -> f64,
) {
    let x = arguments(low, high);
    let expected: Vec<f64> = x.iter().map(|x| expected(*x)).collect();
    for_each_level(|level| {
        let mut out = vec![0.0; x.len()];
        f(&x, &mut out);
        let (worst, at) =
            (0..x.len()).map(|at| (apart(out[at], expected[at]), at)).max().unwrap_or((0, 0));
        #[allow(clippy::print_stdout, reason = "the table of errors")]
        {
            println!("f64 {name:8} {:9} {worst} apart at {:e}", level.name(), x[at]);
        }
        assert!(worst <= bound, "{name}({:e}) = {:e}, not {:e}", x[at], out[at], expected[at]);
    });
}

#[test]
fn exponentials_and_logarithms_agree_with_the_standard_library() {
    check("exp", (-750.0, 712.0), 2, slices::exp, f64::exp);
    check("exp2", (-1080.0, 1026.0), 2, slices::exp2, f64::exp2);
    check("expm1", (-40.0, 40.0), 3, slices::expm1, f64::exp_m1);
    check("log", (0.0, 4.0), 2, slices::log, f64::ln);
    check("log2", (0.0, 4.0), 3, slices::log2, f64::log2);
    check("log1p", (-1.0, 4.0), 3, slices::log1p, f64::ln_1p);
}

#[test]
fn other_functions_agree_with_the_standard_library() {
    check("sqrt", (0.0, 4.0), 0, slices::sqrt, f64::sqrt);
    check("rsqrt", (0.0, 4.0), 0, slices::rsqrt, |x| 1.0 / x.sqrt());
    check("tanh", (-20.0, 20.0), 3, slices::tanh, f64::tanh);
    // The standard library has no sigmoid: this one is good to 2 ulp where it isn't subnormal.
    check("sigmoid", (-745.0, 40.0), 4, slices::sigmoid, |x| {
        if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
    });
    check("sin", (-100.0, 100.0), 2, slices::sin, f64::sin);
    check("cos", (-100.0, 100.0), 2, slices::cos, f64::cos);
}

#[test]
fn whole_numbers_are_exact() {
    check("floor", (-4.0, 4.0), 0, slices::floor, f64::floor);
    check("ceil", (-4.0, 4.0), 0, slices::ceil, f64::ceil);
    check("round", (-4.0, 4.0), 0, slices::round, f64::round_ties_even);
    check("trunc", (-4.0, 4.0), 0, slices::trunc, f64::trunc);
    check("abs", (-4.0, 4.0), 0, slices::abs, f64::abs);
}

#[test]
fn powers_agree_with_the_standard_library() {
    let exponents = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        3.0,
        0.5,
        -0.5,
        1.0 / 3.0,
        -2.0,
        17.0,
        -35.0,
        1e-3,
        127.3,
        -777.7,
        1e-300,
        9_007_199_254_740_991.0,
        -9_007_199_254_740_992.0,
        1e300,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let mut x = arguments(-4.0, 4.0);
    x.extend([0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    let mut out = vec![0.0; x.len()];
    for y in exponents {
        for_each_level(|level| {
            slices::pow(&x, &vec![y; x.len()], &mut out);
            for (x, got) in x.iter().zip(&out) {
                let expected = x.powf(y);
                let far = apart(*got, expected);
                assert!(far <= 3, "{x:e} ** {y:e} = {got:e}, not {expected:e} ({})", level.name());
            }
        });
    }
}

#[test]
fn whole_powers_of_small_numbers_are_exact() {
    let pairs: Vec<(f64, f64)> =
        (-30..=30).flat_map(|x| (0..10).map(move |y| (f64::from(x), f64::from(y)))).collect();
    let (x, y): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    let mut out = vec![0.0; x.len()];
    for_each_level(|_| {
        slices::pow(&x, &y, &mut out);
        for ((x, y), got) in x.iter().zip(&y).zip(&out) {
            assert_eq!(*got, x.powi(*y as i32), "{x} ** {y}");
        }
    });
}

#[test]
fn erf_has_known_values() {
    // Of 30 digits, rounded.
    let known = [
        (0.0, 0.0),
        (-0.0, -0.0),
        (1e-300, 1.128_379_167_095_512_6e-300),
        (5e-324, 5e-324),
        (0.25, 0.276_326_390_168_236_96),
        (0.5, 0.520_499_877_813_046_5),
        (1.0, 0.842_700_792_949_714_9),
        (-1.5, -0.966_105_146_475_310_8),
        (2.0, 0.995_322_265_018_952_7),
        (3.0, 0.999_977_909_503_001_4),
        (4.0, 0.999_999_984_582_742_1),
        (6.0, 1.0),
        (f64::INFINITY, 1.0),
        (f64::NEG_INFINITY, -1.0),
        (f64::NAN, f64::NAN),
    ];
    for_each_level(|_| {
        for (x, expected) in known {
            let mut out = [0.0];
            slices::erf(&[x], &mut out);
            assert!(apart(out[0], expected) <= 2, "erf({x:e}) = {:e}, not {expected:e}", out[0]);
        }
    });
}

#[test]
fn special_values_are_those_of_the_c_library() {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    type Row = (fn(&[f64], &mut [f64]), [f64; 8]);
    let x = [0.0, -0.0, INF, -INF, NAN, 5e-324, 1e308, -1e308];
    let tiny = 5e-324;
    let rows: [Row; 10] = [
        (slices::exp, [1.0, 1.0, INF, 0.0, NAN, 1.0, INF, 0.0]),
        (slices::exp2, [1.0, 1.0, INF, 0.0, NAN, 1.0, INF, 0.0]),
        (slices::expm1, [0.0, -0.0, INF, -1.0, NAN, tiny, INF, -1.0]),
        (slices::log, [-INF, -INF, INF, NAN, NAN, tiny.ln(), 1e308f64.ln(), NAN]),
        (slices::log2, [-INF, -INF, INF, NAN, NAN, -1074.0, 1e308f64.log2(), NAN]),
        (slices::log1p, [0.0, -0.0, INF, NAN, NAN, tiny, 1e308f64.ln(), NAN]),
        (slices::tanh, [0.0, -0.0, 1.0, -1.0, NAN, tiny, 1.0, -1.0]),
        (slices::sigmoid, [0.5, 0.5, 1.0, 0.0, NAN, 0.5, 1.0, 0.0]),
        (slices::sign, [0.0, -0.0, 1.0, -1.0, NAN, 1.0, 1.0, -1.0]),
        (slices::sin, [0.0, -0.0, NAN, NAN, NAN, tiny, 1e308f64.sin(), -1e308f64.sin()]),
    ];
    for_each_level(|level| {
        for (row, (f, expected)) in rows.iter().enumerate() {
            let mut out = [0.0; 8];
            f(&x, &mut out);
            for at in 0..8 {
                let (x, got, expected) = (x[at], out[at], expected[at]);
                assert!(apart(got, expected) <= 1, "row {row}, {x:e}: {got:e} ({})", level.name());
            }
        }
    });
}

#[test]
fn a_block_with_one_large_angle_is_right_everywhere() {
    for_each_level(|_| {
        let mut x: Vec<f64> = (0..1000).map(|k| f64::from(k) * 0.37 - 100.0).collect();
        x[617] = 1e22;
        x[3] = f64::INFINITY;
        let (mut sin, mut cos) = (vec![0.0; 1000], vec![0.0; 1000]);
        slices::sin(&x, &mut sin);
        slices::cos(&x, &mut cos);
        let mut in_place = x.clone();
        slices::map_in_place::<keyfold_expr::math::function::Sin, f64>(&mut in_place);
        for at in 0..1000 {
            assert!(
                apart(sin[at], x[at].sin()) <= 2 && apart(cos[at], x[at].cos()) <= 2,
                "{}",
                x[at]
            );
            assert_eq!(apart(in_place[at], sin[at]), 0);
        }
    });
}
