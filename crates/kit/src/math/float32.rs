//! The functions of float32, computed in float32 except for the argument reduction of sin and cos.

use keyfold_expr::coefficients::ERF_SINGLE;

use crate::isa::Isa;
use crate::math::avx512::{self, Avx512Function};
use crate::math::{Real, Scaling, erfc, float64, log10, power};

/// Adding this rounds a number below 2^22 to an integer, which then stands in the lowest bits of the
/// sum.
pub(super) const MAGIC: f32 = 12_582_912.0;
const ONE: u32 = 0x3f80_0000;
/// ln 2 in two parts: the first has 10 bits, so that its multiples are exact.
pub(super) const LN2_HIGH: f32 = 0.693_359_4;
pub(super) const LN2_LOW: f32 = -0.000_212_194_44;
/// 2^-32, the scale of sigmoid's terms.
pub(super) const SIGMOID_SCALE: f32 = 1.0 / (1_u64 << 32) as f32;
/// Mantissas are normalised to 2/3 .. 4/3.
const TWO_THIRDS: u32 = 0x3f2a_aaab;

pub(super) const EXP: [f32; 5] =
    [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_717, 0.001_381_458_5];
const EXPM1: [f32; 6] =
    [0.5, 0.166_666_67, 0.041_666_325, 0.008_333_22, 0.001_394_321, 0.000_199_621_72];
const EXP2: [f32; 7] = [
    std::f32::consts::LN_2,
    0.240_226_5,
    0.055_504_005,
    0.009_618_057,
    0.001_334_196_1,
    0.000_154_613_84,
    1.335_831_9e-5,
];
pub(super) const LOG: [f32; 9] = [
    0.333_333_34,
    -0.249_998_2,
    0.199_995_98,
    -0.166_795_86,
    0.143_044_7,
    -0.121_956_45,
    0.107_540_734,
    -0.128_457_16,
    0.120_078_53,
];
const SIN: [f32; 4] = [-0.166_666_67, 0.008_333_329, -0.000_198_393_11, 2.718_118e-6];
const COS: [f32; 3] = [0.041_666_646, -0.001_388_731_6, 2.443_312e-5];
const ERF_SPLIT: f32 = 0.9;
const ERFC: [f32; 8] = [
    -0.000_244_108_55,
    1.629_507_3,
    0.913_804_3,
    0.156_128_97,
    -0.036_183_66,
    0.005_996_199_3,
    -0.000_622_367_5,
    3.004_918e-5,
];
const TANH: [f32; 5] = [-0.333_333_16, 0.13332586, -0.053_852_31, 0.021_071_68, -0.006_274_241_5];

/// Reduces x to an integer n and a remainder r with `x = n ln 2 + r`, `|r| <= ln 2 / 2`; n is in the low
/// bits of a word.
#[inline(always)]
pub(super) fn reduce_ln2<I: Isa>(x: f32) -> (u32, f32) {
    let shifted = I::mul_add_f32(x, std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = I::mul_add_f32(n, -LN2_HIGH, x);
    (shifted.to_bits(), I::mul_add_f32(n, -LN2_LOW, r))
}

/// `p * 2^n` for p near 1 and n from -151 to 129, by two factors: a subnormal result is rounded once,
/// and too large a result is infinite.
#[inline(always)]
pub(super) fn scale(p: f32, n: u32) -> f32 {
    let half = n >> 1;
    let first = f32::from_bits((half << 23).wrapping_add(ONE));
    // The exponent is changed by products: adding to its bits would turn NaN into a number.
    p * first * f32::from_bits((n.wrapping_sub(half) << 23).wrapping_add(ONE))
}

/// Clamps `x` to a range; NaN stays.
#[inline(always)]
pub(super) fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > high { high } else { x };
    if x < low { low } else { x }
}

/// Splits normal positive x into `2^k m`, m from 2/3 to 4/3: returns k and the bits of m.
#[inline(always)]
fn split(x: f32) -> (i32, u32) {
    let k = (x.to_bits().wrapping_sub(TWO_THIRDS) as i32) >> 23;
    (k, x.to_bits().wrapping_sub((k << 23) as u32))
}

/// Splits x, which may be subnormal, into `2^k (1 + f)`: returns k and f.
#[inline(always)]
pub(super) fn mantissa(x: f32) -> (f32, f32) {
    let tiny = x < f32::MIN_POSITIVE;
    let (k, m) = split(if tiny { x * 8_388_608.0 } else { x });
    (k as f32 - if tiny { 23.0 } else { 0.0 }, f32::from_bits(m) - 1.0)
}

