//! Conversions of the half-precision floats, compared with those of the `half` crate bit by bit.

use keyfold_core::{bf16, f16};
use keyfold_kit::half::{self, Half};
use keyfold_kit::isa::{self, Level};

fn for_each_level(mut f: impl FnMut()) {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        assert_eq!(isa::set_level(level), level);
        f();
    }
}

/// A dense sweep of float32 bit patterns, and all patterns near the boundaries where float16 and
/// bfloat16 round.
fn floats() -> Vec<f32> {
    let halves = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32().to_bits());
    let brains = (0..=u16::MAX).map(|bits| u32::from(bits) << 16);
    let near =
        |bits: u32| [0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001].map(|step| bits ^ step);
    let edges = halves.chain(brains).flat_map(near);
    (0..=u32::MAX).step_by(9973).chain(edges).map(f32::from_bits).collect()
}

#[test]
fn every_float16_widens_as_in_the_half_crate_and_comes_back() {
    let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    for_each_level(|| {
        let (mut wide, mut wider) = (vec![0f32; all.len()], vec![0f64; all.len()]);
        let mut back = vec![f16::ZERO; all.len()];
        half::widen(&all, &mut wide);
        half::widen_f64(&all, &mut wider);
        half::narrow(&wide, &mut back);
        for (at, h) in all.iter().enumerate() {
            assert_eq!(wide[at].to_bits(), h.to_f32().to_bits(), "{h:?}");
            assert!(wider[at] == h.to_f64() || h.is_nan() && wider[at].is_nan());
            let quiet = if h.is_nan() { 0x0200 } else { 0 };
            assert_eq!(back[at].to_bits(), h.to_bits() | quiet, "{h:?}");
        }
    });
}

#[test]
fn every_bfloat16_widens_as_in_the_half_crate_and_comes_back() {
    let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    for_each_level(|| {
        let mut wide = vec![0f32; all.len()];
        let mut back = vec![bf16::ZERO; all.len()];
        half::widen(&all, &mut wide);
        half::narrow(&wide, &mut back);
        for (at, h) in all.iter().enumerate() {
            assert_eq!(wide[at].to_bits(), h.to_f32().to_bits(), "{h:?}");
            let quiet = if h.is_nan() { 0x0040 } else { 0 };
            assert_eq!(back[at].to_bits(), h.to_bits() | quiet, "{h:?}");
        }
    });
}

#[test]
fn float32_narrows_as_in_the_half_crate() {
    let floats = floats();
    for_each_level(|| {
        let (mut h, mut b) = (vec![f16::ZERO; floats.len()], vec![bf16::ZERO; floats.len()]);
        half::narrow(&floats, &mut h);
        half::narrow(&floats, &mut b);
        for (at, x) in floats.iter().enumerate() {
            assert_eq!(h[at].to_bits(), f16::from_f32(*x).to_bits(), "{x:e} {:08x}", x.to_bits());
            assert_eq!(b[at].to_bits(), bf16::from_f32(*x).to_bits(), "{x:e} {:08x}", x.to_bits());
        }
    });
}

/// The half nearest to a number, ties to even, found among neighbours in exact arithmetic.
fn nearest(x: f64) -> u16 {
    let near = f16::from_f32(x.abs() as f32).to_bits();
    let far = |bits: &u16| {
        // Infinity counts as the number that would follow the greatest half.
        let value = if *bits == 0x7c00 { 65_536.0 } else { f16::from_bits(*bits).to_f64() };
        (value - x.abs()).abs()
    };
    (near.saturating_sub(1)..=(near + 1).min(0x7c00))
        .min_by(|a, b| far(a).total_cmp(&far(b)).then((a & 1).cmp(&(b & 1))))
        .map_or(0, |bits| bits | if x.is_sign_negative() { 0x8000 } else { 0 })
}

#[test]
fn float64_is_rounded_once() {
    // A number slightly beside the midpoint of two halves: rounding to float32 first would lose the
    // difference.
    let middles = (0..0x7bff_u16).map(|bits| {
        f64::midpoint(f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64())
    });
    let beside = |x: f64| [x, x.next_up(), x.next_down(), x * (1.0 + 1e-12), -x * (1.0 - 1e-12)];
    let mut x: Vec<f64> = middles.flat_map(beside).collect();
    x.extend([0.0, -0.0, 1e300, -1e300, 1e-300, -1e-300, 65_519.999_999, 65_520.0]);
    for_each_level(|| {
        let mut h = vec![f16::ZERO; x.len()];
        half::narrow_f64(&x, &mut h);
        for (x, h) in x.iter().zip(&h) {
            assert_eq!(h.to_bits(), nearest(*x), "{x:e}");
        }
    });
    assert!(<f16 as Half>::narrow_f64(f64::NAN).is_nan());
    assert!(<bf16 as Half>::narrow_f64(f64::NAN).is_nan());
    assert_eq!(<bf16 as Half>::narrow_f64(f64::NEG_INFINITY), bf16::NEG_INFINITY);
    assert_eq!(<bf16 as Half>::narrow_f64(-1e300), bf16::NEG_INFINITY);
    let above = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    assert_eq!(<bf16 as Half>::narrow_f64(above).to_f64(), 1.0 + 2f64.powi(-7));
}
