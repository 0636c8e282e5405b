//! Conversions between the half-precision floats (float16, bfloat16) and float32: integer arithmetic
//! without branches, which the compiler vectorises; slices of float16 are converted by the processor's
//! own instructions where it has them.
//!
//! Rounding is to nearest, ties to even; subnormals, infinities and signed zeros are exact; NaN stays
//! NaN, quiet, with the payload's top bits.
//!
//! ```
//! use keyfold_core::f16;
//! use keyfold_kit::half;
//!
//! let mut halves = [f16::ZERO; 3];
//! half::narrow(&[0.1_f32, 65_519.0, 1e9], &mut halves);
//! assert_eq!(halves.map(f16::to_f32), [0.099_975_586, 65_504.0, f32::INFINITY]);
//! ```

mod f16c;

use std::marker::PhantomData;

use keyfold_core::{bf16, f16, rounded_to_odd};

use crate::isa::{self, Isa, Work};

/// A half-precision float.
pub trait Half: Copy + 'static {
    /// Converts to float32, exactly.
    fn widen(self) -> f32;

    /// Rounds to the nearest half.
    fn narrow(x: f32) -> Self;

    /// Converts a float64 to a float32 that rounds to the half nearest to the float64; the nearest
    /// float32 doesn't always.
    fn round_to_odd_f32(x: f64) -> f32;

    /// Rounds a float64 to the nearest half.
    #[inline(always)]
    fn narrow_f64(x: f64) -> Self {
        Self::narrow(Self::round_to_odd_f32(x))
    }

    /// Widens a slice; the slices are of equal length.
    #[inline(always)]
    fn widen_all<I: Isa>(from: &[Self], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }

    /// Rounds a slice; the slices are of equal length.
    #[inline(always)]
    fn narrow_all<I: Isa>(from: &[f32], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = Self::narrow(*from);
        }
    }
}

impl Half for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let sign = (bits & 0x8000) << 16;
        let rest = bits & 0x7fff;
        // Rebias the exponent from 15 to 127, and a second time for infinities and NaN.
        let again = if rest >= 0x7c00 { 112 << 23 } else { 0 };
        let quiet = if rest > 0x7c00 { 0x0040_0000 } else { 0 };
        let normal = ((rest << 13) + (112 << 23) + again) | quiet;
        // Subnormals are integer multiples of 2^-24.
        let subnormal = (rest as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
        f32::from_bits(sign | if rest < 0x0400 { subnormal } else { normal })
    }

    #[inline(always)]
    fn narrow(x: f32) -> f16 {
        let bits = x.to_bits();
        let rest = bits & 0x7fff_ffff;
        // Below 2^-14: adding 1/2 shifts the multiple of 2^-24 into the lowest bits.
        let subnormal = (f32::from_bits(rest) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let rounded = rest.wrapping_add(0xfff + ((rest >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
        // Numbers that are too large become infinite.
        let normal = if rest < 0x4780_0000 { rounded } else { 0x7c00 };
        let finite = if rest < 0x3880_0000 { subnormal } else { normal };
        let nan = 0x7e00 | ((rest >> 13) & 0x3ff);
        let value = if rest > 0x7f80_0000 { nan } else { finite };
        f16::from_bits((value | ((bits >> 16) & 0x8000)) as u16)
    }

    /// Rounds to odd: the float64's digits beyond float32's are cut off, and the last bit is set if any
    /// of them wasn't 0 (S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums",
    /// 2008). Wherever the float16 isn't 0 or infinite the float32 is normal, so the number of digits is
    /// fixed.
    #[inline(always)]
    fn round_to_odd_f32(x: f64) -> f32 {
        const LOST: u64 = (1 << 29) - 1;
        let bits = x.to_bits();
        let last = (bits & LOST).wrapping_add(LOST) & (LOST + 1);
        f64::from_bits((bits & !LOST) | last) as f32
    }

    #[inline(always)]
    fn widen_all<I: Isa>(from: &[f16], to: &mut [f32]) {
        if !f16c::widen::<I>(from, to) {
            for (to, from) in to.iter_mut().zip(from) {
                *to = from.widen();
            }
        }
    }

    #[inline(always)]
    fn narrow_all<I: Isa>(from: &[f32], to: &mut [f16]) {
        if !f16c::narrow::<I>(from, to) {
            for (to, from) in to.iter_mut().zip(from) {
                *to = f16::narrow(*from);
            }
        }
    }
}

impl Half for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let quiet = if bits & 0x7fff > 0x7f80 { 0x0040 } else { 0 };
        f32::from_bits((bits | quiet) << 16)
    }

    #[inline(always)]
    fn narrow(x: f32) -> bf16 {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let nan = (bits >> 16) | 0x0040;
        let value = if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded };
        bf16::from_bits(value as u16)
    }

    /// As for float16, but the float32 may be subnormal and then has fewer digits.
    #[inline(always)]
    fn round_to_odd_f32(x: f64) -> f32 {
        rounded_to_odd(x)
    }
}

