//! The complementary error function.
//!
//! `erfc(x) = exp(-x^2) p(u) / (1 + 2 x)` with a polynomial p in `u = (x - k) / (x + k)`: the form of
//! M. Shepherd and J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in
//! 0 <= x < infinity" (1981). Below 0 it is `2 - erfc(-x)`.

use super::double::{self, ERF, clamp, reduce, scale};
use super::power::{self, product};
use crate::isa::Isa;
use crate::math::Real;

/// For k = 2.5, from 0 to where float32 ends.
const SINGLE: [f64; 12] = [
    1.264_838_183_573_265_6,
    -0.122_356_762_738_725_28,
    -0.099_024_446_113_855_2,
    0.157_629_927_373_841_5,
    -0.102_968_843_445_397_4,
    0.032_760_138_354_751_58,
    0.000_944_210_679_282_426_4,
    -0.004_373_336_292_971_546,
    0.000_455_692_265_330_092_97,
    0.000_596_706_799_264_715_2,
    -4.761_217_402_452_138e-5,
    -5.948_933_899_860_754_5e-5,
];
/// For k = 3.75, from 0.5 to where float64 ends.
const DOUBLE: [f64; 23] = [
    1.237_512_630_837_827_5,
    -0.140_240_598_585_547_02,
    0.003_585_415_485_463_751_4,
    0.082_276_738_490_150_33,
    -0.108_803_930_141_712_72,
    0.092_304_321_160_231_27,
    -0.058_693_398_590_374_465,
    0.028_362_277_420_803_62,
    -0.009_746_579_550_522_789,
    0.001_755_625_840_907_318,
    0.000_293_713_623_253_626_7,
    -0.000_290_154_040_743_782_47,
    5.164_923_213_139_221e-5,
    2.238_419_692_768_065e-5,
    -1.144_433_742_476_772_4e-5,
    -9.737_144_308_482_172e-7,
    1.751_519_544_181_968_6e-6,
    -5.654_756_963_490_753e-8,
    -2.576_973_633_621_025_6e-7,
    2.213_733_415_765_186e-8,
    3.700_215_669_886_971e-8,
    -2.814_881_275_952_77e-9,
    -3.839_626_280_396_431_6e-9,
];

/// Of a float32: in float64, whose product of a float32 with itself is exact.
#[inline(always)]
pub(super) fn single<I: Isa>(x: f64) -> f64 {
    let a = clamp(x.abs(), 0.0, 11.0);
    let u = (a - 2.5) / (a + 2.5);
    let factor = u.polynomial::<I, 12>(&SINGLE) / (1.0 + 2.0 * a);
    let value = factor * power::exp2::<I>(a * a * -std::f64::consts::LOG2_E);
    if x < 0.0 { 2.0 - value } else { value }
}

/// With the square's rounding error in the exponent, and `1 - erf(x)` near 0.
#[inline(always)]
pub(super) fn double<I: Isa>(x: f64) -> f64 {
    let size = x.abs();
    let z = x * x;
    let near = 1.0 - I::mul_add_f64(x, z.polynomial::<I, 13>(&ERF), x);
    let a = clamp(size, 0.0, 28.0);
    let u = (a - 3.75) / (a + 3.75);
    let factor = u.polynomial::<I, 23>(&DOUBLE) / (1.0 + 2.0 * a);
    let (square, lost) = product::<I>(a, a);
    let (n, r) = reduce::<I>(-square);
    let r = r - lost;
    let beyond_one = r * I::mul_add_f64(r, r.polynomial::<I, 11>(&double::EXP), 1.0);
    let value = scale(I::mul_add_f64(factor, beyond_one, factor), n);
    let far = if x < 0.0 { 2.0 - value } else { value };
    if size < 0.5 { near } else { far }
}
