//! Registers of several numbers, for the loops of convolutions.

use std::ops::Range;

/// A float with registers of each level.
pub(crate) trait Real: Copy + Send + Sync + PartialEq + 'static {
    const ZERO: Self;
    #[cfg(target_arch = "x86_64")]
    type Avx512: Lanes<Self>;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Lanes<Self>;
    /// 16 bytes.
    type Baseline: Lanes<Self>;

    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;

    /// Transposes a square of as many rows as a register of AVX-512 has lanes, at these distances from
    /// each other, if there is code for it; returns whether there is.
    ///
    /// # Safety
    /// As of [`Lanes`], at that level; the rows are readable, and the registers writable.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn transpose_square(_: (*const Self, usize), _: (*mut Self, usize)) -> bool {
        false
    }
}

/// A register.
///
/// # Safety
/// The unsafe functions of a level's type are called in code that is compiled for the level and runs on
/// a processor that has it.
pub(crate) trait Lanes<T: Real>: Copy {
    const LEN: usize;

    /// # Safety
    /// As of the trait.
    unsafe fn splat(x: T) -> Self;

    /// # Safety
    /// As of the trait, and `LEN` numbers at the address are readable.
    unsafe fn load(from: *const T) -> Self;

    /// # Safety
    /// As of the trait, and `LEN` numbers at the address are writable.
    unsafe fn store(self, to: *mut T);

    /// `self * other + sum`.
    ///
    /// # Safety
    /// As of the trait.
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self;

    /// Replaces some lanes, which are 0: lane `i` by the number at `from + i * step`, for the step that the
    /// part was made for.
    ///
    /// # Safety
    /// As of the trait; these numbers, and the ones between them, are readable.
    #[inline(always)]
    unsafe fn replace(self, lanes: Part, from: *const T, step: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { replace_each(self, lanes, from, step) }
    }
}

/// Lanes of a register, one after another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    first: u16,
    end: u16,
    /// One bit for each number from that of lane 0 on which is read: at a step of 2, with those between.
    bits: u32,
}

impl Part {
    /// The lanes of a range, to be read at a step.
    pub(super) fn new(lanes: Range<usize>, step: usize) -> Part {
        let below = |end: usize| ((1_u64 << end) - 1) as u32;
        let bits = match step {
            2 => below(2 * lanes.end - 1) & !below(2 * lanes.start),
            _ => below(lanes.end) & !below(lanes.start),
        };
        Part { first: lanes.start as u16, end: lanes.end as u16, bits }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == self.end
    }
}

/// [`Lanes::replace`] by plain code.
///
/// # Safety
/// As of that.
#[inline(always)]
unsafe fn replace_each<T: Real, V: Lanes<T>>(
    register: V,
    lanes: Part,
    from: *const T,
    step: usize,
) -> V {
    let mut all = [T::ZERO; 16];
    // SAFETY: the caller's promise; no register has more lanes.
    unsafe {
        register.store(all.as_mut_ptr());
        let wanted = lanes.first as usize..lanes.end as usize;
        for (lane, number) in all.iter_mut().enumerate().take(wanted.end).skip(wanted.start) {
            *number = *from.wrapping_add(lane * step);
        }
        V::load(all.as_ptr())
    }
}

