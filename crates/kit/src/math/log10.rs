//! The logarithm to base 10: whole at the powers of ten that floats have, and at those next to the
//! others.

use keyfold_expr::coefficients::{LOG10_E, LOG10_E_SINGLE};

use super::double::{log_edges, log_rest, mantissa};
use super::{power, single};
use crate::isa::Isa;
use crate::math::Real;

/// log10(2) in two parts: the first has 40 bits, so that its multiples are exact.
const LOG10_2: [f64; 2] = [0.301_029_995_663_611_77, 3.694_239_077_158_931e-13];

/// The same for float32, the first with 16 bits.
const SINGLE_2: [f32; 2] = [0.301_025_4, 4.605_039e-6];

/// Of a float32, as [`double()`].
#[inline(always)]
pub(super) fn single<I: Isa>(x: f32) -> f32 {
    let (k, f) = single::mantissa(x);
    let rest = I::mul_add_f32(f, f.polynomial::<I, 9>(&single::LOG), -0.5) * (f * f);
    let rest = I::mul_add_f32(rest, LOG10_E_SINGLE[0], k * SINGLE_2[1]);
    let rest = I::mul_add_f32(f, LOG10_E_SINGLE[1], rest);
    let rest = I::mul_add_f32(f, LOG10_E_SINGLE[0], rest);
    single::log_edges(x, 0.0, I::mul_add_f32(k, SINGLE_2[0], rest))
}

/// `k log10(2) + log10(1 + f)`, all but the last sum in more digits than the result has.
#[inline(always)]
pub(super) fn double<I: Isa>(x: f64) -> f64 {
    let (k, m) = mantissa(x);
    let f = m - 1.0;
    let rest = I::mul_add_f64(log_rest::<I>(f), LOG10_E[0], k * LOG10_2[1]);
    let rest = I::mul_add_f64(f, LOG10_E[1], rest);
    let (first, lost) = power::product::<I>(f, LOG10_E[0]);
    let (high, low) = power::sum(k * LOG10_2[0], first);
    log_edges(x, 0.0, high + (low + (lost + rest)))
}
