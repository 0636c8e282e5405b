//! The functions of float64: the same algorithms as for float32, with longer polynomials.

use keyfold_expr::coefficients::ERF;

use crate::isa::Isa;
use crate::math::{Real, erfc, log10, power};

/// Adding this rounds a number below 2^51 to an integer, which then stands in the lowest bits of the
/// sum.
pub(super) const MAGIC: f64 = 6_755_399_441_055_744.0;
const ONE: u64 = 0x3ff0_0000_0000_0000;
/// ln 2 in two parts: the first has 32 bits, so that its multiples are exact.
const LN2_HIGH: f64 = 0.693_147_180_601_954_5;
const LN2_LOW: f64 = -4.200_915_072_681_084_6e-11;
/// pi / 2 in three parts: the first two have 33 bits.
const PIO2: [f64; 3] =
    [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_795_950_6e-21];
/// The sum of the second and the third part.
const PIO2_REST: f64 = 6.077_100_506_506_192e-11;
/// Mantissas are normalised to sqrt(1/2) .. sqrt(2).
const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;

/// The coefficients of exp and expm1.
pub(super) const EXP: [f64; 11] = [
    0.5,
    0.166_666_666_666_666_82,
    0.041_666_666_666_666_095,
    0.008_333_333_333_317_034,
    0.001_388_888_888_911_563_5,
    0.000_198_412_698_963_835_94,
    2.480_158_692_661_448_6e-5,
    2.755_723_486_222_820_5e-6,
    2.755_758_186_759_12e-7,
    2.511_203_670_788_536_7e-8,
    2.082_661_941_703_033_6e-9,
];
const EXP2: [f64; 12] = [
    std::f64::consts::LN_2,
    0.240_226_506_959_100_72,
    0.055_504_108_664_821_736,
    0.009_618_129_107_628_562,
    0.001_333_355_814_638_166_2,
    0.000_154_035_303_931_713_93,
    1.525_273_386_492_027e-5,
    1.321_548_700_375_727_5e-6,
    1.017_804_749_945_126_5e-7,
    7.054_814_723_173_73e-9,
    4.457_244_140_236_962e-10,
    2.585_536_009_083_796_5e-11,
];
const LOG: [f64; 7] = [
    0.666_666_666_666_673_5,
    0.399_999_999_994_087_3,
    0.285_714_287_438_797_6,
    0.222_221_984_037_282_94,
    0.181_835_739_362_121_13,
    0.153_137_851_285_202_28,
    0.147_987_924_442_415_8,
];
const SIN: [f64; 7] = [
    -0.166_666_666_666_666_66,
    0.008_333_333_333_333_323,
    -0.000_198_412_698_412_547_93,
    2.755_731_921_406_104e-6,
    -2.505_210_488_083_993e-8,
    1.605_836_303_362_610_6e-10,
    -7.578_533_671_041_856e-13,
];
const COS: [f64; 6] = [
    0.041_666_666_666_666_595,
    -0.001_388_888_888_887_305,
    2.480_158_728_884_66e-5,
    -2.755_731_417_778_26e-7,
    2.087_570_063_106_031_7e-9,
    -1.135_852_534_546_250_1e-11,
];
const ERFC: [f64; 18] = [
    7.254_716_892_273_862e-7,
    1.627_899_703_058_58,
    0.918_482_605_370_658,
    0.148_169_742_308_700_3,
    -0.027_397_036_299_842_602,
    -0.000_592_411_010_322_349_5,
    0.002_764_121_666_351_281,
    -0.001_111_802_675_163_362_3,
    0.000_194_836_142_394_719,
    2.923_879_304_844_308_4e-5,
    -3.292_598_014_903_304e-5,
    1.250_409_402_990_174e-5,
    -3.081_134_868_950_464_4e-6,
    5.385_625_238_127_313e-7,
    -6.697_404_331_989_967e-8,
    5.675_928_171_987_023e-9,
    -2.950_249_401_821_476_7e-10,
    7.110_471_248_879_774_5e-12,
];
const TANH: [f64; 11] = [
    -0.333_333_333_333_333,
    0.13333333333326622,
    -0.053968253963760565,
    0.021_869_488_385_855_06,
    -0.008_863_232_601_433_42,
    0.003_592_092_030_383_834,
    -0.0014555428455278261,
    0.000_588_444_485_635_972_8,
    -0.00023338156460906453,
    8.331_644_750_509_328e-5,
    -1.949_468_821_056_568e-5,
];

