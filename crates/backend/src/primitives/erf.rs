//! The error function and its complement.
//!
//! `erfc(x) = exp(-x^2) p(u) / (1 + 2 x)` with a polynomial p in `u = (x - k) / (x + k)`: the form of
//! M. Shepherd and J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in
//! 0 <= x < infinity" (1981); k is 3.75. Below 0 it is `2 - erfc(-x)`, near 0 `1 - erf(x)`. The
//! coefficients are those that `scripts/minimax.py` prints.

use super::value::Value;

/// `erf(x) = x + x p(x^2)` below 1, for float32 and float64.
const ERF_SINGLE: [f64; 7] = [
    0.128_379_17,
    -0.376_126_35,
    0.112_837_15,
    -0.026_860_51,
    0.005_203_859_4,
    -0.000_817_564_1,
    8.513_111e-5,
];
const ERF_DOUBLE: [f64; 13] = [
    0.128_379_167_095_512_6,
    -0.376_126_389_031_837_5,
    0.112_837_916_709_548_57,
    -0.026_866_170_645_072_9,
    0.005_223_977_624_780_897_5,
    -0.000_854_832_697_874_395_9,
    0.000_120_553_310_369_620_07,
    -1.492_559_350_835_391e-5,
    1.646_097_284_002_989_5e-6,
    -1.635_002_546_260_280_7e-7,
    1.465_788_143_625_913_1e-8,
    -1.136_567_206_686_067_9e-9,
    5.945_272_006_707_07e-11,
];
/// p of erfc.
const ERFC_SINGLE: [f64; 9] = [
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
const ERFC_DOUBLE: [f64; 23] = [
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

impl<'g> Value<'g> {
    /// `erf(x)` for sizes below 1.
    fn erf_near(self) -> Value<'g> {
        let coefficients: &[f64] = if self.is_single() { &ERF_SINGLE } else { &ERF_DOUBLE };
        self + self * (self * self).polynomial(coefficients)
    }

    /// `erfc(|x|)`. The square's rounding error is put back in front of the exponential, whose error it
    /// would be multiplied to.
    fn erfc_of_size(self) -> Value<'g> {
        // Beyond it is 0.
        let end = self.num(if self.is_single() { 10.2 } else { 28.0 });
        let size = self.abs();
        let a = size.above(end).choose(end, size);
        let u = (a - 3.75) / (a + 3.75);
        let coefficients: &[f64] = if self.is_single() { &ERFC_SINGLE } else { &ERFC_DOUBLE };
        let factor = u.polynomial(coefficients) / (a * 2.0 + 1.0);
        let (square, lost) = a.product(a);
        let factor = factor - factor * lost;
        // In two factors, the second of which may be subnormal.
        (-square).exp() * factor
    }

    pub(super) fn erf(self) -> Value<'g> {
        let split = self.num(if self.is_single() { 0.9 } else { 1.0 });
        let far = (1.0 - self.erfc_of_size()).copysign(self);
        self.abs().below(split).choose(self.erf_near(), far)
    }

    pub(super) fn erfc(self) -> Value<'g> {
        let split = self.num(if self.is_single() { 0.65 } else { 0.5 });
        let value = self.erfc_of_size();
        let far = self.below(self.num(0.0)).choose(2.0 - value, value);
        self.abs().below(split).choose(1.0 - self.erf_near(), far)
    }
}
