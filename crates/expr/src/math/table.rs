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
#[rustfmt::skip]
#[expect(clippy::approx_constant, reason = "the slope at 0 is one of many coefficients")]
const TABLE: [[f32; 16]; 6] = [
    [
        0.0, 0.284_591_44, 0.534_123, 0.725_959_84,
        0.855_271_8, 0.931_698_1, 0.971_302_1, 0.989_295_9,
        0.996_463_8, 0.998_967_1, 0.999_733_7, 0.999_939_44,
        0.999_987_84, 0.999_997_85, 0.999_999_64, 1.0,
    ],
    [
        1.128_379_2, 1.055_817_1, 0.864_947_2, 0.620_379_87,
        0.389_576_8, 0.214_188_26, 0.103_101_626, 0.043_451_287,
        0.016_032_713, 0.005_179_390_3, 0.001_464_932_8, 0.000_362_764_05,
        7.864_995e-5, 1.492_933_7e-5, 2.481_137e-6, 4.830_004_6e-7,
    ],
    [
        2.615_283_6e-7, -0.272_196_56, -0.445_980_73, -0.479_821_35,
        -0.401_752_23, -0.276_105_5, -0.159_488_08, -0.078_417_05,
        -0.033_067_35, -0.012_017_324, -0.003_776_394_3, -0.001_028_573_1,
        -0.000_243_241_91, -5.001_046e-5, -8.948_436_5e-6, -3.746_912_6e-6,
    ],
    [
        -0.376_141_28, -0.305_177_18, -0.135_023_43, 0.040_606_778,
        0.146_340_98, 0.165_879_37, 0.130_104_17, 0.079_862_39,
        0.040_124_375, 0.016_863_637, 0.006_002_812_6, 0.001_823_918_8,
        0.000_475_538_63, 0.000_106_785_98, 2.071_018e-5, 0.0,
    ],
    [
        0.000_283_227_62, 0.129_049_23, 0.182_242_16, 0.143_641,
        0.058_649_786, -0.014_331_902, -0.047_024_27, -0.045_754_723,
        -0.030_375_164, -0.015_635_658, -0.006_540_904_3, -0.002_275_885_3,
        -0.000_667_528_54, -0.000_166_459_34, -3.549_802_6e-5, 0.0,
    ],
    [
        0.110_974_945, 0.078_966_23, 0.003_555_936_3, -0.056_012_828,
        -0.067_585_59, -0.042_069_38, -0.009_859_807, 0.009_002_271,
        0.012_919_805, 0.009_375_181, 0.004_902_618_5, 0.002_016_808_8,
        0.000_677_277_7, 0.000_189_359_62, 4.460_876e-5, 0.0,
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
