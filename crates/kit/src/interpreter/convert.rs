//! Conversions of single numbers with the semantics of Rust's `as`: a float is truncated, and saturates
//! at the integer's limits; NaN becomes 0; integers wrap.
//!
//! The compiler doesn't vectorise `as` from floats to integers, but it vectorises the unchecked
//! conversion. So numbers are clamped to the target's range first.

use keyfold_core::Complex;

use crate::isa::{Isa, Level};

/// A number that `as` converts to `R`; complex numbers included.
pub(crate) trait Convert<R>: Copy + 'static {
    fn convert<I: Isa>(self) -> R;
}

macro_rules! convert {
    // A macro, since no trait offers `as`.
    ($($from:ident => $($to:ident)*;)*) => {$($(
        impl Convert<$to> for $from {
            #[inline(always)]
            fn convert<I: Isa>(self) -> $to {
                self as $to
            }
        }
    )*
        impl Convert<Complex<f32>> for $from {
            #[inline(always)]
            fn convert<I: Isa>(self) -> Complex<f32> {
                Complex::new(self as f32, 0.0)
            }
        }
        impl Convert<Complex<f64>> for $from {
            #[inline(always)]
            fn convert<I: Isa>(self) -> Complex<f64> {
                Complex::new(self as f64, 0.0)
            }
        }
    )*};
}

convert! {
    u8 => u8 u16 u32 u64 f32 f64;
    u16 => u8 u16 u32 u64 f32 f64;
    u32 => u8 u16 u32 u64 f32 f64;
    u64 => u8 u16 u32 u64 f32 f64;
    i8 => u8 u16 u32 u64 f32 f64;
    i16 => u8 u16 u32 u64 f32 f64;
    i32 => u8 u16 u32 u64 f32 f64;
    i64 => u8 u16 u32 u64 f32 f64;
    f32 => f32 f64;
    f64 => f32 f64;
}

impl Convert<Complex<f64>> for Complex<f32> {
    #[inline(always)]
    fn convert<I: Isa>(self) -> Complex<f64> {
        Complex::new(self.re.into(), self.im.into())
    }
}
impl Convert<Complex<f32>> for Complex<f64> {
    #[inline(always)]
    fn convert<I: Isa>(self) -> Complex<f32> {
        Complex::new(self.re as f32, self.im as f32)
    }
}

macro_rules! exact_limits {
    // For targets whose limits are both exact floats: converts to a wider integer type, which processors
    // have an instruction for.
    ($($from:ident => $($to:ident $wide:ident)*;)*) => {$($(
        impl Convert<$to> for $from {
            #[inline(always)]
            fn convert<I: Isa>(self) -> $to {
                const LEAST: $from = $to::MIN as $from;
                const MOST: $from = $to::MAX as $from;
                // NaN must become 0. The clamp below maps NaN to `LEAST`, which is 0 for unsigned types
                // already.
                let number = if $to::MIN != 0 && self.is_nan() { 0.0 } else { self };
                let above = if number > LEAST { number } else { LEAST };
                let inside = if above < MOST { above } else { MOST };
                // SAFETY: the number isn't NaN, and lies between the limits of the narrow type.
                unsafe { inside.to_int_unchecked::<$wide>() as $to }
            }
        }
    )*)*};
}

exact_limits! {
    f32 => i8 i32 u8 i32 i16 i32 u16 i32;
    f64 => i8 i32 u8 i32 i16 i32 u16 i32 i32 i32 u32 u32;
}

macro_rules! rounded_limits {
    // For targets whose greatest value isn't a float: numbers from `END` on are clamped to the last
    // float below it.
    ($($from:ident => $($to:ident)*;)*) => {$($(
        impl Convert<$to> for $from {
            #[inline(always)]
            fn convert<I: Isa>(self) -> $to {
                const LEAST: $from = $to::MIN as $from;
                /// One more than the greatest value.
                const END: $from = $to::MAX as $from;
                const MOST: $from = END.next_down();
                // AVX-512 has instructions for all these conversions. SSE2 has none that round to an
                // integer.
                let halves = size_of::<$to>() == 8 && I::LEVEL == Level::Avx2;
                let number = if halves { self.trunc() } else { self };
                // For unsigned types `LEAST` is 0, and this comparison maps NaN to it.
                let above = if number > LEAST { number } else { LEAST };
                let value = if halves {
                    let whole = in_halves::<I>((if above < END { above } else { END }).into());
                    // `END` wraps to the least value, and subtracting 1 wraps that to the greatest.
                    whole.wrapping_sub(u64::from(number >= END)) as $to
                } else {
                    let inside = if above < MOST { above } else { MOST };
                    // SAFETY: the number isn't NaN, and lies between the limits of the type.
                    let value = unsafe { inside.to_int_unchecked::<$to>() };
                    if above < END { value } else { $to::MAX }
                };
                if $to::MIN != 0 && self.is_nan() { 0 } else { value }
            }
        }
    )*)*};
}

rounded_limits! {
    f32 => i32 u32 i64 u64;
    f64 => i64 u64;
}

/// Converts a float that is an integer from -2^63 to 2^64 to 64 bits, wrapping. The upper and the lower
/// 32 bits are converted apart: adding a power of two to a float leaves its integer value in the lowest
/// bits.
#[inline(always)]
fn in_halves<I: Isa>(whole: f64) -> u64 {
    /// 1.5 * 2^52: the half leaves a bit for negative numbers to borrow from.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    const HALF: f64 = 4_294_967_296.0;
    let upper = I::mul_add_f64(whole, 1.0 / HALF, SHIFT);
    let lower = I::mul_add_f64(upper - SHIFT, -HALF, whole) + SHIFT;
    (upper.to_bits() << 32).wrapping_add(lower.to_bits().wrapping_sub(SHIFT.to_bits()))
}
