//! Half-precision floats to float32 and back, in whole-number arithmetic without branches, so that
//! loops over them are vectorised whatever instructions there are for them.

use keyfold_core::{bf16, f16};

/// Exact.
#[inline(always)]
pub(crate) fn widen_f16(h: f16) -> f32 {
    // Sign, exponent and fraction at their places; copies of the sign in between are cut out.
    let bits = (i32::from(h.to_bits() as i16) << 13) as u32 & 0x8fff_e000;
    // The exponent's bias is 15 in the one and 127 in the other; the product does subnormals, too.
    let scaled = f32::from_bits(bits) * f32::from_bits((127 + 112) << 23);
    const SPECIAL: u32 = 0x1f << 23;
    let special = if bits & SPECIAL == SPECIAL { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special)
}

/// To the nearest, ties to even.
#[inline(always)]
pub(crate) fn narrow_f16(x: f32) -> f16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Below 2^-14: adding 0.5 puts the last bit that a half has at the end, and rounds.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let half = if magnitude < 113 << 23 { small } else { normal };
    let half = if magnitude >= 143 << 23 { special } else { half };
    f16::from_bits((half | sign) as u16)
}

/// Exact.
#[inline(always)]
pub(crate) fn widen_bf16(h: bf16) -> f32 {
    f32::from_bits(u32::from(h.to_bits()) << 16)
}

/// To the nearest, ties to even.
#[inline(always)]
pub(crate) fn narrow_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded } as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_widened_exactly_and_comes_back() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            if h.is_nan() {
                assert!(widen_f16(h).is_nan() && narrow_f16(widen_f16(h)).is_nan());
            } else {
                assert_eq!(widen_f16(h).to_bits(), h.to_f32().to_bits());
                assert_eq!(narrow_f16(widen_f16(h)).to_bits(), bits);
            }
            if b.is_nan() {
                assert!(widen_bf16(b).is_nan() && narrow_bf16(widen_bf16(b)).is_nan());
            } else {
                assert_eq!(widen_bf16(b).to_bits(), b.to_f32().to_bits());
                assert_eq!(narrow_bf16(widen_bf16(b)).to_bits(), bits);
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_the_nearest_and_ties_to_even() {
        // A step that meets every exponent with many mantissas, and the neighbours of each half.
        let mut all: Vec<u32> = (0..=u32::MAX).step_by(99_991).collect();
        for bits in 0..=u16::MAX {
            let wide = f16::from_bits(bits).to_f32().to_bits();
            for hair in [1, 0xfff, 0x1000, 0x1001] {
                all.extend([wide.wrapping_add(hair), wide.wrapping_sub(hair)]);
            }
        }
        for bits in all {
            let x = f32::from_bits(bits);
            if x.is_nan() {
                assert!(narrow_f16(x).is_nan() && narrow_bf16(x).is_nan());
                continue;
            }
            assert_eq!(narrow_f16(x).to_bits(), f16::from_f32(x).to_bits(), "{x}");
            assert_eq!(narrow_bf16(x).to_bits(), bf16::from_f32(x).to_bits(), "{x}");
        }
    }
}
