//! The logarithm to base 10: whole at the powers of ten that floats have, and at those next to the
//! others.

use super::double::{log_edges, log_rest, mantissa};
use super::power;
use crate::isa::Isa;

/// log10(2) in two parts: the first has 40 bits, so that its multiples are exact.
const LOG10_2: [f64; 2] = [0.301_029_995_663_611_77, 3.694_239_077_158_931e-13];
/// log10(e) in two parts.
const LOG10_E: [f64; 2] = [std::f64::consts::LOG10_E, 1.098_319_650_216_765e-17];

/// Of a float32: through the logarithm to base 2 in float64, which has digits to spare.
#[inline(always)]
pub(super) fn single<I: Isa>(x: f64) -> f64 {
    log_edges(x, 0.0, power::log2::<I>(x) * std::f64::consts::LOG10_2)
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