/// `k ln 2 + log(1 + f)`.
#[inline(always)]
fn log_from_parts<I: Isa>(k: f32, f: f32) -> f32 {
    let square = f * f;
    let rest = I::mul_add_f32(square * f, f.polynomial::<I, 9>(&LOG), k * LN2_LOW);
    let rest = I::mul_add_f32(square, -0.5, rest);
    I::mul_add_f32(k, LN2_HIGH, f + rest)
}

/// Handles the special cases of a logarithm that is -inf at `edge`; elsewhere returns `value`.
#[inline(always)]
pub(super) fn log_special_cases(x: f32, edge: f32, value: f32) -> f32 {
    let value = if x < f32::INFINITY { value } else { x };
    let value = if x < edge { f32::NAN } else { value };
    if x == edge { f32::NEG_INFINITY } else { value }
}

/// Reduces x by a multiple of pi / 2; returns the multiple's lowest bits and the remainder.
#[inline(always)]
fn reduce_half_pi<I: Isa>(x: f32) -> (u32, f32) {
    let (n, r) = float64::reduce_half_pi_short::<I>(f64::from(x));
    (n as u32, r as f32)
}

/// sin(r) and cos(r) for `|r| <= pi / 4`.
#[inline(always)]
fn sin_cos<I: Isa>(r: f32) -> (f32, f32) {
    let z = r * r;
    let sin = I::mul_add_f32(r * z, z.polynomial::<I, 4>(&SIN), r);
    let cos = I::mul_add_f32(z, I::mul_add_f32(z, z.polynomial::<I, 3>(&COS), -0.5), 1.0);
    (sin, cos)
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const HALF: f32 = 0.5;
    const TWO: f32 = 2.0;
    const INFINITY: f32 = f32::INFINITY;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;
    const NAN: f32 = f32::NAN;
    const EPSILON: f32 = f32::EPSILON;
    const SIN_LIMIT: f32 = 1_048_576.0;

    #[inline(always)]
    fn from_f64(x: f64) -> f32 {
        x as f32
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }

    #[inline(always)]
    fn copysign(self, sign: f32) -> f32 {
        f32::copysign(self, sign)
    }

    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }

    #[inline(always)]
    fn mul_add<I: Isa>(self, b: f32, c: f32) -> f32 {
        I::mul_add_f32(self, b, c)
    }

    #[inline(always)]
    fn round<I: Isa>(self) -> f32 {
        if I::FMA {
            // Every level with fused multiply-add has an instruction for this.
            return self.round_ties_even();
        }
        let whole = (self.abs() + 8_388_608.0) - 8_388_608.0;
        if self.abs() < 8_388_608.0 { whole.copysign(self) } else { self }
    }

    #[inline(always)]
    fn exp<I: Isa>(self) -> f32 {
        let (n, r) = reduce_ln2::<I>(clamp(self, -104.0, 89.0));
        let p = I::mul_add_f32(r, r.polynomial::<I, 5>(&EXP), 1.0);
        scale(I::mul_add_f32(r, p, 1.0), n)
    }

    #[inline(always)]
    fn exp2<I: Isa>(self) -> f32 {
        let x = clamp(self, -151.0, 129.0);
        let shifted = x + MAGIC;
        let r = x - (shifted - MAGIC);
        scale(I::mul_add_f32(r, r.polynomial::<I, 7>(&EXP2), 1.0), shifted.to_bits())
    }

    #[inline(always)]
    fn expm1<I: Isa>(self) -> f32 {
        let (n, r) = reduce_ln2::<I>(clamp(self, -18.0, 89.0));
        let e = I::mul_add_f32(r * r, r.polynomial::<I, 6>(&EXPM1), r);
        // Half of the result first, since 2^128 isn't a float32.
        let half = f32::from_bits((n << 23).wrapping_add(ONE - (1 << 23)));
        let y = I::mul_add_f32(e, half, half - 0.5) * 2.0;
        if self.abs() < 1e-8 { self } else { y }
    }

    #[inline(always)]
    fn exp_in_range<I: Isa>(self) -> f32 {
        let (n, r) = reduce_ln2::<I>(self);
        let p = I::mul_add_f32(r, r.polynomial::<I, 5>(&EXP), 1.0);
        let power = f32::from_bits((n << 23).wrapping_add(ONE));
        I::mul_add_f32(r, p, 1.0) * power
    }

    #[inline(always)]
    fn tanh<I: Isa>(self) -> f32 {
        let a = self.abs();
        let z = a * a;
        let near = I::mul_add_f32(a * z, z.polynomial::<I, 5>(&TANH), a);
        let twice = if a > 20.0 { 40.0 } else { a + a };
        let far = 1.0 - 2.0 / (twice.exp_in_range::<I>() + 1.0);
        (if a < 0.55 { near } else { far }).copysign(self)
    }

    #[inline(always)]
    fn sigmoid<I: Isa>(self) -> f32 {
        // All terms are scaled by 2^-32, since exp(-self) may overflow.
        let (n, r) = reduce_ln2::<I>(clamp(-self, -30.0, 104.0));
        let part = r * I::mul_add_f32(r, r.polynomial::<I, 5>(&EXP), 1.0);
        let power = f32::from_bits((n << 23).wrapping_add(ONE - (32 << 23)));
        // 1 + 2^n + 2^n part: the rounding error of the first sum is added to the last term, which is
        // small.
        let whole = power + SIGMOID_SCALE;
        let lost = SIGMOID_SCALE - (whole - power);
        SIGMOID_SCALE / (whole + I::mul_add_f32(power, part, lost))
    }

    #[inline(always)]
    fn log<I: Isa>(self) -> f32 {
        let (k, f) = mantissa(self);
        log_special_cases(self, 0.0, log_from_parts::<I>(k, f))
    }

    #[inline(always)]
    fn log2<I: Isa>(self) -> f32 {
        let (k, f) = mantissa(self);
        let square = f * f;
        let rest = I::mul_add_f32(f, f.polynomial::<I, 9>(&LOG), -0.5) * square;
        // log2(e) = 1 + 0.44...: the term f is exact.
        const LOG2_E_MINUS_1: f32 = std::f32::consts::LOG2_E - 1.0;
        let rest = I::mul_add_f32(f, LOG2_E_MINUS_1, rest * std::f32::consts::LOG2_E);
        // k + f is exact where the remainder cancels much of it.
        log_special_cases(self, 0.0, (k + f) + rest)
    }

    #[inline(always)]
    fn log1p<I: Isa>(self) -> f32 {
        let (k, m) = split(1.0 + self);
        // 2^-k; where it may be subnormal, self is so large that the 1 has no effect.
        let power = f32::from_bits(ONE.wrapping_sub((k << 23) as u32));
        let f = I::mul_add_f32(self, power, power - 1.0);
        let f = if k > 64 { f32::from_bits(m) - 1.0 } else { f };
        log_special_cases(self, -1.0, log_from_parts::<I>(k as f32, f).copysign(self))
    }

    #[inline(always)]
    fn sin_in_range<I: Isa>(self) -> f32 {
        let (n, r) = reduce_half_pi::<I>(self.abs());
        let (sin, cos) = sin_cos::<I>(r);
        let y = if n & 1 == 0 { sin } else { cos };
        f32::from_bits(y.to_bits() ^ ((n & 2) << 30) ^ (self.to_bits() & 0x8000_0000))
    }

    #[inline(always)]
    fn cos_in_range<I: Isa>(self) -> f32 {
        let (n, r) = reduce_half_pi::<I>(self);
        let (sin, cos) = sin_cos::<I>(r);
        let y = if n & 1 == 0 { cos } else { sin };
        f32::from_bits(y.to_bits() ^ ((n.wrapping_add(1) & 2) << 30))
    }

    #[cold]
    fn sin_libm(self) -> f32 {
        f32::sin(self)
    }

    #[cold]
    fn cos_libm(self) -> f32 {
        f32::cos(self)
    }

    #[inline(always)]
    fn erf<I: Isa>(self) -> f32 {
        let a = self.abs();
        let near = I::mul_add_f32(a, (a * a).polynomial::<I, 7>(&ERF_SINGLE), a);
        let q = (if a > 4.0 { 4.0 } else { a }).polynomial::<I, 8>(&ERFC);
        let shifted = MAGIC - q;
        let r = (MAGIC - shifted) - q;
        let p = I::mul_add_f32(r, r.polynomial::<I, 7>(&EXP2), 1.0);
        let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(ONE));
        (if a < ERF_SPLIT { near } else { I::mul_add_f32(-p, power, 1.0) }).copysign(self)
    }

    #[inline(always)]
    fn all<F: Avx512Function, I: Isa>(x: &[f32], out: &mut [f32]) -> bool {
        avx512::all::<F, I>(x, out)
    }

    #[inline(always)]
    fn scaled<F: Avx512Function, I: Isa>(
        x: &[f32],
        y: &[f32],
        scaling: Scaling<f32>,
        out: &mut [f32],
    ) -> bool {
        avx512::scaled::<F, I>(x, y, scaling, out)
    }

    #[inline(always)]
    fn log10<I: Isa>(self) -> f32 {
        log10::of_f32::<I>(self)
    }

    #[inline(always)]
    fn erfc<I: Isa>(self) -> f32 {
        erfc::of_f32::<I>(self)
    }

    #[inline(always)]
    fn pow<I: Isa>(self, y: f32) -> f32 {
        power::of_f32::<I>(self, y)
    }
}
