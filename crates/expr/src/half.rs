//! The half-precision floats, float16 and bfloat16, to float32 and back: integer arithmetic without
//! branches, for loops that the compiler turns into vector code.
//!
//! Rounding is to the nearest, ties to even; subnormals, infinities and signed zeros are exact; NaN
//! stays NaN, a quiet one with the payload's top bits.

use std::marker::PhantomData;

use keyfold_core::{bf16, f16};

use crate::isa::{self, Isa, Work};

/// A half-precision float.
pub trait Half: Copy + 'static {
    /// As a float32, exactly.
    fn widen(self) -> f32;

    /// The nearest half.
    fn narrow(x: f32) -> Self;

    /// The nearest half of a float64. Going through float32 would round twice, unless its last bit
    /// remembers that something was lost (rounding to odd: S. Boldo and G. Melquiond, "Emulation of
    /// FMA and correctly rounded sums", 2008).
    #[inline(always)]
    fn narrow_f64(x: f64) -> Self {
        let near = x as f32;
        let back = f64::from(near);
        let bits = near.to_bits();
        // The other neighbour of `x` is the odd one.
        let odd = if back.abs() > x.abs() { bits.wrapping_sub(1) } else { bits.wrapping_add(1) };
        let keep = (back == x) | x.is_nan() | (bits & 1 == 1);
        Self::narrow(f32::from_bits(if keep { bits } else { odd }))
    }
}

impl Half for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let sign = (bits & 0x8000) << 16;
        let rest = bits & 0x7fff;
        // From the exponent's bias of 15 to 127, and once more for infinities and NaN.
        let again = if rest >= 0x7c00 { 112 << 23 } else { 0 };
        let quiet = if rest > 0x7c00 { 0x0040_0000 } else { 0 };
        let normal = ((rest << 13) + (112 << 23) + again) | quiet;
        // Subnormals are whole multiples of 2^-24.
        let subnormal = (rest as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
        f32::from_bits(sign | if rest < 0x0400 { subnormal } else { normal })
    }

    #[inline(always)]
    fn narrow(x: f32) -> f16 {
        let bits = x.to_bits();
        let rest = bits & 0x7fff_ffff;
        // Below 2^-14: the sum with 1/2 has the multiple of 2^-24 in its lowest bits.
        let subnormal = (f32::from_bits(rest) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let rounded = rest.wrapping_add(0xfff + ((rest >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
        // Too large is infinite.
        let normal = if rest < 0x4780_0000 { rounded } else { 0x7c00 };
        let finite = if rest < 0x3880_0000 { subnormal } else { normal };
        let nan = 0x7e00 | ((rest >> 13) & 0x3ff);
        let value = if rest > 0x7f80_0000 { nan } else { finite };
        f16::from_bits((value | ((bits >> 16) & 0x8000)) as u16)
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
}

/// Every half as a float32. Panics where lengths differ.
pub fn widen<H: Half>(from: &[H], to: &mut [f32]) {
    each::<_, _, Widen>(from, to);
}

/// Every half as a float64. Panics where lengths differ.
pub fn widen_f64<H: Half>(from: &[H], to: &mut [f64]) {
    each::<_, _, Widen>(from, to);
}

/// Every float32 rounded to a half. Panics where lengths differ.
pub fn narrow<H: Half>(from: &[f32], to: &mut [H]) {
    each::<_, _, Narrow>(from, to);
}

/// Every float64 rounded to a half, once. Panics where lengths differ.
pub fn narrow_f64<H: Half>(from: &[f64], to: &mut [H]) {
    each::<_, _, Narrow>(from, to);
}

/// A conversion as a type: closures aren't always inlined into a level's function.
trait Convert<A, B> {
    fn convert(x: A) -> B;
}

struct Widen;
struct Narrow;

impl<H: Half> Convert<H, f32> for Widen {
    #[inline(always)]
    fn convert(x: H) -> f32 {
        x.widen()
    }
}

impl<H: Half> Convert<H, f64> for Widen {
    #[inline(always)]
    fn convert(x: H) -> f64 {
        f64::from(x.widen())
    }
}

impl<H: Half> Convert<f32, H> for Narrow {
    #[inline(always)]
    fn convert(x: f32) -> H {
        H::narrow(x)
    }
}

impl<H: Half> Convert<f64, H> for Narrow {
    #[inline(always)]
    fn convert(x: f64) -> H {
        H::narrow_f64(x)
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
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = C::convert(*from);
        }
    }
}
