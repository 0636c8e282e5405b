//! The logarithm to base 10: an exact integer at the powers of ten that are floats, and at the floats
//! nearest to the other powers.

use keyfold_expr::coefficients::{LOG10_E, LOG10_E_SINGLE};

use super::float64::{log_rest, log_special_cases, mantissa};
use super::{float32, power};
use crate::isa::Isa;
use crate::math::Real;

/// log10(2) in two parts: the first has 40 bits, so that its multiples are exact.
const LOG10_2: [f64; 2] = [0.301_029_995_663_611_77, 3.694_239_077_158_931e-13];

/// The same for float32; the first part has 16 bits.
const LOG10_2_F32: [f32; 2] = [0.301_025_4, 4.605_039e-6];

/// The logarithm of a float32, as [`of_f64()`].
#[inline(always)]
pub(super) fn of_f32<I: Isa>(x: f32) -> f32 {
    let (k, f) = float32::mantissa(x);
    let rest = I::mul_add_f32(f, f.polynomial::<I, 9>(&float32::LOG), -0.5) * (f * f);
    let rest = I::mul_add_f32(rest, LOG10_E_SINGLE[0], k * LOG10_2_F32[1]);
    let rest = I::mul_add_f32(f, LOG10_E_SINGLE[1], rest);
    let rest = I::mul_add_f32(f, LOG10_E_SINGLE[0], rest);
    float32::log_special_cases(x, 0.0, I::mul_add_f32(k, LOG10_2_F32[0], rest))
}

/// `k log10(2) + log10(1 + f)`; all terms but the last sum have more digits than the result.
#[inline(always)]
pub(super) fn of_f64<I: Isa>(x: f64) -> f64 {
    let (k, m) = mantissa(x);
    let f = m - 1.0;
    let rest = I::mul_add_f64(log_rest::<I>(f), LOG10_E[0], k * LOG10_2[1]);
    let rest = I::mul_add_f64(f, LOG10_E[1], rest);
    let (first, lost) = power::product::<I>(f, LOG10_E[0]);
    let (high, low) = power::sum(k * LOG10_2[0], first);
    log_special_cases(x, 0.0, high + (low + (lost + rest)))
}
