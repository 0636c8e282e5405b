//! The error function and its complement.
//!
//! `erfc(x) = exp(-x^2) p(u) / (1 + 2 x)` with a polynomial p in `u = (x - k) / (x + k)`: the form of
//! M. Shepherd and J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in
//! 0 <= x < infinity" (1981); k is 3.75. Below 0 it is `2 - erfc(-x)`, near 0 `1 - erf(x)`.

use keyfold_expr::coefficients::{ERF, ERF_SINGLE, ERFC, ERFC_SINGLE};

use super::value::Value;

impl<'g> Value<'g> {
    /// Returns `erf(x)` for absolute values below 1.
    fn erf_small(self) -> Value<'g> {
        let p = (self * self).polynomial_of(&ERF_SINGLE, &ERF);
        self + self * p
    }

    /// Returns `erfc(|x|)`. The square's rounding error is added to the exponential's argument,
    /// which would magnify it.
    fn erfc_of_abs(self) -> Value<'g> {
        // From here on the result is 0.
        let end = self.num(if self.is_single() { 10.2 } else { 28.0 });
        let size = self.abs();
        let a = size.above(end).choose(end, size);
        let u = (a - 3.75) / (a + 3.75);
        let factor = u.polynomial_of(&ERFC_SINGLE, &ERFC) / (a * 2.0 + 1.0);
        let (square, lost) = a.two_product(a);
        let factor = factor - factor * lost;
        // Two factors, the second of which may be subnormal.
        (-square).exp() * factor
    }

    pub(super) fn erf(self) -> Value<'g> {
        let split = self.num(if self.is_single() { 0.9 } else { 1.0 });
        let exp_limit = (1.0 - self.erfc_of_abs()).copysign(self);
        self.abs().below(split).choose(self.erf_small(), exp_limit)
    }

    pub(super) fn erfc(self) -> Value<'g> {
        let split = self.num(if self.is_single() { 0.65 } else { 0.5 });
        let value = self.erfc_of_abs();
        let exp_limit = self.below(self.num(0.0)).choose(2.0 - value, value);
        self.abs().below(split).choose(1.0 - self.erf_small(), exp_limit)
    }
}