/// Reduces x to an integer n and a remainder r with `x = n ln 2 + r`, `|r| <= ln 2 / 2`; n is in the low
/// bits of a word.
#[inline(always)]
pub(super) fn reduce_ln2<I: Isa>(x: f64) -> (u64, f64) {
    let shifted = I::mul_add_f64(x, std::f64::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = I::mul_add_f64(n, -LN2_HIGH, x);
    (shifted.to_bits(), I::mul_add_f64(n, -LN2_LOW, r))
}

/// `p * 2^n` for p near 1 and n from -1076 to 1025, by two factors: a subnormal result is rounded once,
/// and too large a result is infinite.
#[inline(always)]
pub(super) fn scale(p: f64, n: u64) -> f64 {
    let half = n >> 1;
    let first = f64::from_bits((half << 52).wrapping_add(ONE));
    // The exponent is changed by products: adding to its bits would turn NaN into a number.
    p * first * f64::from_bits((n.wrapping_sub(half) << 52).wrapping_add(ONE))
}

/// Clamps `x` to a range; NaN stays.
#[inline(always)]
pub(super) fn clamp(x: f64, low: f64, high: f64) -> f64 {
    let x = if x > high { high } else { x };
    if x < low { low } else { x }
}

/// Splits normal positive x into `2^k m`, m from sqrt(1/2) to sqrt(2): returns k as a float, k shifted
/// to the exponent's bits, and the bits of m.
#[inline(always)]
fn split(x: f64) -> (f64, u64, u64) {
    let above = x.to_bits().wrapping_sub(SQRT_HALF);
    // k + 1023 as the mantissa of a number from 2^52: before AVX-512 there is no conversion from int64.
    let biased = (above.wrapping_add(ONE) >> 52) | 0x4330_0000_0000_0000;
    let shifted = above & 0xfff0_0000_0000_0000;
    (f64::from_bits(biased) - 4_503_599_627_371_519.0, shifted, x.to_bits().wrapping_sub(shifted))
}

/// Splits x, which may be subnormal, into `2^k m`: returns k and m.
#[inline(always)]
pub(super) fn mantissa(x: f64) -> (f64, f64) {
    let tiny = x < f64::MIN_POSITIVE;
    let (k, _, m) = split(if tiny { x * 18_014_398_509_481_984.0 } else { x });
    (k - if tiny { 54.0 } else { 0.0 }, f64::from_bits(m))
}

/// Returns `log(1 + f) - f`.
#[inline(always)]
pub(super) fn log_rest<I: Isa>(f: f64) -> f64 {
    let s = f / (2.0 + f);
    let z = s * s;
    // 2 atanh(s) = 2 s + s z p(z), and 2 s = f - s f.
    s * I::mul_add_f64(z, z.polynomial::<I, 7>(&LOG), -f)
}

/// `k ln 2 + log(1 + f)`.
#[inline(always)]
fn log_from_parts<I: Isa>(k: f64, f: f64) -> f64 {
    I::mul_add_f64(k, LN2_HIGH, f + I::mul_add_f64(k, LN2_LOW, log_rest::<I>(f)))
}

/// Handles the special cases of a logarithm that is -inf at `edge`; elsewhere returns `value`.
#[inline(always)]
pub(super) fn log_special_cases(x: f64, edge: f64, value: f64) -> f64 {
    let value = if x < f64::INFINITY { value } else { x };
    let value = if x < edge { f64::NAN } else { value };
    if x == edge { f64::NEG_INFINITY } else { value }
}

/// Reduces x by a multiple of pi / 2, to an absolute error of about 2^-60; returns the multiple and the
/// remainder.
#[inline(always)]
pub(super) fn reduce_half_pi_short<I: Isa>(x: f64) -> (u64, f64) {
    let shifted = I::mul_add_f64(x, std::f64::consts::FRAC_2_PI, MAGIC);
    let n = shifted - MAGIC;
    let r = I::mul_add_f64(n, -PIO2[0], x);
    (shifted.to_bits(), I::mul_add_f64(n, -PIO2_REST, r))
}

/// Reduces x by a multiple of pi / 2, to nearly all bits; returns the multiple and the remainder.
#[inline(always)]
fn reduce_half_pi<I: Isa>(x: f64) -> (u64, f64) {
    let shifted = I::mul_add_f64(x, std::f64::consts::FRAC_2_PI, MAGIC);
    let n = shifted - MAGIC;
    let first = x - n * PIO2[0];
    let part = n * PIO2[1];
    let second = first - part;
    // The rounding error of that subtraction (T. Dekker's quick two-sum), and the last part.
    let lost = (first - second) - part;
    (shifted.to_bits(), second + I::mul_add_f64(n, -PIO2[2], lost))
}

/// sin(r) and cos(r) for `|r| <= pi / 4`.
#[inline(always)]
fn sin_cos<I: Isa>(r: f64) -> (f64, f64) {
    let z = r * r;
    let sin = I::mul_add_f64(r * z, z.polynomial::<I, 7>(&SIN), r);
    let cos = I::mul_add_f64(z, I::mul_add_f64(z, z.polynomial::<I, 6>(&COS), -0.5), 1.0);
    (sin, cos)
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const HALF: f64 = 0.5;
    const TWO: f64 = 2.0;
    const INFINITY: f64 = f64::INFINITY;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;
    const NAN: f64 = f64::NAN;
    const EPSILON: f64 = f64::EPSILON;
    const SIN_LIMIT: f64 = 1_048_576.0;

    #[inline(always)]
    fn from_f64(x: f64) -> f64 {
        x
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn abs(self) -> f64 {
        f64::abs(self)
    }

    #[inline(always)]
    fn copysign(self, sign: f64) -> f64 {
        f64::copysign(self, sign)
    }

    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }

    #[inline(always)]
    fn mul_add<I: Isa>(self, b: f64, c: f64) -> f64 {
        I::mul_add_f64(self, b, c)
    }

    #[inline(always)]
    fn round<I: Isa>(self) -> f64 {
        if I::FMA {
            // Every level with fused multiply-add has an instruction for this.
            return self.round_ties_even();
        }
        let whole = (self.abs() + 4_503_599_627_370_496.0) - 4_503_599_627_370_496.0;
        if self.abs() < 4_503_599_627_370_496.0 { whole.copysign(self) } else { self }
    }

    #[inline(always)]
    fn exp<I: Isa>(self) -> f64 {
        let (n, r) = reduce_ln2::<I>(clamp(self, -746.0, 710.0));
        let p = I::mul_add_f64(r, r.polynomial::<I, 11>(&EXP), 1.0);
        scale(I::mul_add_f64(r, p, 1.0), n)
    }

    #[inline(always)]
    fn exp2<I: Isa>(self) -> f64 {
        let x = clamp(self, -1076.0, 1025.0);
        let shifted = x + MAGIC;
        let r = x - (shifted - MAGIC);
        scale(I::mul_add_f64(r, r.polynomial::<I, 12>(&EXP2), 1.0), shifted.to_bits())
    }

    #[inline(always)]
    fn expm1<I: Isa>(self) -> f64 {
        let (n, r) = reduce_ln2::<I>(clamp(self, -40.0, 710.0));
        let e = I::mul_add_f64(r * r, r.polynomial::<I, 11>(&EXP), r);
        // Half of the result first, since 2^1024 isn't a float64.
        let half = f64::from_bits((n << 52).wrapping_add(ONE - (1 << 52)));
        let y = I::mul_add_f64(e, half, half - 0.5) * 2.0;
        if self.abs() < 1e-17 { self } else { y }
    }

    #[inline(always)]
    fn exp_in_range<I: Isa>(self) -> f64 {
        let (n, r) = reduce_ln2::<I>(self);
        let p = I::mul_add_f64(r, r.polynomial::<I, 11>(&EXP), 1.0);
        let power = f64::from_bits((n << 52).wrapping_add(ONE));
        I::mul_add_f64(r, p, 1.0) * power
    }

    #[inline(always)]
    fn tanh<I: Isa>(self) -> f64 {
        let a = self.abs();
        let z = a * a;
        let near = I::mul_add_f64(a * z, z.polynomial::<I, 11>(&TANH), a);
        let twice = if a > 20.0 { 40.0 } else { a + a };
        let far = 1.0 - 2.0 / (twice.exp_in_range::<I>() + 1.0);
        (if a < 0.55 { near } else { far }).copysign(self)
    }

    #[inline(always)]
    fn sigmoid<I: Isa>(self) -> f64 {
        // All terms are scaled by 2^-64, since exp(-self) may overflow.
        const SIGMOID_SCALE: f64 = 1.0 / (1_u64 << 63) as f64 / 2.0;
        let (n, r) = reduce_ln2::<I>(clamp(-self, -60.0, 746.0));
        let part = r * I::mul_add_f64(r, r.polynomial::<I, 11>(&EXP), 1.0);
        let power = f64::from_bits((n << 52).wrapping_add(ONE - (64 << 52)));
        // 1 + 2^n + 2^n part: the rounding error of the first sum is added to the last term, which is
        // small.
        let whole = power + SIGMOID_SCALE;
        let lost = SIGMOID_SCALE - (whole - power);
        SIGMOID_SCALE / (whole + I::mul_add_f64(power, part, lost))
    }

    #[inline(always)]
    fn log<I: Isa>(self) -> f64 {
        let (k, m) = mantissa(self);
        log_special_cases(self, 0.0, log_from_parts::<I>(k, m - 1.0))
    }

    #[inline(always)]
    fn log2<I: Isa>(self) -> f64 {
        let (k, m) = mantissa(self);
        let f = m - 1.0;
        // log2(e) = 1 + 0.44...: the term f is exact.
        const LOG2_E_MINUS_1: f64 = 0.442_695_040_888_963_4;
        let rest = log_rest::<I>(f) * std::f64::consts::LOG2_E;
        // k + f is exact where the remainder cancels much of it.
        log_special_cases(self, 0.0, (k + f) + I::mul_add_f64(f, LOG2_E_MINUS_1, rest))
    }

    #[inline(always)]
    fn log1p<I: Isa>(self) -> f64 {
        let (k, shifted, m) = split(1.0 + self);
        // 2^-k; where it may be subnormal, self is so large that the 1 has no effect.
        let power = f64::from_bits(ONE.wrapping_sub(shifted));
        let f = I::mul_add_f64(self, power, power - 1.0);
        let f = if k > 64.0 { f64::from_bits(m) - 1.0 } else { f };
        log_special_cases(self, -1.0, log_from_parts::<I>(k, f).copysign(self))
    }

    #[inline(always)]
    fn sin_in_range<I: Isa>(self) -> f64 {
        let (n, r) = reduce_half_pi::<I>(self.abs());
        let (sin, cos) = sin_cos::<I>(r);
        let y = if n & 1 == 0 { sin } else { cos };
        f64::from_bits(y.to_bits() ^ ((n & 2) << 62) ^ (self.to_bits() & (1 << 63)))
    }

    #[inline(always)]
    fn cos_in_range<I: Isa>(self) -> f64 {
        let (n, r) = reduce_half_pi::<I>(self);
        let (sin, cos) = sin_cos::<I>(r);
        let y = if n & 1 == 0 { cos } else { sin };
        f64::from_bits(y.to_bits() ^ ((n.wrapping_add(1) & 2) << 62))
    }

    #[cold]
    fn sin_libm(self) -> f64 {
        f64::sin(self)
    }

    #[cold]
    fn cos_libm(self) -> f64 {
        f64::cos(self)
    }

    #[inline(always)]
    fn erf<I: Isa>(self) -> f64 {
        let a = self.abs();
        let near = I::mul_add_f64(a, (a * a).polynomial::<I, 13>(&ERF), a);
        let q = (if a > 6.0 { 6.0 } else { a }).polynomial::<I, 18>(&ERFC);
        let shifted = MAGIC - q;
        let r = (MAGIC - shifted) - q;
        let p = I::mul_add_f64(r, r.polynomial::<I, 12>(&EXP2), 1.0);
        let power = f64::from_bits((shifted.to_bits() << 52).wrapping_add(ONE));
        (if a < 1.0 { near } else { I::mul_add_f64(-p, power, 1.0) }).copysign(self)
    }

    #[inline(always)]
    fn log10<I: Isa>(self) -> f64 {
        log10::of_f64::<I>(self)
    }

    #[inline(always)]
    fn erfc<I: Isa>(self) -> f64 {
        erfc::of_f64::<I>(self)
    }

    #[inline(always)]
    fn pow<I: Isa>(self, y: f64) -> f64 {
        power::of_f64::<I>(self, y)
    }
}
