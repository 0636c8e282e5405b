//! Elementary functions without branches, for loops that the compiler vectorises.
//!
//! Every function of [`Real`] is plain scalar code, `#[inline(always)]` and generic over the level
//! ([`Isa`]): in a loop inside [`isa::dispatch`](crate::isa::dispatch) it is compiled for that level's
//! registers. [`slices`] has such loops.
//!
//! Errors are at most 2 ulp ([`Real::pow`], [`Real::erf`] and [`Real::erfc`]: 4) at every level. NaN,
//! infinities, signed zeros, subnormal arguments and results, overflow and underflow are handled as in
//! libm.
//!
//! The greatest errors found, in ulp, at the worst level (float32: every 37th number, except for powers;
//! float64: at least 400,000 numbers, compared with long double):
//!
//! | | exp | exp2 | expm1 | log | log2 | log10 | log1p | rsqrt | tanh | sigmoid | erf | erfc | sin | cos | pow |
//! |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
//! | float32 | 1.15 | 1.04 | 1.50 | 0.79 | 1.43 | 1.89 | 1.55 | 1.49 | 1.56 | 1.74 | 2.25 | 3.66 | 1.48 | 1.49 | 0.51 |
//! | float64 | 1.08 | | 1.87 | 0.88 | 1.17 | 0.93 | 1.41 | 1.47 | 1.43 | 1.55 | 1.34 | 3.55 | 1.44 | 1.42 | 1.09 |
//!
//! erf of float32 with AVX-512 isn't monotonic: of two neighbouring arguments the greater one may have a
//! value that is an ulp less.
//!
//! The coefficients are printed by `scripts/minimax.py`.
//!
//! ```
//! use keyfold_kit::math::slices;
//!
//! let mut out = [0.0_f32; 3];
//! slices::tanh(&[0.0, 0.5, f32::INFINITY], &mut out);
//! assert_eq!((out[0], out[2]), (0.0, 1.0));
//! assert!((out[1] - 0.5_f32.tanh()).abs() < 1e-6);
//! ```

pub mod avx512;
pub mod complex;
pub mod complex_power;
#[cfg(target_arch = "x86_64")]
mod erf_table;
mod erfc;
#[cfg(target_arch = "x86_64")]
mod erfc_table;
#[cfg(target_arch = "x86_64")]
mod exponential;
mod float32;
mod float64;
pub mod function;
mod log10;
mod power;
pub mod slices;

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::isa::Isa;

use avx512::Avx512Function;
pub use function::{Function, Function2, Scaling};

