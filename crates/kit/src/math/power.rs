//! Powers: the logarithm is computed with as many extra bits as the exponent of the result has.

use keyfold_expr::coefficients::{ATANH, LN2, TWO_THIRDS};

use crate::isa::Isa;
use crate::math::Real;
use crate::math::float64::{EXP, MAGIC, clamp, mantissa, reduce_ln2, scale};

/// The coefficients of log2(1 + f) / f.
const LOG2: [f64; 14] = [
    1.442_695_040_892_575,
    -0.721_347_520_469_139_9,
    0.480_898_343_803_238_6,
    -0.360_673_751_894_403_87,
    0.288_539_458_374_093_95,
    -0.240_449_982_351_107_84,
    0.206_075_333_627_625_6,
    -0.180_302_462_261_763_1,
    0.160_902_353_717_684_83,
    -0.145_014_569_338_925_56,
    0.123_473_614_927_691_39,
    -0.111_723_557_972_272_36,
    0.157_809_999_915_675_8,
    -0.150_588_177_535_990_1,
];
/// The coefficients of 2^r.
const EXP2: [f64; 8] = [
    0.999_999_999_961_624_9,
    0.693_147_180_728_695_7,
    0.240_226_511_987_418_87,
    0.055_504_103_529_232_9,
    0.009_618_027_173_266_7,
    0.001_333_392_279_313_366,
    0.000_154_693_172_722_649_4,
    1.520_191_229_142_858_8e-5,
];

/// Returns `a * b` and the rounding error: by a fused multiply-add, or by T. Dekker's splitting ("A
/// floating-point technique for extending the available precision", 1971).
#[inline(always)]
pub(super) fn product<I: Isa>(a: f64, b: f64) -> (f64, f64) {
    let high = a * b;
    if I::FMA {
        return (high, I::mul_add_f64(a, b, -high));
    }
    let halves = |x: f64| {
        let spread = x * 134_217_729.0;
        let top = spread - (spread - x);
        (top, x - top)
    };
    let ((a1, a2), (b1, b2)) = (halves(a), halves(b));
    (high, ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2)
}

/// Returns `a + b` for `|a| >= |b|`, and the rounding error.
#[inline(always)]
pub(super) fn sum(a: f64, b: f64) -> (f64, f64) {
    let high = a + b;
    (high, b - (high - a))
}

/// The product of two numbers that are each a sum of two floats.
#[inline(always)]
fn times<I: Isa>(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    let (high, low) = product::<I>(a.0, b.0);
    (high, low + (a.0 * b.1 + a.1 * b.0))
}

/// The natural logarithm of a positive finite number as a sum of two floats, with a relative error of
/// about 2^-66.
#[inline(always)]
fn log<I: Isa>(x: f64) -> (f64, f64) {
    let (k, m) = mantissa(x);
    let f = m - 1.0;
    // s = f / (m + 1), in two parts.
    let below = m + 1.0;
    let below_low = m - (below - 1.0);
    let inverse = 1.0 / below;
    let s = f * inverse;
    let (back, back_low) = product::<I>(s, below);
    let s = (s, (((f - back) - back_low) - s * below_low) * inverse);
    let z = times::<I>(s, s);
    let more = z.0 * z.0.polynomial::<I, 8>(&ATANH);
    let (factor, factor_low) = sum(TWO_THIRDS[0], more);
    let series = times::<I>(z, (factor, factor_low + TWO_THIRDS[1]));
    let (whole, whole_low) = sum(2.0, series.0);
    let part = times::<I>(s, (whole, whole_low + series.1));
    // |k ln 2| is the greater summand unless k is 0, and then the sum is exact.
    let (high, low) = sum(k * LN2[0], part.0);
    (high, low + I::mul_add_f64(k, LN2[1], part.1))
}

/// Applies C's annex F for a negative or special base, given `|x| ** y`.
#[inline(always)]
fn signed<I: Isa>(x: f64, y: f64, value: f64) -> f64 {
    let half = y * 0.5;
    let whole = Real::round::<I>(y) == y;
    let odd = whole & (Real::round::<I>(half) != half);
    let value = if x.abs() == 1.0 { 1.0 } else { value };
    let value = if (x < 0.0) & (x > f64::NEG_INFINITY) & !whole { f64::NAN } else { value };
    let sign = if odd { x.to_bits() & (1 << 63) } else { 0 };
    let value = f64::from_bits(value.to_bits() | sign);
    if (y == 0.0) | (x == 1.0) { 1.0 } else { value }
}

/// `x ** y`: `2 ** (y * log2(x))` in float64.
#[inline(always)]
pub(super) fn of_f32<I: Isa>(x: f32, y: f32) -> f32 {
    let (x, y) = (f64::from(x), f64::from(y));
    let a = x.abs();
    let log = log2::<I>(a);
    let log = if a < f64::INFINITY { log } else { a };
    let log = if a == 0.0 { f64::NEG_INFINITY } else { log };
    signed::<I>(x, y, exp2::<I>(y * log)) as f32
}

/// The logarithm to base 2 of a positive normal number, with more digits than a float32.
#[inline(always)]
pub(super) fn log2<I: Isa>(x: f64) -> f64 {
    let (k, m) = mantissa_normal(x);
    let f = m - 1.0;
    I::mul_add_f64(f, f.polynomial::<I, 14>(&LOG2), k)
}

/// `2 ** x` with more digits than a float32, over float32's range.
#[inline(always)]
pub(super) fn exp2<I: Isa>(x: f64) -> f64 {
    let t = clamp(x, -160.0, 160.0);
    let shifted = t + MAGIC;
    let r = t - (shifted - MAGIC);
    let p = r.polynomial::<I, 8>(&EXP2);
    p * f64::from_bits((shifted.to_bits() << 52).wrapping_add(0x3ff0_0000_0000_0000))
}

/// Splits x, which isn't subnormal, into `2^k m`, m from 2/3 to 4/3: returns k and m.
#[inline(always)]
fn mantissa_normal(x: f64) -> (f64, f64) {
    const TWO_THIRDS: u64 = 0x3fe5_5555_5555_5555;
    let above = x.to_bits().wrapping_sub(TWO_THIRDS);
    let biased = (above.wrapping_add(0x3ff0_0000_0000_0000) >> 52) | 0x4330_0000_0000_0000;
    let m = x.to_bits().wrapping_sub(above & 0xfff0_0000_0000_0000);
    (f64::from_bits(biased) - 4_503_599_627_371_519.0, f64::from_bits(m))
}

/// `x ** y`: `e ** (y * log(x))`, with the logarithm and the product as sums of two floats.
#[inline(always)]
pub(super) fn of_f64<I: Isa>(x: f64, y: f64) -> f64 {
    let a = x.abs();
    let (log, log_low) = log::<I>(a);
    let log = if a < f64::INFINITY { log } else { a };
    let log = if a == 0.0 { f64::NEG_INFINITY } else { log };
    let (t, t_low) = product::<I>(y, log);
    let t_low = t_low + y * log_low;
    // Beyond this bound the result is 0 or infinite, and the low part may be NaN.
    let t_low = if t.abs() < 1000.0 { t_low } else { 0.0 };
    let (n, r) = reduce_ln2::<I>(clamp(t, -746.0, 710.0));
    let r = r + t_low;
    let e = I::mul_add_f64(r * r, r.polynomial::<I, 11>(&EXP), r);
    signed::<I>(x, y, scale(1.0 + e, n))
}
