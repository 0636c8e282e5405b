//! erf of float32 by tables that are looked up in a register: for processors with AVX-512.
//!
//! The only function for which intrinsics are worth it: no loop that the compiler vectorises can look
//! a table up but in memory, element by element, and in branch-free code erf takes two polynomials
//! of which one is thrown away. Measured on a Xeon (Sapphire Rapids), one thread, 1024 elements in the
//! first-level cache, a call of 60 ns included: 573 ns by the polynomials, 253 by the tables.

use crate::isa::{Isa, Level};

/// How far the points are apart around which there are polynomials.
const STEP: f32 = 33.0 / 128.0;
/// From here on erf is 1.
const END: f32 = 3.98;
/// Adding this rounds a number below 2^22 to a whole one, which then stands in the lowest bits.
const MAGIC: f32 = 12_582_912.0;

/// The points around which there are polynomials: near the multiples of [`STEP`], where erf is a float32
/// almost exactly (S. Gal, "Computing elementary functions: a new approach for achieving high accuracy and
/// good performance", 1986).
#[rustfmt::skip]
const POINTS: [f32; 16] = [
    0.0, 0.257_808_9, 0.515_640_7, 0.773_449_6,
    1.031_258_6, 1.289_044_7, 1.546_851_3, 1.804_706_5,
    2.062_561, 2.320_273_9, 2.578_179_6, 2.83594,
    3.093_387_8, 3.351_111_7, 3.599_336_9, 3.832_507,
];

/// The polynomials' coefficients, power by power, point by point, as `scripts/minimax.py` prints them.
#[rustfmt::skip]
#[expect(clippy::approx_constant, reason = "the slope at 0 is one of many coefficients")]
const TABLE: [[f32; 16]; 6] = [
    [
        0.0, 0.284_587_62, 0.534_136_6, 0.725_967_35,
        0.855_275_15, 0.931_694_27, 0.971_299_65, 0.989_296_73,
        0.996_464_7, 0.998_966_93, 0.999_733_75, 0.999_939_44,
        0.999_987_84, 0.999_997_85, 0.999_999_64, 0.999_999_94,
    ],
    [
        1.128_379_2, 1.055_819_2, 0.864_933_2, 0.620_368_24,
        0.389_569_88, 0.214_198_07, 0.103_109_196, 0.043_448_314,
        0.016_028_676, 0.005_180_319, 0.001_464_520_3, 0.000_362_759_05,
        7.882_628e-5, 1.497_447_8e-5, 2.667_217_4e-6, 4.714_423_8e-7,
    ],
    [
        2.613_205e-7, -0.272_194_68, -0.445_988_83, -0.479_820_76,
        -0.401_748_18, -0.276_113_5, -0.159_496_72, -0.078_412_25,
        -0.033_060_03, -0.012_019_405, -0.003_775_506_7, -0.001_028_607_5,
        -0.000_243_777_02, -5.016_146_3e-5, -9.595_445e-6, -1.806_913_7e-6,
    ],
    [
        -0.376_141_28, -0.305_180_22, -0.135_012_22, 0.040_614_214,
        0.146_343_48, 0.165_880_5, 0.130_108_49, 0.079_858_74,
        0.040_116_884, 0.016_866_041, 0.006_001_405, 0.001_823_913_9,
        0.000_476_513_64, 0.000_107_089_63, 2.217_854_9e-5, 4.485_275e-6,
    ],
    [
        0.000_283_140_34, 0.129_117_86, 0.182_329_28, 0.143_681_54,
        0.058_632_404, -0.014_367_49, -0.047_053_88, -0.045_766_49,
        -0.030_369_857, -0.015_631_178, -0.006_534_865_6, -0.002_273_534_4,
        -0.000_667_875_8, -0.000_166_573_15, -3.766_501e-5, -8.047_766e-6,
    ],
    [
        0.110_975_295, 0.079_075_865, 0.003_600_589_5, -0.056_020_83,
        -0.067_605_87, -0.042_076_424, -0.009_855_923, 0.009_008_548,
        0.012_922_759, 0.009_375_69, 0.004_901_984_2, 0.002_016_227,
        0.000_676_982_86, 0.000_189_229_5, 4.457_533e-5, 8.923_977_5e-6,
    ],
];

/// What is done around a function: `(f(x * before) + behind) * (max(y, least) * times)`.
#[derive(Clone, Copy, Debug)]
pub struct Around<T> {
    /// What the argument is multiplied with.
    pub before: T,
    /// What is added to the value.
    pub behind: T,
    /// What the factor is at least; -inf leaves all as they are.
    pub least: T,
    /// What the factor is multiplied with.
    pub times: T,
}

