//! Conversions of single numbers, as Rust's `as` does them: floats to whole numbers towards zero, the
//! nearest there is where that is out of range, NaN to 0; whole numbers wrap.
//!
//! The compiler doesn't vectorise `as` from floats. What it does vectorise is the conversion of numbers
//! that are known to fit; so they are made to fit first.

use keyfold_core::Complex;

use crate::isa::{Isa, Level};

/// Anything that can be converted by `as`, complex numbers included.
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
    // Through a wider whole number, whose conversion processors have: both limits are floats.
    ($($from:ident => $($to:ident $wide:ident)*;)*) => {$($(
        impl Convert<$to> for $from {
            #[inline(always)]
            fn convert<I: Isa>(self) -> $to {
                const LEAST: $from = $to::MIN as $from;
                const MOST: $from = $to::MAX as $from;
                // NaN is put below: that is 0 already for what has no sign.
                let number = if $to::MIN != 0 && self.is_nan() { 0.0 } else { self };
                let above = if number > LEAST { number } else { LEAST };
                let inside = if above < MOST { above } else { MOST };
                // SAFETY: it is no NaN and between two numbers of the narrow type.
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
    // The greatest whole number is no float: what is above the last float before it is apart.
    ($($from:ident => $($to:ident)*;)*) => {$($(
        impl Convert<$to> for $from {
            #[inline(always)]
            fn convert<I: Isa>(self) -> $to {
                const LEAST: $from = $to::MIN as $from;
                /// One more than the greatest value.
                const END: $from = $to::MAX as $from;
                const MOST: $from = END.next_down();
                // From AVX-512 on there are instructions for all, and before AVX none that round.
                let halves = size_of::<$to>() == 8 && I::LEVEL == Level::Avx2;
                let number = if halves { self.trunc() } else { self };
                // What has no sign has NaN at 0 by this.
                let above = if number > LEAST { number } else { LEAST };
                let value = if halves {
                    let whole = in_halves::<I>((if above < END { above } else { END }).into());
                    // One more than the greatest is the least by now.
                    whole.wrapping_sub(u64::from(number >= END)) as $to
                } else {
                    let inside = if above < MOST { above } else { MOST };
                    // SAFETY: it is no NaN and between two numbers of the type.
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

/// A whole number from -2^63 to 2^64 as one of 64 bits that wraps: in the lowest bits of a sum with a power
/// of two stands a whole number, here the upper and the lower 32 bits.
#[inline(always)]
fn in_halves<I: Isa>(whole: f64) -> u64 {
    /// 1.5 * 2^52: there is room below for the negative.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    const HALF: f64 = 4_294_967_296.0;
    let upper = I::mul_add_f64(whole, 1.0 / HALF, SHIFT);
    let lower = I::mul_add_f64(upper - SHIFT, -HALF, whole) + SHIFT;
    (upper.to_bits() << 32).wrapping_add(lower.to_bits().wrapping_sub(SHIFT.to_bits()))
}
