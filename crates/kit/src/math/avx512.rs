//! Functions of float32 by AVX-512's own instructions.
//!
//! They are for functions that the compiler's vector code computes below the processor's speed:
//! functions with lookup tables, which fit in registers (`erf_table`, `erfc_table`), and functions with
//! instructions that the compiler doesn't use by itself (`exponential`). Measured on a Xeon (Sapphire
//! Rapids), one thread, 4096 elements in the L1 cache, nanoseconds for 16 elements, by the compiler's
//! code and by this: exp 4.3 and 3.1; sigmoid 5.3 and 4.9; erf 8.2 and 3.2.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512, _CMP_GT_OQ, _mm512_add_ps, _mm512_and_ps, _mm512_andnot_ps, _mm512_castps_si512,
    _mm512_cmp_ps_mask, _mm512_div_ps, _mm512_fmadd_ps, _mm512_fmsub_ps, _mm512_fnmadd_ps,
    _mm512_loadu_ps, _mm512_mask_blend_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_or_ps, _mm512_permutex2var_ps, _mm512_scalef_ps, _mm512_set1_ps, _mm512_storeu_ps,
    _mm512_sub_ps,
};

use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::math::Scaling;

/// A function that is computed on whole registers.
pub trait Avx512Function {
    /// Returns the function's values.
    #[cfg(target_arch = "x86_64")]
    fn of<const N: usize>(x: Vectors<N>) -> Vectors<N>;
}

/// Other processors have no such registers, so there is nothing to implement.
#[cfg(not(target_arch = "x86_64"))]
impl<F> Avx512Function for F {}

/// N registers of 16 float32 each. A value of this type exists only where the processor has AVX-512: the
/// caller of `Vectors::load` promises that, which makes the other methods safe.
///
/// Every operation is applied to all N registers one after another. An operation takes 4 cycles, in
/// which a processor can start seven others; N registers provide these independent operations, which the
/// processor wouldn't find in the next iteration of a loop.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Vectors<const N: usize>([__m512; N]);

/// An operation on each register: a macro, because closures aren't compiled for the level of their caller.
#[cfg(target_arch = "x86_64")]
macro_rules! each {
    ($x:expr, $i:ident: $value:expr) => {{
        let mut result = $x;
        for $i in 0..N {
            // SAFETY: the processor has AVX-512, or this value wouldn't exist.
            result.0[$i] = unsafe { $value };
        }
        result
    }};
}

#[cfg(target_arch = "x86_64")]
impl<const N: usize> Vectors<N> {
    /// Loads the first `16 N` numbers of a slice.
    ///
    /// # Safety
    /// The processor has AVX-512.
    #[inline(always)]
    pub(super) unsafe fn load(from: &[f32]) -> Vectors<N> {
        let from = &from[..16 * N];
        // SAFETY: the caller's promise; the slice is as long.
        let mut result = Vectors([unsafe { _mm512_loadu_ps(from.as_ptr()) }; N]);
        for i in 1..N {
            // SAFETY: as above.
            result.0[i] = unsafe { _mm512_loadu_ps(from.as_ptr().add(16 * i)) };
        }
        result
    }

    /// Writes the numbers to the beginning of a slice.
    #[inline(always)]
    pub(super) fn store(self, to: &mut [f32]) {
        let to = &mut to[..16 * N];
        for i in 0..N {
            // SAFETY: the slice is as long; the processor as in `each`.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(16 * i), self.0[i]) };
        }
    }

    /// Returns this number in every lane.
    #[inline(always)]
    pub(super) fn splat(self, number: f32) -> Vectors<N> {
        each!(self, _i: _mm512_set1_ps(number))
    }

    #[inline(always)]
    pub(super) fn plus(self, b: Vectors<N>) -> Vectors<N> {
        each!(self, i: _mm512_add_ps(self.0[i], b.0[i]))
    }

    #[inline(always)]
    pub(super) fn minus(self, b: Vectors<N>) -> Vectors<N> {
        each!(self, i: _mm512_sub_ps(self.0[i], b.0[i]))
    }

    #[inline(always)]
    pub(super) fn times(self, b: Vectors<N>) -> Vectors<N> {
        each!(self, i: _mm512_mul_ps(self.0[i], b.0[i]))
    }

