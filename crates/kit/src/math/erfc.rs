//! The complementary error function.
//!
//! `erfc(x) = exp(-x^2) p(u) / (1 + 2 x)` with a polynomial p in `u = (x - k) / (x + k)`: the form of
//! M. Shepherd and J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in
//! 0 <= x < infinity" (1981); k is 3.75. Below 0 it is `2 - erfc(-x)`.

use keyfold_expr::coefficients::{ERF, ERF_SINGLE, ERFC, ERFC_SINGLE};

use super::float32;
use super::float64::{self, clamp, reduce_ln2, scale};
use super::power::product;
use crate::isa::Isa;
use crate::math::Real;

/// `1 - erf(x)` near 0. Elsewhere the upper part of the square is exact, and the remainder of the square
/// is added to the exponent.
#[inline(always)]
pub(super) fn of_f32<I: Isa>(x: f32) -> f32 {
    let near = 1.0 - I::mul_add_f32(x, (x * x).polynomial::<I, 7>(&ERF_SINGLE), x);
    let a = float32::clamp(x.abs(), 0.0, 10.2);
    let u = (a - 3.75) / (a + 3.75);
    let upper = f32::from_bits(a.to_bits() & 0xffff_f000);
    let rest = (a - upper) * (a + upper);
    let (n, r) = float32::reduce_ln2::<I>(-(upper * upper));
    let r = r - rest;
    let factor = u.polynomial::<I, 9>(&ERFC_SINGLE) / I::mul_add_f32(a, 2.0, 1.0);
    let beyond_one = r * I::mul_add_f32(r, r.polynomial::<I, 5>(&float32::EXP), 1.0);
    let value = float32::scale(I::mul_add_f32(factor, beyond_one, factor), n);
    let far = if x < 0.0 { 2.0 - value } else { value };
    if x.abs() < 0.65 { near } else { far }
}

/// `1 - erf(x)` near 0. Elsewhere the rounding error of the square is added to the exponent.
#[inline(always)]
pub(super) fn of_f64<I: Isa>(x: f64) -> f64 {
    let size = x.abs();
    let z = x * x;
    let near = 1.0 - I::mul_add_f64(x, z.polynomial::<I, 13>(&ERF), x);
    let a = clamp(size, 0.0, 28.0);
    let u = (a - 3.75) / (a + 3.75);
    let factor = u.polynomial::<I, 23>(&ERFC) / (1.0 + 2.0 * a);
    let (square, lost) = product::<I>(a, a);
    let (n, r) = reduce_ln2::<I>(-square);
    let r = r - lost;
    let beyond_one = r * I::mul_add_f64(r, r.polynomial::<I, 11>(&float64::EXP), 1.0);
    let value = scale(I::mul_add_f64(factor, beyond_one, factor), n);
    let far = if x < 0.0 { 2.0 - value } else { value };
    if size < 0.5 { near } else { far }
}