/// A float type that kernels compute in: `f32` and `f64`.
///
/// Arithmetic is by the operators; the methods that take a level are the elementary functions.
pub trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + Default
    + Send
    + Sync
    + std::fmt::Debug
    + 'static
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// 0.5
    const HALF: Self;
    /// 2
    const TWO: Self;
    /// +inf
    const INFINITY: Self;
    /// -inf
    const NEG_INFINITY: Self;
    /// A NaN.
    const NAN: Self;
    /// The distance from 1 to the next number.
    const EPSILON: Self;
    /// The greatest absolute argument of [`Real::sin_in_range`] and [`Real::cos_in_range`].
    const SIN_LIMIT: Self;

    /// Rounds to the nearest number of this type.
    fn from_f64(x: f64) -> Self;
    /// Converts to float64, exactly.
    fn to_f64(self) -> f64;
    /// The absolute value.
    fn abs(self) -> Self;
    /// This number with the sign of another.
    fn copysign(self, sign: Self) -> Self;
    /// The square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// `self * b + c`, rounded once if the level has fused multiply-add.
    fn mul_add<I: Isa>(self, b: Self, c: Self) -> Self;
    /// The nearest integer, ties to even.
    fn round<I: Isa>(self) -> Self;
    /// `e ** self`: range reduction by W. J. Cody and W. Waite ("Software Manual for the Elementary
    /// Functions", 1980), a minimax polynomial, and the power of two in two factors, so that
    /// subnormal results are rounded once.
    fn exp<I: Isa>(self) -> Self;
    /// `2 ** self`
    fn exp2<I: Isa>(self) -> Self;
    /// `e ** self - 1`: with `self = n ln 2 + r`, `2^n (e^r - 1) + (2^n - 1)`.
    fn expm1<I: Isa>(self) -> Self;
    /// `e ** self` if that is a normal number; NaN for NaN; unspecified for other arguments.
    fn exp_in_range<I: Isa>(self) -> Self;
    /// The hyperbolic tangent: an odd polynomial near 0, beyond `1 - 2 / (exp(2 |self|) + 1)`.
    fn tanh<I: Isa>(self) -> Self;
    /// `1 / (1 + exp(-self))`: with `exp(-self) = 2^n (1 + t)`, the sum is `1 + 2^n + 2^n t`, of
    /// which only the last term is rounded before it is added.
    fn sigmoid<I: Isa>(self) -> Self;
    /// The natural logarithm: with `self = 2^k (1 + f)`, `k ln 2` (in two parts) and `log(1 + f)`, a
    /// polynomial in f for float32, in `f / (2 + f)` for float64 (as P. Tang, "Table-driven
    /// implementation of the logarithm function", 1990, without his table).
    fn log<I: Isa>(self) -> Self;
    /// The logarithm to base 2; exact for powers of two.
    fn log2<I: Isa>(self) -> Self;
    /// `log(1 + self)`: as the logarithm, with `f = 2^-k self + (2^-k - 1)`, which is rounded once;
    /// k is that of `1 + self`.
    fn log1p<I: Isa>(self) -> Self;
    /// The sine for `|self|` up to [`Real::SIN_LIMIT`], after reduction by multiples of pi / 2 in parts
    /// (Cody and Waite). NaN for infinities, unspecified for other arguments beyond the limit.
    fn sin_in_range<I: Isa>(self) -> Self;
    /// The cosine, as [`Real::sin_in_range`].
    fn cos_in_range<I: Isa>(self) -> Self;
    /// The standard library's sine, for large arguments.
    fn sin_libm(self) -> Self;
    /// The standard library's cosine, for large arguments.
    fn cos_libm(self) -> Self;
    /// The error function: an odd polynomial near 0, beyond `1 - 2^-q(|self|)` with a polynomial q
    /// for the logarithm of erfc.
    fn erf<I: Isa>(self) -> Self;
    /// Computes a function on a slice if there is faster code than a loop; returns whether it did.
    #[inline(always)]
    fn all<F: Avx512Function, I: Isa>(_: &[Self], _: &mut [Self]) -> bool {
        false
    }
    /// As [`Real::all`], for a [`Scaling`] of the function.
    #[inline(always)]
    fn scaled<F: Avx512Function, I: Isa>(
        _: &[Self],
        _: &[Self],
        _: Scaling<Self>,
        _: &mut [Self],
    ) -> bool {
        false
    }
    /// The logarithm to base 10, an exact integer at powers of ten: `k log10(2) + log10(1 + f)` in
    /// parts.
    fn log10<I: Isa>(self) -> Self;
    /// `1 - erf(self)` without cancellation: `exp(-self^2)` times a polynomial.
    fn erfc<I: Isa>(self) -> Self;
    /// `self ** y`, with C's annex F in special cases: a logarithm with more digits than the result,
    /// times y, and the exponential.
    fn pow<I: Isa>(self, y: Self) -> Self;

    /// `1 / sqrt(self)`
    #[inline(always)]
    fn rsqrt(self) -> Self {
        Self::ONE / self.sqrt()
    }

    /// The sine of any argument, with a branch for large ones.
    #[inline(always)]
    fn sin<I: Isa>(self) -> Self {
        if self.abs() > Self::SIN_LIMIT { self.sin_libm() } else { self.sin_in_range::<I>() }
    }

    /// The cosine of any argument, with a branch for large ones.
    #[inline(always)]
    fn cos<I: Isa>(self) -> Self {
        if self.abs() > Self::SIN_LIMIT { self.cos_libm() } else { self.cos_in_range::<I>() }
    }

    /// The greatest integer that isn't greater.
    #[inline(always)]
    fn floor<I: Isa>(self) -> Self {
        let near = self.round::<I>();
        let down = near - if near > self { Self::ONE } else { Self::ZERO };
        // -0 must stay -0: its sign would be lost.
        down.copysign(if down == Self::ZERO { self } else { down })
    }

    /// The smallest integer that isn't smaller.
    #[inline(always)]
    fn ceil<I: Isa>(self) -> Self {
        -((-self).floor::<I>())
    }

    /// The integer towards zero.
    #[inline(always)]
    fn trunc<I: Isa>(self) -> Self {
        self.abs().floor::<I>().copysign(self)
    }

    /// -1, 0 or 1; 0.0 for both zeros; NaN for NaN.
    #[inline(always)]
    fn sign(self) -> Self {
        let negative = if self < Self::ZERO { -Self::ONE } else { self.abs() };
        if self > Self::ZERO { Self::ONE } else { negative }
    }

    /// The smaller number; NaN if either is NaN.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        let least = if self < other { self } else { other };
        if self.is_nan() { self } else { least }
    }

    /// The greater number; NaN if either is NaN.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        let most = if self > other { self } else { other };
        if self.is_nan() { self } else { most }
    }

    /// Whether the number is NaN.
    #[inline(always)]
    #[allow(clippy::eq_op, reason = "what NaN is")]
    fn is_nan(self) -> bool {
        self != self
    }

    /// Whether the number is neither infinite nor NaN.
    #[inline(always)]
    fn is_finite(self) -> bool {
        self.abs() < Self::INFINITY
    }

    /// The polynomial with these coefficients, lowest power first, by Horner's rule.
    #[inline(always)]
    fn polynomial<I: Isa, const N: usize>(self, coefficients: &[Self; N]) -> Self {
        let mut sum = coefficients[N - 1];
        let mut at = N - 1;
        while at > 0 {
            at -= 1;
            sum = sum.mul_add::<I>(self, coefficients[at]);
        }
        sum
    }
}
