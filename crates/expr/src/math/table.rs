//! erf of float32 by tables that are looked up in a register: for processors with AVX-512.
//!
//! The only function for which intrinsics are worth it: no loop that the compiler vectorises can look
//! a table up but in memory, element by element, and in branch-free code erf takes two polynomials
//! of which one is thrown away. Measured on a Xeon (Sapphire Rapids), one thread, 1024 elements in the
//! first-level cache, a call of 60 ns included: 573 ns by the polynomials, 253 by the tables.

use crate::isa::{Isa, Level};

/// How far the points are apart around which there are polynomials; a sum of powers of two, so that its
/// multiples are exact.
const STEP: f32 = 33.0 / 128.0;
/// From here on erf is 1.
const END: f32 = 3.98;
/// Adding this rounds a number below 2^22 to a whole one, which then stands in the lowest bits.
const MAGIC: f32 = 12_582_912.0;

/// The polynomials' coefficients, power by power, point by point, as `scripts/minimax.py` prints them.
const TABLE: [[f32; 16]; 6] = [
    [
        0.0,
        0.284_591_436,
        0.534_123_003,
        0.725_959_837,
        0.855_271_816,
        0.931_698_084,
        0.971_302_092,
        0.989_295_9,
        0.996_463_776,
        0.998_967_111,
        0.999_733_686,
        0.999_939_442,
        0.999_987_841,
        0.999_997_854,
        0.999_999_642,
        1.0,
    ],
    [
        1.128_379_23,
        1.055_817_13,
        0.864_947_2,
        0.620_379_865,
        0.389_576_793,
        0.214_188_263,
        0.103_101_626,
        0.043_451_286_9,
        0.016_032_712_5,
        0.005_179_390_31,
        0.001_464_932_81,
        0.000_362_764_054,
        7.864_995_13e-5,
        1.492_933_73e-5,
        2.481_137_02e-6,
        4.830_004_63e-7,
    ],
    [
        2.615_283_56e-7,
        -0.272_196_561,
        -0.445_980_728,
        -0.479_821_354,
        -0.401_752_234,
        -0.276_105_493,
        -0.159_488_082,
        -0.078_417_047_9,
        -0.033_067_349_3,
        -0.012_017_323_6,
        -0.003_776_394_3,
        -0.001_028_573_14,
        -0.000_243_241_913,
        -5.001_046_16e-5,
        -8.948_436_52e-6,
        -3.746_912_63e-6,
    ],
    [
        -0.376_141_28,
        -0.305_177_182,
        -0.135_023_43,
        0.040_606_778_1,
        0.146_340_981,
        0.165_879_369,
        0.130_104_169,
        0.079_862_393_4,
        0.040_124_375_4,
        0.016_863_636_7,
        0.006_002_812_65,
        0.001_823_918_78,
        0.000_475_538_633,
        0.000_106_785_978,
        2.071_018_03e-5,
        0.0,
    ],
    [
        0.000_283_227_622,
        0.129_049_227,
        0.182_242_155,
        0.143_640_995,
        0.058_649_785_8,
        -0.014_331_902_4,
        -0.047_024_268_7,
        -0.045_754_723_3,
        -0.030_375_164,
        -0.015_635_658_1,
        -0.006_540_904_29,
        -0.002_275_885_32,
        -0.000_667_528_54,
        -0.000_166_459_344,
        -3.549_802_57e-5,
        0.0,
    ],
    [
        0.110_974_945,
        0.078_966_230_2,
        0.003_555_936_27,
        -0.056_012_827_9,
        -0.067_585_587_5,
        -0.042_069_379_2,
        -0.009_859_806_86,
        0.009_002_271_11,
        0.012_919_805,
        0.009_375_181_05,
        0.004_902_618_47,
        0.002_016_808_84,
        0.000_677_277_683,
        0.000_189_359_62,
        4.460_876_15e-5,
        0.0,
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
        let near = _mm512_sub_ps(shifted, magic);
        let t = _mm512_fmadd_ps(near, _mm512_set1_ps(-STEP), size);
        // Of which the lowest four bits count.
        let point = _mm512_castps_si512(shifted);
        let mut sum = _mm512_permutexvar_ps(point, _mm512_loadu_ps(TABLE[5].as_ptr()));
        for power in [4, 3, 2, 1, 0] {
            let row = _mm512_loadu_ps(TABLE[power].as_ptr());
            sum = _mm512_fmadd_ps(sum, t, _mm512_permutexvar_ps(point, row));
        }
        _mm512_or_ps(sum, _mm512_and_ps(sign, x))
    }
}
