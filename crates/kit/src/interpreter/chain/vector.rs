//! Vectors of floats for each instruction level.
//!
//! A loop over an array in memory is vectorised by the compiler, but its values go through memory from
//! one operation to the next. Values that are to stay in the processor's registers need these types.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use keyfold_core::{bf16, f16};

use super::threaded::Registers;
use crate::half::Half;

/// A vector of floats. Each operation is that of the elements: the same bits as the loops of single
/// operations, whatever the level.
///
/// # Safety
/// All methods: the processor has the type's instruction level. `load` and `store`: the pointer is valid
/// for [`Vector::LEN`] elements.
pub(in crate::interpreter) trait Vector: Copy {
    type Element: Copy;
    /// The number of elements.
    const LEN: usize;

    unsafe fn load(from: *const Self::Element) -> Self;
    unsafe fn store(self, to: *mut Self::Element);
    /// A vector of equal elements.
    unsafe fn splat(value: Self::Element) -> Self;
    unsafe fn plus(self, other: Self) -> Self;
    unsafe fn minus(self, other: Self) -> Self;
    unsafe fn times(self, other: Self) -> Self;
    unsafe fn over(self, other: Self) -> Self;
    /// The smaller one; the other one if they are equal, NaN if either is NaN.
    unsafe fn least(self, other: Self) -> Self;
    /// The larger one; the other one if they are equal, NaN if either is NaN.
    unsafe fn greatest(self, other: Self) -> Self;
    /// The smaller one of this and a number, which isn't NaN; this one if it is NaN or they are equal.
    unsafe fn least_of_number(self, number: Self) -> Self;
    /// The larger one of this and a number, likewise.
    unsafe fn greatest_of_number(self, number: Self) -> Self;
    unsafe fn negated(self) -> Self;
    unsafe fn absolute(self) -> Self;
    unsafe fn root(self) -> Self;
    /// The nearest float16, as an element.
    unsafe fn to_f16(self) -> Self;
    /// The nearest bfloat16, as an element.
    unsafe fn to_bf16(self) -> Self;
}

/// A float, with its vectors. The float itself is a vector of one element, for loops that the compiler
/// vectorises.
pub(in crate::interpreter) trait Float:
    Registers<Element = Self> + Default + PartialOrd + 'static
{
    #[cfg(target_arch = "x86_64")]
    type Avx2: Registers<Element = Self>;
    #[cfg(target_arch = "x86_64")]
    type Avx512: Registers<Element = Self>;
}

#[cfg(target_arch = "x86_64")]
impl Float for f32 {
    type Avx2 = __m256;
    type Avx512 = __m512;
}

#[cfg(target_arch = "x86_64")]
impl Float for f64 {
    type Avx2 = __m256d;
    type Avx512 = __m512d;
}

#[cfg(not(target_arch = "x86_64"))]
impl Float for f32 {}

#[cfg(not(target_arch = "x86_64"))]
impl Float for f64 {}

/// The bits of a float32 that a bfloat16 has.
#[cfg(target_arch = "x86_64")]
const UPPER: i32 = !0xffff;
/// The bit that makes NaN quiet.
#[cfg(target_arch = "x86_64")]
const QUIET: i32 = 0x0040_0000;

/// Applies a function of one element to each. Float64 has no instruction for halves, and no chain asks for
/// them, since they are computed as float32.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn each<V: Vector<Element = f64>>(value: V, f: unsafe fn(f64) -> f64) -> V {
    let mut elements = [0.0; 8];
    // SAFETY: the caller's promise; a vector has at most 8 elements.
    unsafe { value.store(elements.as_mut_ptr()) };
    // SAFETY: a single element needs no level.
    elements.iter_mut().for_each(|element| *element = unsafe { f(*element) });
    // SAFETY: as above.
    unsafe { V::load(elements.as_ptr()) }
}

