//! Results of the float64 functions compared with the standard library's, which are within 1 ulp (tanh
//! and log1p: 2), over bit patterns and around the points where an algorithm changes; and special
//! values.
//!
//! tests/ops/test_accuracy.py measures the errors themselves.

use keyfold_kit::isa::{self, Level};
use keyfold_kit::math::slices;

/// The instruction level is set for the whole process, so one test runs at a time.
fn for_each_level(mut f: impl FnMut(Level)) {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        assert_eq!(isa::set_level(level), level);
        f(level);
    }
}

/// The number of float64s between two numbers; the maximum if one is NaN or they are zeros of different
/// signs.
fn apart(a: f64, b: f64) -> u64 {
    if a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan() {
        return 0;
    }
    if a.is_nan() || b.is_nan() || a.is_sign_negative() != b.is_sign_negative() {
        return u64::MAX;
    }
    a.to_bits().abs_diff(b.to_bits())
}

/// Numbers with every exponent and both signs, and a grid from `low` to `high`.
fn arguments(low: f64, high: f64) -> Vec<f64> {
    let step = (1 << 46) + 12_345;
    let patterns = (0..=u64::MAX).step_by(step).map(f64::from_bits);
    let grid = (0..=100_000).map(|k| low + (high - low) * f64::from(k) / 1e5);
    // Signalling NaN is replaced: libm treats it differently.
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
    check("log10", (0.0, 4.0), 2, slices::log10, f64::log10);
    check("log1p", (-1.0, 4.0), 3, slices::log1p, f64::ln_1p);
}

#[test]
fn other_functions_agree_with_the_standard_library() {
    check("sqrt", (0.0, 4.0), 0, slices::sqrt, f64::sqrt);
    check("rsqrt", (0.0, 4.0), 0, slices::rsqrt, |x| 1.0 / x.sqrt());
    check("tanh", (-20.0, 20.0), 3, slices::tanh, f64::tanh);
    // The standard library has no sigmoid; this reference is within 2 ulp where it isn't subnormal.
    check("sigmoid", (-745.0, 40.0), 4, slices::sigmoid, |x| {
        if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
    });
    check("sin", (-100.0, 100.0), 2, slices::sin, f64::sin);
    check("cos", (-100.0, 100.0), 2, slices::cos, f64::cos);
}

#[test]
fn integers_are_exact() {
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
fn integer_powers_of_small_numbers_are_exact() {
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

/// The expected values are mpmath's.
#[test]
fn erfc_has_known_values_down_to_underflow() {
    let table = [
        (-30.0, 2.0),
        (-6.0, 2.0),
        (-2.0, 1.995_322_265_018_952_8),
        (-0.75, 1.711_155_633_653_515_2),
        (-0.5, 1.520_499_877_813_046_5),
        (-0.25, 1.276_326_390_168_237),
        (-1e-9, 1.000_000_001_128_379_2),
        (0.0, 1.0),
        (1e-300, 1.0),
        (0.125, 0.859_683_795_198_666_2),
        (0.4999, 0.479_588_004_838_613_4),
        (0.5, 0.479_500_122_186_953_5),
        (0.5001, 0.479_412_248_323_119_3),
        (0.75, 0.288_844_366_346_484_86),
        (1.0, 0.157_299_207_050_285_13),
        (1.5, 0.033_894_853_524_689_274),
        (2.0, 0.004_677_734_981_047_266),
        (2.5, 0.000_406_952_017_444_958_9),
        (3.0, 2.209_049_699_858_544e-5),
        (3.75, 1.137_272_565_697_966_5e-7),
        (4.5, 1.966_160_441_542_887_6e-10),
        (5.5, 7.357_847_917_974_398e-15),
        (6.0, 2.151_973_671_249_891_3e-17),
        (7.0, 4.183_825_607_779_414e-23),
        (8.5, 2.762_324_071_333_771_6e-33),
        (10.0, 2.088_487_583_762_545e-45),
        (12.5, 6.231_942_781_979_911e-70),
        (15.0, 7.212_994_172_451_207e-100),
        (18.0, 6.082_369_231_816_399e-143),
        (20.0, 5.395_865_611_607_901e-176),
        (22.5, 3.445_348_860_464_602e-222),
        (25.0, 8.300_172_571_196_523e-274),
        (26.0, 5.663_192_408_856_143e-296),
        (26.5, 2.210_907_664_263_734_3e-307),
        (26.54, 2.645_558_174_468_510_4e-308),
        (27.0, 5.237_05e-319),
        (27.2, 1e-323),
    ];
    let ends = [
        (f64::INFINITY, 0.0),
        (f64::NEG_INFINITY, 2.0),
        (f64::NAN, f64::NAN),
        (27.3, 0.0),
        (1e308, 0.0),
        (-1e308, 2.0),
    ];
    for_each_level(|level| {
        for (x, expected) in table.into_iter().chain(ends) {
            let mut out = [0.0];
            slices::erfc(&[x], &mut out);
            let far = apart(out[0], expected);
            assert!(far <= 3, "{}: erfc({x:e}) = {:e}, not {expected:e}", level.name(), out[0]);
        }
    });
}

#[test]
fn logarithms_of_powers_of_the_base_are_integers() {
    let twos: Vec<f64> = (-1074..1024).map(|k| f64::from(k).exp2()).collect();
    // Parsed from text, so that each is the float64 nearest to the power.
    let tens: Vec<f64> = (-323..=308).map(|k| format!("1e{k}").parse().unwrap()).collect();
    let singles: Vec<f32> = (-45..=38).map(|k| format!("1e{k}").parse().unwrap()).collect();
    for_each_level(|level| {
        let mut out = vec![0.0; twos.len()];
        slices::log2(&twos, &mut out);
        assert!((-1074..1024).map(f64::from).eq(out), "log2, {}", level.name());
        // The expected values are the standard library's: subnormal powers of ten are too inexact for
        // integers.
        let expected: Vec<f64> = tens.iter().map(|x| x.log10()).collect();
        let mut out = vec![0.0; tens.len()];
        slices::log10(&tens, &mut out);
        let wrong: Vec<_> = (0..tens.len())
            .filter(|&at| tens[at] >= f64::MIN_POSITIVE && out[at] != expected[at])
            .collect();
        assert!(wrong.is_empty(), "log10, {}: {wrong:?}", level.name());
        let mut out = vec![0.0; singles.len()];
        slices::log10(&singles, &mut out);
        for (x, log) in singles.iter().zip(out) {
            assert_eq!(log, f64::from(*x).log10() as f32, "log10({x:e}), {}", level.name());
        }
    });
}

#[test]
fn erf_has_known_values() {
    // Rounded from 30 digits.
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
        (slices::sign, [0.0, 0.0, 1.0, -1.0, NAN, 1.0, 1.0, -1.0]),
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
        slices::map_in_place::<keyfold_kit::math::function::Sin, f64>(&mut in_place);
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