    /// `self * b + c`, rounded once.
    #[inline(always)]
    pub(super) fn mul_add(self, b: Vectors<N>, c: Vectors<N>) -> Vectors<N> {
        each!(self, i: _mm512_fmadd_ps(self.0[i], b.0[i], c.0[i]))
    }

    /// `c - self * b`, rounded once.
    #[inline(always)]
    pub(super) fn mul_sub_from(self, b: Vectors<N>, c: Vectors<N>) -> Vectors<N> {
        each!(self, i: _mm512_fnmadd_ps(self.0[i], b.0[i], c.0[i]))
    }

    /// `self * b - c`, rounded once.
    #[inline(always)]
    pub(super) fn mul_sub(self, b: Vectors<N>, c: Vectors<N>) -> Vectors<N> {
        each!(self, i: _mm512_fmsub_ps(self.0[i], b.0[i], c.0[i]))
    }

    /// The lanes, at most `bound`; NaN stays.
    #[inline(always)]
    pub(super) fn clamp_above(self, bound: f32) -> Vectors<N> {
        // If one operand is NaN, the instruction returns the second.
        each!(self, i: _mm512_min_ps(_mm512_set1_ps(bound), self.0[i]))
    }

    /// The lanes, at least `bound`; NaN stays.
    #[inline(always)]
    pub(super) fn clamp_below(self, bound: f32) -> Vectors<N> {
        each!(self, i: _mm512_max_ps(_mm512_set1_ps(bound), self.0[i]))
    }

    /// Whether any lane is greater than `bound`.
    #[inline(always)]
    pub(super) fn any_above(self, bound: f32) -> bool {
        let mut any = 0;
        for x in self.0 {
            // SAFETY: as in `each`.
            any |= unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(bound)) };
        }
        any != 0
    }

    /// Selects the lanes of `other` where `x` is greater than `bound`, else those of `self`.
    #[inline(always)]
    pub(super) fn select_above(self, x: Vectors<N>, bound: f32, other: Vectors<N>) -> Vectors<N> {
        each!(self, i: {
            let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x.0[i], _mm512_set1_ps(bound));
            _mm512_mask_blend_ps(above, self.0[i], other.0[i])
        })
    }

    /// The absolute values.
    #[inline(always)]
    pub(super) fn abs(self) -> Vectors<N> {
        each!(self, i: _mm512_andnot_ps(_mm512_set1_ps(-0.0), self.0[i]))
    }

    /// Applies the signs of `b` to lanes that are positive.
    #[inline(always)]
    pub(super) fn copy_signs(self, b: Vectors<N>) -> Vectors<N> {
        let sign = b.splat(-0.0);
        each!(self, i: _mm512_or_ps(self.0[i], _mm512_and_ps(sign.0[i], b.0[i])))
    }

    #[inline(always)]
    pub(super) fn divided_by(self, b: Vectors<N>) -> Vectors<N> {
        each!(self, i: _mm512_div_ps(self.0[i], b.0[i]))
    }

    /// `self * 2^n`, rounded once, for integer n.
    #[inline(always)]
    pub(super) fn scale_by_power(self, n: Vectors<N>) -> Vectors<N> {
        each!(self, i: _mm512_scalef_ps(self.0[i], n.0[i]))
    }

    /// Looks up the table's entries at the indices in the lowest five bits of each lane.
    #[inline(always)]
    pub(super) fn look_up(self, table: &[[f32; 16]; 2]) -> Vectors<N> {
        each!(self, i: {
            let [first, second] = [_mm512_loadu_ps(table[0].as_ptr()), _mm512_loadu_ps(table[1].as_ptr())];
            _mm512_permutex2var_ps(first, _mm512_castps_si512(self.0[i]), second)
        })
    }
}

/// Numbers per iteration: four registers.
#[cfg(target_arch = "x86_64")]
const UNROLLED: usize = 64;