/// Asks for the numbers at an address, which may be any.
#[inline(always)]
pub(super) fn prefetch<T>(from: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch accesses nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(from.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = from;
}

/// A register as an array, for the level of every processor; the compiler makes vector code of it.
#[derive(Clone, Copy)]
pub(crate) struct Array<T, const N: usize>([T; N]);

impl<T: Real, const N: usize> Lanes<T> for Array<T, N> {
    const LEN: usize = N;

    #[inline(always)]
    unsafe fn splat(x: T) -> Self {
        Array([x; N])
    }

    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: the caller's promise.
        Array(unsafe { from.cast::<[T; N]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[T; N]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
        let mut result = sum;
        for ((r, x), y) in result.0.iter_mut().zip(self.0).zip(other.0) {
            *r = r.plus(x.times(y));
        }
        result
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = x86::F32x16;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = x86::F32x8;
    type Baseline = Array<f32, 4>;

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        self * other
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn transpose_square(from: (*const Self, usize), to: (*mut Self, usize)) -> bool {
        // SAFETY: the caller's promise.
        unsafe { x86::transpose(from, to) };
        true
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = x86::F64x8;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = x86::F64x4;
    type Baseline = Array<f64, 2>;

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        self * other
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Lanes, Part, replace_each};

    /// The longest step of a gather, whose offsets are 32 bits wide.
    const MAX_STEP: usize = 1 << 24;

    #[derive(Clone, Copy)]
    pub(crate) struct F32x16(__m512);
    #[derive(Clone, Copy)]
    pub(crate) struct F64x8(__m512d);
    #[derive(Clone, Copy)]
    pub(crate) struct F32x8(__m256);
    #[derive(Clone, Copy)]
    pub(crate) struct F64x4(__m256d);

    /// Transposes 16 rows of 16 numbers: pairs of rows, then fours, are interleaved within blocks of 16
    /// bytes, whose blocks are then gathered.
    ///
    /// # Safety
    /// As of [`Real::transpose_square`](super::Real::transpose_square).
    #[inline(always)]
    pub(super) unsafe fn transpose(from: (*const f32, usize), to: (*mut f32, usize)) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); 16];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_ps(from.0.add(i * from.1));
            }
            let mut pairs = rows;
            for i in (0..16).step_by(2) {
                pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
                pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
            }
            let mut fours = pairs;
            for i in (0..16).step_by(4) {
                for half in 0..2 {
                    let a = _mm512_castps_pd(pairs[i + half]);
                    let b = _mm512_castps_pd(pairs[i + half + 2]);
                    fours[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                    fours[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
                }
            }
            for i in 0..4 {
                let even = _mm512_shuffle_f32x4::<0x88>(fours[i], fours[i + 4]);
                let odd = _mm512_shuffle_f32x4::<0xdd>(fours[i], fours[i + 4]);
                let later_even = _mm512_shuffle_f32x4::<0x88>(fours[i + 8], fours[i + 12]);
                let later_odd = _mm512_shuffle_f32x4::<0xdd>(fours[i + 8], fours[i + 12]);
                let columns = [
                    _mm512_shuffle_f32x4::<0x88>(even, later_even),
                    _mm512_shuffle_f32x4::<0x88>(odd, later_odd),
                    _mm512_shuffle_f32x4::<0xdd>(even, later_even),
                    _mm512_shuffle_f32x4::<0xdd>(odd, later_odd),
                ];
                for (block, column) in columns.into_iter().enumerate() {
                    _mm512_storeu_ps(to.0.add((4 * block + i) * to.1), column);
                }
            }
        }
    }

    macro_rules! registers {
        // A macro, since the instructions of each type have names of their own.
        ($($name:ident, $float:ty, $len:literal: $set:ident, $load:ident, $store:ident, $fma:ident
            $(, $replace:item)?;)*) => {$(
            impl Lanes<$float> for $name {
                const LEN: usize = $len;

                #[inline(always)]
                unsafe fn splat(x: $float) -> Self {
                    // SAFETY: the caller's promise.
                    $name(unsafe { $set(x) })
                }

                #[inline(always)]
                unsafe fn load(from: *const $float) -> Self {
                    // SAFETY: as above.
                    $name(unsafe { $load(from) })
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut $float) {
                    // SAFETY: as above.
                    unsafe { $store(to, self.0) }
                }

                #[inline(always)]
                unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
                    // SAFETY: as above.
                    $name(unsafe { $fma(self.0, other.0, sum.0) })
                }

                $($replace)?
            }
        )*};
    }

    registers! {
        F32x8, f32, 8: _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps;
        F64x4, f64, 4: _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_fmadd_pd;
        F32x16, f32, 16: _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps,
        #[inline(always)]
        unsafe fn replace(self, lanes: Part, from: *const f32, step: usize) -> Self {
            // SAFETY: the caller's promise; the masks leave the other numbers unread.
            unsafe {
                match step {
                    1 => F32x16(_mm512_mask_loadu_ps(self.0, lanes.bits as u16, from)),
                    2 => {
                        let (bits, next) = (lanes.bits, from.wrapping_add(16));
                        let low = _mm512_maskz_loadu_ps(bits as u16, from);
                        let high = _mm512_maskz_loadu_ps((bits >> 16) as u16, next);
                        let even = _mm512_setr_epi32(
                            0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                        );
                        let both = _mm512_permutex2var_ps(low, even, high);
                        F32x16(_mm512_or_ps(self.0, both))
                    }
                    MAX_STEP.. => replace_each(self, lanes, from, step),
                    _ => {
                        let steps = _mm512_mullo_epi32(
                            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                            _mm512_set1_epi32(step as i32),
                        );
                        let mask = lanes.bits as u16;
                        F32x16(_mm512_mask_i32gather_ps::<4>(self.0, mask, steps, from))
                    }
                }
            }
        };
        F64x8, f64, 8: _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_fmadd_pd,
        #[inline(always)]
        unsafe fn replace(self, lanes: Part, from: *const f64, step: usize) -> Self {
            // SAFETY: as of float32.
            unsafe {
                match step {
                    1 => F64x8(_mm512_mask_loadu_pd(self.0, lanes.bits as u8, from)),
                    2 | MAX_STEP.. => replace_each(self, lanes, from, step),
                    _ => {
                        let steps = _mm256_mullo_epi32(
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                            _mm256_set1_epi32(step as i32),
                        );
                        let mask = lanes.bits as u8;
                        F64x8(_mm512_mask_i32gather_pd::<8>(self.0, mask, steps, from))
                    }
                }
            }
        };
    }
}
