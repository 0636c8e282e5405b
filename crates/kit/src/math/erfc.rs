//! The complementary error function.
//!
//! `erfc(x) = exp(-x^2) p(u) / (1 + 2 x)` with a polynomial p in `u = (x - k) / (x + k)`: the form of
//! M. Shepherd and J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in
//! 0 <= x < infinity" (1981); k is 3.75. Below 0 it is `2 - erfc(-x)`.

use super::double::{self, ERF, clamp, reduce, scale};
use super::power::product;
use super::single;
use crate::isa::Isa;
use crate::math::Real;

/// From 0.5 to where float32 ends.
pub(super) const SINGLE: [f32; 9] = [
    1.237_512_6,
    -0.140_240_56,
    0.003_589_664,
    0.082_276_9,
    -0.108_887_9,
    0.092_251_74,
    -0.058_150_95,
    0.028_963_171,
    -0.010_811_389,
];
/// Likewise, to where float64 ends.
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

/// `1 - erf(x)` near 0; beyond, the square's upper part is exact, and the exponent gets the rest of it.
#[inline(always)]
pub(super) fn single<I: Isa>(x: f32) -> f32 {
    let near = 1.0 - I::mul_add_f32(x, (x * x).polynomial::<I, 7>(&single::ERF), x);
    let a = single::clamp(x.abs(), 0.0, 10.2);
    let u = (a - 3.75) / (a + 3.75);
    let upper = f32::from_bits(a.to_bits() & 0xffff_f000);
    let rest = (a - upper) * (a + upper);
    let (n, r) = single::reduce::<I>(-(upper * upper));
    let r = r - rest;
    let factor = u.polynomial::<I, 9>(&SINGLE) / I::mul_add_f32(a, 2.0, 1.0);
    let beyond_one = r * I::mul_add_f32(r, r.polynomial::<I, 5>(&single::EXP), 1.0);
    let value = single::scale(I::mul_add_f32(factor, beyond_one, factor), n);
    let far = if x < 0.0 { 2.0 - value } else { value };
    if x.abs() < 0.65 { near } else { far }
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