/// Applies the function to every number, at the level AVX-512 only. Returns whether it did.
#[inline(always)]
pub(super) fn all<F: Avx512Function, I: Isa>(x: &[f32], out: &mut [f32]) -> bool {
    assert_eq!(x.len(), out.len());
    #[cfg(target_arch = "x86_64")]
    if I::LEVEL == Level::Avx512 {
        let (places, last) = out.as_chunks_mut::<UNROLLED>();
        let (whole, rest) = x.as_chunks::<UNROLLED>();
        for (out, x) in places.iter_mut().zip(whole) {
            // SAFETY: the processor has the level.
            unsafe { compute::<F, 4>(out, x) };
        }
        let (places, last) = last.as_chunks_mut::<16>();
        let (whole, rest) = rest.as_chunks::<16>();
        for (out, x) in places.iter_mut().zip(whole) {
            // SAFETY: as above.
            unsafe { compute::<F, 1>(out, x) };
        }
        if !rest.is_empty() {
            let mut results = [0.0; 16];
            // SAFETY: as above.
            unsafe { compute::<F, 1>(&mut results, &padded(rest)) };
            last.copy_from_slice(&results[..rest.len()]);
        }
        return true;
    }
    let _ = (x, out);
    false
}

/// As [`all`], for a [`Scaling`] of the function.
#[inline(always)]
pub(super) fn scaled<F: Avx512Function, I: Isa>(
    x: &[f32],
    y: &[f32],
    scaling: Scaling<f32>,
    out: &mut [f32],
) -> bool {
    assert_eq!((x.len(), y.len()), (out.len(), out.len()));
    #[cfg(target_arch = "x86_64")]
    if I::LEVEL == Level::Avx512 {
        // SAFETY: the processor has the level.
        unsafe {
            if scaling.factor_min == f32::NEG_INFINITY {
                scaled_all::<F, false>(x, y, scaling, out);
            } else {
                scaled_all::<F, true>(x, y, scaling, out);
            }
        }
        return true;
    }
    let _ = (x, y, scaling, out);
    false
}

/// # Safety
/// The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn scaled_all<F: Avx512Function, const BOUNDED: bool>(
    x: &[f32],
    y: &[f32],
    scaling: Scaling<f32>,
    out: &mut [f32],
) {
    let (places, last) = out.as_chunks_mut::<UNROLLED>();
    let ((whole, rest), (factors, rest_factors)) =
        (x.as_chunks::<UNROLLED>(), y.as_chunks::<UNROLLED>());
    for ((out, x), y) in places.iter_mut().zip(whole).zip(factors) {
        // SAFETY: the caller's promise.
        unsafe { compute_scaled::<F, 4, BOUNDED>(out, x, y, scaling) };
    }
    let (places, last) = last.as_chunks_mut::<16>();
    let ((whole, rest), (factors, rest_factors)) =
        (rest.as_chunks::<16>(), rest_factors.as_chunks::<16>());
    for ((out, x), y) in places.iter_mut().zip(whole).zip(factors) {
        // SAFETY: as above.
        unsafe { compute_scaled::<F, 1, BOUNDED>(out, x, y, scaling) };
    }
    if !rest.is_empty() {
        let mut results = [0.0; 16];
        let (x, y) = (padded(rest), padded(rest_factors));
        // SAFETY: as above.
        unsafe { compute_scaled::<F, 1, BOUNDED>(&mut results, &x, &y, scaling) };
        last.copy_from_slice(&results[..rest.len()]);
    }
}

/// Pads the tail to a whole register. The tail is computed like all other numbers, so that a result
/// doesn't depend on its position.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; 16] {
    let mut all = [0.0; 16];
    all[..rest.len()].copy_from_slice(rest);
    all
}

/// # Safety
/// The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn compute<F: Avx512Function, const N: usize>(out: &mut [f32], x: &[f32]) {
    // SAFETY: the caller's promise.
    let x = unsafe { Vectors::<N>::load(x) };
    F::of(x).store(out);
}

/// # Safety
/// The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn compute_scaled<F: Avx512Function, const N: usize, const BOUNDED: bool>(
    out: &mut [f32],
    x: &[f32],
    y: &[f32],
    scaling: Scaling<f32>,
) {
    // SAFETY: the caller's promise.
    let (x, y) = unsafe { (Vectors::<N>::load(x), Vectors::<N>::load(y)) };
    let value = F::of(x.times(x.splat(scaling.argument_scale))).plus(x.splat(scaling.value_offset));
    let factor = if BOUNDED { y.clamp_below(scaling.factor_min) } else { y };
    value.times(factor.times(x.splat(scaling.factor_scale))).store(out);
}