/// The vectors' methods by the instructions of a level: a macro, since their names differ.
#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    (
        $vector:ident of $len:literal $element:ident,
        $load:ident $store:ident $splat:ident $add:ident $sub:ident $mul:ident $div:ident
        $min:ident $max:ident $sqrt:ident $xor:ident $andnot:ident,
        |$nan_of:ident, $otherwise:ident| $or_nan:expr,
        |$value:ident| $f16:expr, $bf16:expr
    ) => {
        impl Vector for $vector {
            type Element = $element;
            const LEN: usize = $len;

            #[inline(always)]
            unsafe fn load(from: *const $element) -> Self {
                // SAFETY: the caller's promise, as in all methods.
                unsafe { $load(from) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $element) {
                // SAFETY: as above.
                unsafe { $store(to, self) }
            }
            #[inline(always)]
            unsafe fn splat(value: $element) -> Self {
                // SAFETY: as above.
                unsafe { $splat(value) }
            }
            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $add(self, other) }
            }
            #[inline(always)]
            unsafe fn minus(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $sub(self, other) }
            }
            #[inline(always)]
            unsafe fn times(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $mul(self, other) }
            }
            #[inline(always)]
            unsafe fn over(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $div(self, other) }
            }
            #[inline(always)]
            unsafe fn least(self, other: Self) -> Self {
                // The instruction returns its second operand if either is NaN, or both are equal.
                // SAFETY: as above.
                unsafe {
                    let ($nan_of, $otherwise) = (self, $min(self, other));
                    $or_nan
                }
            }
            #[inline(always)]
            unsafe fn greatest(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe {
                    let ($nan_of, $otherwise) = (self, $max(self, other));
                    $or_nan
                }
            }
            #[inline(always)]
            unsafe fn least_of_number(self, number: Self) -> Self {
                // SAFETY: as above.
                unsafe { $min(number, self) }
            }
            #[inline(always)]
            unsafe fn greatest_of_number(self, number: Self) -> Self {
                // SAFETY: as above.
                unsafe { $max(number, self) }
            }
            #[inline(always)]
            unsafe fn negated(self) -> Self {
                // SAFETY: as above.
                unsafe { $xor(self, $splat(-0.0)) }
            }
            #[inline(always)]
            unsafe fn absolute(self) -> Self {
                // SAFETY: as above.
                unsafe { $andnot($splat(-0.0), self) }
            }
            #[inline(always)]
            unsafe fn root(self) -> Self {
                // SAFETY: as above.
                unsafe { $sqrt(self) }
            }
            #[inline(always)]
            unsafe fn to_f16(self) -> Self {
                let $value = self;
                // SAFETY: as above; F16C comes with these levels.
                unsafe { $f16 }
            }
            #[inline(always)]
            unsafe fn to_bf16(self) -> Self {
                let $value = self;
                // SAFETY: as above.
                unsafe { $bf16 }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vector! {
    __m256 of 8 f32,
    _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_div_ps
    _mm256_min_ps _mm256_max_ps _mm256_sqrt_ps _mm256_xor_ps _mm256_andnot_ps,
    |a, otherwise| _mm256_blendv_ps(otherwise, a, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a)),
    |value| _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value)), {
        let bits = _mm256_castps_si256(value);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(QUIET));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
        let either = _mm256_blendv_epi8(rounded, quiet, is_nan);
        _mm256_castsi256_ps(_mm256_and_si256(either, _mm256_set1_epi32(UPPER)))
    }
}

#[cfg(target_arch = "x86_64")]
vector! {
    __m256d of 4 f64,
    _mm256_loadu_pd _mm256_storeu_pd _mm256_set1_pd _mm256_add_pd _mm256_sub_pd _mm256_mul_pd _mm256_div_pd
    _mm256_min_pd _mm256_max_pd _mm256_sqrt_pd _mm256_xor_pd _mm256_andnot_pd,
    |a, otherwise| _mm256_blendv_pd(otherwise, a, _mm256_cmp_pd::<_CMP_UNORD_Q>(a, a)),
    |value| each(value, f64::to_f16), each(value, f64::to_bf16)
}

#[cfg(target_arch = "x86_64")]
vector! {
    __m512 of 16 f32,
    _mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_div_ps
    _mm512_min_ps _mm512_max_ps _mm512_sqrt_ps _mm512_xor_ps _mm512_andnot_ps,
    |a, otherwise| _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), a),
    |value| _mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value)), {
        let bits = _mm512_castps_si512(value);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
        let either = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(QUIET));
        _mm512_castsi512_ps(_mm512_and_si512(either, _mm512_set1_epi32(UPPER)))
    }
}

#[cfg(target_arch = "x86_64")]
vector! {
    __m512d of 8 f64,
    _mm512_loadu_pd _mm512_storeu_pd _mm512_set1_pd _mm512_add_pd _mm512_sub_pd _mm512_mul_pd _mm512_div_pd
    _mm512_min_pd _mm512_max_pd _mm512_sqrt_pd _mm512_xor_pd _mm512_andnot_pd,
    |a, otherwise| _mm512_mask_mov_pd(otherwise, _mm512_cmp_pd_mask::<_CMP_UNORD_Q>(a, a), a),
    |value| each(value, f64::to_f16), each(value, f64::to_bf16)
}

/// The methods of single elements: a macro, since the floats' own methods are of no common trait.
macro_rules! scalar {
    ($($element:ident by $narrow:ident)*) => {$(
        impl Vector for $element {
            type Element = $element;
            const LEN: usize = 1;

            #[inline(always)]
            unsafe fn load(from: *const $element) -> Self {
                // SAFETY: the caller's promise.
                unsafe { *from }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $element) {
                // SAFETY: the caller's promise.
                unsafe { *to = self };
            }
            #[inline(always)]
            unsafe fn splat(value: $element) -> Self {
                value
            }
            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            unsafe fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            unsafe fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            unsafe fn over(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            unsafe fn least(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            unsafe fn greatest(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            unsafe fn least_of_number(self, number: Self) -> Self {
                if number < self { number } else { self }
            }
            #[inline(always)]
            unsafe fn greatest_of_number(self, number: Self) -> Self {
                if number > self { number } else { self }
            }
            #[inline(always)]
            unsafe fn negated(self) -> Self {
                -self
            }
            #[inline(always)]
            unsafe fn absolute(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            unsafe fn root(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            unsafe fn to_f16(self) -> Self {
                f16::$narrow(self).widen().into()
            }
            #[inline(always)]
            unsafe fn to_bf16(self) -> Self {
                bf16::$narrow(self).widen().into()
            }
        }
    )*};
}

scalar! { f32 by narrow f64 by narrow_f64 }