/// erf of all of them, at the level with such tables; at others nothing.
#[inline(always)]
pub(super) fn erf<I: Isa>(x: &[f32], out: &mut [f32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if I::LEVEL == Level::Avx512 {
        let (places, last) = out.as_chunks_mut::<16>();
        let (whole, rest) = x.as_chunks::<16>();
        for (out, x) in places.iter_mut().zip(whole) {
            // SAFETY: the processor has the level.
            unsafe { sixteen(out, x) };
        }
        if !rest.is_empty() {
            let mut results = [0.0; 16];
            // SAFETY: as above.
            unsafe { sixteen(&mut results, &filled_up(rest)) };
            last.copy_from_slice(&results[..rest.len()]);
        }
        return true;
    }
    let _ = (x, out);
    false
}

/// As [`erf`], with something around it.
#[inline(always)]
pub(super) fn erf_around<I: Isa>(
    x: &[f32],
    y: &[f32],
    around: Around<f32>,
    out: &mut [f32],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if I::LEVEL == Level::Avx512 {
        let (places, last) = out.as_chunks_mut::<16>();
        let ((whole, rest), (factors, rest_factors)) = (x.as_chunks::<16>(), y.as_chunks::<16>());
        for ((out, x), y) in places.iter_mut().zip(whole).zip(factors) {
            // SAFETY: the processor has the level.
            unsafe { sixteen_around(out, x, y, around) };
        }
        if !rest.is_empty() {
            let mut results = [0.0; 16];
            let (x, y) = (filled_up(rest), filled_up(rest_factors));
            // SAFETY: as above.
            unsafe { sixteen_around(&mut results, &x, &y, around) };
            last.copy_from_slice(&results[..rest.len()]);
        }
        return true;
    }
    let _ = (x, y, around, out);
    false
}

/// The last ones go the same way as all others, so that a result doesn't depend on its place.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn filled_up(rest: &[f32]) -> [f32; 16] {
    let mut all = [0.0; 16];
    all[..rest.len()].copy_from_slice(rest);
    all
}

/// # Safety
/// The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sixteen(out: &mut [f32; 16], x: &[f32; 16]) {
    use std::arch::x86_64::{_mm512_loadu_ps, _mm512_storeu_ps};
    // SAFETY: the caller's promise.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), vector(_mm512_loadu_ps(x.as_ptr()))) };
}

/// # Safety
/// The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sixteen_around(out: &mut [f32; 16], x: &[f32; 16], y: &[f32; 16], around: Around<f32>) {
    use std::arch::x86_64::{
        _mm512_add_ps, _mm512_loadu_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_set1_ps,
        _mm512_storeu_ps,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let x = _mm512_loadu_ps(x.as_ptr());
        let value = vector(_mm512_mul_ps(x, _mm512_set1_ps(around.before)));
        let value = _mm512_add_ps(value, _mm512_set1_ps(around.behind));
        let y = _mm512_loadu_ps(y.as_ptr());
        // NaN stays: it is the second of the two.
        let factor = _mm512_max_ps(_mm512_set1_ps(around.least), y);
        let factor = _mm512_mul_ps(factor, _mm512_set1_ps(around.times));
        _mm512_storeu_ps(out.as_mut_ptr(), _mm512_mul_ps(value, factor));
    }
}

/// # Safety
/// The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn vector(x: std::arch::x86_64::__m512) -> std::arch::x86_64::__m512 {
    use std::arch::x86_64::{
        _mm512_and_ps, _mm512_andnot_ps, _mm512_castps_si512, _mm512_fmadd_ps, _mm512_loadu_ps,
        _mm512_min_ps, _mm512_or_ps, _mm512_permutexvar_ps, _mm512_set1_ps, _mm512_sub_ps,
    };
    // SAFETY: the caller's promise; the table's rows are arrays of sixteen.
    unsafe {
        let sign = _mm512_set1_ps(-0.0);
        let size = _mm512_andnot_ps(sign, x);
        // NaN stays: it is the second of the two.
        let size = _mm512_min_ps(_mm512_set1_ps(END), size);
        let magic = _mm512_set1_ps(MAGIC);
        let shifted = _mm512_fmadd_ps(size, _mm512_set1_ps(1.0 / STEP), magic);
        // Of which the lowest four bits count.
        let point = _mm512_castps_si512(shifted);
        let points = _mm512_loadu_ps(POINTS.as_ptr());
        let t = _mm512_sub_ps(size, _mm512_permutexvar_ps(point, points));
        let mut sum = _mm512_permutexvar_ps(point, _mm512_loadu_ps(TABLE[5].as_ptr()));
        for power in [4, 3, 2, 1, 0] {
            let row = _mm512_loadu_ps(TABLE[power].as_ptr());
            sum = _mm512_fmadd_ps(sum, t, _mm512_permutexvar_ps(point, row));
        }
        _mm512_or_ps(sum, _mm512_and_ps(sign, x))
    }
}