/// Widens every half to a float32. Panics if the lengths differ.
pub fn widen<H: Half>(from: &[H], to: &mut [f32]) {
    each::<_, _, Widen>(from, to);
}

/// Widens every half to a float64. Panics if the lengths differ.
pub fn widen_f64<H: Half>(from: &[H], to: &mut [f64]) {
    each::<_, _, Widen>(from, to);
}

/// Rounds every float32 to a half. Panics if the lengths differ.
pub fn narrow<H: Half>(from: &[f32], to: &mut [H]) {
    each::<_, _, Narrow>(from, to);
}

/// Rounds every float64 to a half, once. Panics if the lengths differ.
pub fn narrow_f64<H: Half>(from: &[f64], to: &mut [H]) {
    each::<_, _, Narrow>(from, to);
}

/// A conversion as a type, since closures aren't always inlined into a level's function.
trait Convert<A, B> {
    /// Converts a slice; the slices are of equal length.
    fn convert<I: Isa>(from: &[A], to: &mut [B]);
}

struct Widen;
struct Narrow;

impl<H: Half> Convert<H, f32> for Widen {
    #[inline(always)]
    fn convert<I: Isa>(from: &[H], to: &mut [f32]) {
        H::widen_all::<I>(from, to);
    }
}

impl<H: Half> Convert<H, f64> for Widen {
    #[inline(always)]
    fn convert<I: Isa>(from: &[H], to: &mut [f64]) {
        for (from, to) in from.chunks(F64_CHUNK).zip(to.chunks_mut(F64_CHUNK)) {
            let mut part = [0f32; F64_CHUNK];
            let part = &mut part[..from.len()];
            H::widen_all::<I>(from, part);
            for (to, from) in to.iter_mut().zip(part) {
                *to = f64::from(*from);
            }
        }
    }
}

impl<H: Half> Convert<f32, H> for Narrow {
    #[inline(always)]
    fn convert<I: Isa>(from: &[f32], to: &mut [H]) {
        H::narrow_all::<I>(from, to);
    }
}

impl<H: Half> Convert<f64, H> for Narrow {
    #[inline(always)]
    fn convert<I: Isa>(from: &[f64], to: &mut [H]) {
        for (from, to) in from.chunks(F64_CHUNK).zip(to.chunks_mut(F64_CHUNK)) {
            let mut part = [0f32; F64_CHUNK];
            let part = &mut part[..from.len()];
            for (part, from) in part.iter_mut().zip(from) {
                *part = H::round_to_odd_f32(*from);
            }
            H::narrow_all::<I>(part, to);
        }
    }
}

/// Elements per pass through float32.
const F64_CHUNK: usize = 64;

/// Rounds every float32 to a half, kept as float32; the slices are of equal length.
#[inline(always)]
pub(crate) fn round<H: Half, I: Isa>(from: &[f32], to: &mut [f32]) {
    for (from, to) in from.chunks(F64_CHUNK).zip(to.chunks_mut(F64_CHUNK)) {
        let mut part = [H::narrow(0.0); F64_CHUNK];
        let part = &mut part[..from.len()];
        H::narrow_all::<I>(from, part);
        H::widen_all::<I>(part, to);
    }
}

/// Rounds every float64 to a half, once, kept as float32; the slices are of equal length.
#[inline(always)]
pub(crate) fn round_f64<H: Half, I: Isa>(from: &[f64], to: &mut [f32]) {
    for (from, to) in from.chunks(F64_CHUNK).zip(to.chunks_mut(F64_CHUNK)) {
        let mut part = [H::narrow(0.0); F64_CHUNK];
        let part = &mut part[..from.len()];
        Narrow::convert::<I>(from, part);
        H::widen_all::<I>(part, to);
    }
}

fn each<A: Copy, B, C: Convert<A, B>>(from: &[A], to: &mut [B]) {
    isa::dispatch(Each { from, to, how: PhantomData::<C> });
}

struct Each<'a, A, B, C> {
    from: &'a [A],
    to: &'a mut [B],
    how: PhantomData<C>,
}

impl<A: Copy, B, C: Convert<A, B>> Work for Each<'_, A, B, C> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        assert_eq!(self.from.len(), self.to.len());
        C::convert::<I>(self.from, self.to);
    }
}
