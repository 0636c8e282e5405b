//! Numbers in the registers of AVX-512.

use std::arch::x86_64::{
    __m512, _CMP_GT_OQ, _mm512_add_ps, _mm512_and_ps, _mm512_andnot_ps, _mm512_castps_si512,
    _mm512_cmp_ps_mask, _mm512_div_ps, _mm512_fmadd_ps, _mm512_fmsub_ps, _mm512_fnmadd_ps,
    _mm512_loadu_ps, _mm512_mask_blend_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_or_ps, _mm512_permutex2var_ps, _mm512_scalef_ps, _mm512_set1_ps, _mm512_storeu_ps,
    _mm512_sub_ps,
};

/// `16 N` numbers of float32. There are some only where the processor has AVX-512: that is what those
/// who make the first ones promise, and what makes everything else safe.
///
/// Every step is taken for all N registers. It takes 4 cycles, in which a processor can begin with seven
/// others; but it doesn't look as far ahead as to where the next numbers' first steps are.
#[derive(Clone, Copy)]
pub struct Many<const N: usize>([__m512; N]);

/// A step: a loop, because closures aren't compiled for the level that they are called at.
macro_rules! each {
    ($x:expr, $i:ident: $value:expr) => {{
        let mut result = $x;
        for $i in 0..N {
            // SAFETY: the processor has AVX-512, or there would be none of these numbers.
            result.0[$i] = unsafe { $value };
        }
        result
    }};
}

impl<const N: usize> Many<N> {
    /// The first `16 N` numbers of a slice.
    ///
    /// # Safety
    /// The processor has AVX-512.
    #[inline(always)]
    pub(super) unsafe fn load(from: &[f32]) -> Many<N> {
        let from = &from[..16 * N];
        // SAFETY: the caller's promise; the slice is as long.
        let mut result = Many([unsafe { _mm512_loadu_ps(from.as_ptr()) }; N]);
        for i in 1..N {
            // SAFETY: as above.
            result.0[i] = unsafe { _mm512_loadu_ps(from.as_ptr().add(16 * i)) };
        }
        result
    }

    /// Writes them to the beginning of a slice.
    #[inline(always)]
    pub(super) fn store(self, to: &mut [f32]) {
        let to = &mut to[..16 * N];
        for i in 0..N {
            // SAFETY: the slice is as long; the processor as in `each`.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(16 * i), self.0[i]) };
        }
    }

    /// As many times this number.
    #[inline(always)]
    pub(super) fn all(self, number: f32) -> Many<N> {
        each!(self, _i: _mm512_set1_ps(number))
    }

    #[inline(always)]
    pub(super) fn plus(self, b: Many<N>) -> Many<N> {
        each!(self, i: _mm512_add_ps(self.0[i], b.0[i]))
    }

    #[inline(always)]
    pub(super) fn minus(self, b: Many<N>) -> Many<N> {
        each!(self, i: _mm512_sub_ps(self.0[i], b.0[i]))
    }

    #[inline(always)]
    pub(super) fn times(self, b: Many<N>) -> Many<N> {
        each!(self, i: _mm512_mul_ps(self.0[i], b.0[i]))
    }

    /// `self * b + c`, rounded once.
    #[inline(always)]
    pub(super) fn mul_add(self, b: Many<N>, c: Many<N>) -> Many<N> {
        each!(self, i: _mm512_fmadd_ps(self.0[i], b.0[i], c.0[i]))
    }

    /// `c - self * b`, rounded once.
    #[inline(always)]
    pub(super) fn mul_from(self, b: Many<N>, c: Many<N>) -> Many<N> {
        each!(self, i: _mm512_fnmadd_ps(self.0[i], b.0[i], c.0[i]))
    }

    /// `self * b - c`, rounded once.
    #[inline(always)]
    pub(super) fn mul_minus(self, b: Many<N>, c: Many<N>) -> Many<N> {
        each!(self, i: _mm512_fmsub_ps(self.0[i], b.0[i], c.0[i]))
    }

    /// NaN stays.
    #[inline(always)]
    pub(super) fn at_most(self, bound: f32) -> Many<N> {
        // The second of the two if one of them is NaN.
        each!(self, i: _mm512_min_ps(_mm512_set1_ps(bound), self.0[i]))
    }

    /// NaN stays.
    #[inline(always)]
    pub(super) fn at_least(self, bound: f32) -> Many<N> {
        each!(self, i: _mm512_max_ps(_mm512_set1_ps(bound), self.0[i]))
    }

    /// Whether any is greater than a number.
    #[inline(always)]
    pub(super) fn any_above(self, bound: f32) -> bool {
        let mut any = 0;
        for x in self.0 {
            // SAFETY: as in `each`.
            any |= unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(bound)) };
        }
        any != 0
    }

    /// Those of `other` where `x` is greater than a number, else these.
    #[inline(always)]
    pub(super) fn or_where_above(self, x: Many<N>, bound: f32, other: Many<N>) -> Many<N> {
        each!(self, i: {
            let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x.0[i], _mm512_set1_ps(bound));
            _mm512_mask_blend_ps(above, self.0[i], other.0[i])
        })
    }

    /// Without their signs.
    #[inline(always)]
    pub(super) fn abs(self) -> Many<N> {
        each!(self, i: _mm512_andnot_ps(_mm512_set1_ps(-0.0), self.0[i]))
    }

    /// Positive ones with the signs of others.
    #[inline(always)]
    pub(super) fn with_signs_of(self, b: Many<N>) -> Many<N> {
        let sign = b.all(-0.0);
        each!(self, i: _mm512_or_ps(self.0[i], _mm512_and_ps(sign.0[i], b.0[i])))
    }

    #[inline(always)]
    pub(super) fn over(self, b: Many<N>) -> Many<N> {
        each!(self, i: _mm512_div_ps(self.0[i], b.0[i]))
    }

    /// `self * 2^n`, rounded once, for whole n.
    #[inline(always)]
    pub(super) fn times_power(self, n: Many<N>) -> Many<N> {
        each!(self, i: _mm512_scalef_ps(self.0[i], n.0[i]))
    }

    /// What a table has at the places in the lowest five bits.
    #[inline(always)]
    pub(super) fn low_bits_in(self, table: &[[f32; 16]; 2]) -> Many<N> {
        each!(self, i: {
            let [first, second] = [_mm512_loadu_ps(table[0].as_ptr()), _mm512_loadu_ps(table[1].as_ptr())];
            _mm512_permutex2var_ps(first, _mm512_castps_si512(self.0[i]), second)
        })
    }
}
