//! The functions of the language as methods of terms.

use super::{Term, TermOperand};
use crate::derived_functions;
use crate::graph::{Binary, Id, Unary};

impl<'b> Term<'b> {
    fn unary(self, op: Unary) -> Term<'b> {
        self.with(|g, x| derived_functions::unary(g, op, x))
    }

    fn binary(self, op: Binary, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.with_two(other, |g, a, b| derived_functions::binary(g, op, a, b))
    }

    fn logical(self, op: Binary, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.with_two(other, |g, a, b| derived_functions::logical(g, op, a, b))
    }

    /// Clamps to `low` and `high`; NaN for NaN.
    #[must_use]
    pub fn clamp(
        self,
        low: impl Into<TermOperand<'b>>,
        high: impl Into<TermOperand<'b>>,
    ) -> Term<'b> {
        let high: Id = self.builder.term(high).id;
        self.with_two(low, |g, x, low| derived_functions::clamp(g, x, low, high))
    }

    /// Returns the absolute value.
    #[must_use]
    pub fn abs(self) -> Term<'b> {
        self.unary(Unary::Abs)
    }

    /// Returns -1, 0 or 1; NaN for NaN.
    #[must_use]
    pub fn sign(self) -> Term<'b> {
        self.unary(Unary::Sign)
    }

    /// Returns `e ** x`.
    #[must_use]
    pub fn exp(self) -> Term<'b> {
        self.unary(Unary::Exp)
    }

    /// Returns `e ** x - 1`, accurate near 0.
    #[must_use]
    pub fn expm1(self) -> Term<'b> {
        self.unary(Unary::Expm1)
    }

    /// Returns the natural logarithm.
    #[must_use]
    pub fn log(self) -> Term<'b> {
        self.unary(Unary::Log)
    }

    /// Returns `log(1 + x)`, accurate near 0.
    #[must_use]
    pub fn log1p(self) -> Term<'b> {
        self.unary(Unary::Log1p)
    }

    /// Returns the square root.
    #[must_use]
    pub fn sqrt(self) -> Term<'b> {
        self.unary(Unary::Sqrt)
    }

    /// Returns `1 / sqrt(x)`.
    #[must_use]
    pub fn rsqrt(self) -> Term<'b> {
        self.unary(Unary::Rsqrt)
    }

    /// Returns the complex conjugate; a real number is unchanged.
    #[must_use]
    pub fn conj(self) -> Term<'b> {
        self.unary(Unary::Conj)
    }

    /// Returns the real part.
    #[must_use]
    pub fn real(self) -> Term<'b> {
        self.unary(Unary::Real)
    }

    /// Returns the imaginary part.
    #[must_use]
    pub fn imag(self) -> Term<'b> {
        self.unary(Unary::Imag)
    }

    /// Returns the sine, of radians.
    #[must_use]
    pub fn sin(self) -> Term<'b> {
        self.unary(Unary::Sin)
    }

    /// Returns the cosine, of radians.
    #[must_use]
    pub fn cos(self) -> Term<'b> {
        self.unary(Unary::Cos)
    }

    /// Returns the hyperbolic tangent.
    #[must_use]
    pub fn tanh(self) -> Term<'b> {
        self.unary(Unary::Tanh)
    }

    /// Returns `1 / (1 + exp(-x))`.
    #[must_use]
    pub fn sigmoid(self) -> Term<'b> {
        self.unary(Unary::Sigmoid)
    }

    /// Returns the error function.
    #[must_use]
    pub fn erf(self) -> Term<'b> {
        self.unary(Unary::Erf)
    }

    /// Returns the greatest integer not above `x`.
    #[must_use]
    pub fn floor(self) -> Term<'b> {
        self.unary(Unary::Floor)
    }

    /// Returns the smallest integer not below `x`.
    #[must_use]
    pub fn ceil(self) -> Term<'b> {
        self.unary(Unary::Ceil)
    }

    /// Returns the nearest integer, ties to even.
    #[must_use]
    pub fn round(self) -> Term<'b> {
        self.unary(Unary::Round)
    }

    /// Returns the number rounded towards zero.
    #[must_use]
    pub fn trunc(self) -> Term<'b> {
        self.unary(Unary::Trunc)
    }

    /// Returns whether it is NaN.
    #[must_use]
    pub fn is_nan(self) -> Term<'b> {
        self.unary(Unary::IsNan)
    }

    /// Returns whether it is neither infinite nor NaN.
    #[must_use]
    pub fn is_finite(self) -> Term<'b> {
        self.unary(Unary::IsFinite)
    }

    /// Returns `x` above 0, else 0; NaN for NaN.
    #[must_use]
    pub fn relu(self) -> Term<'b> {
        self.with(derived_functions::relu)
    }

    /// Returns `x` times the normal distribution function, by `erf`.
    #[must_use]
    pub fn gelu(self) -> Term<'b> {
        self.with(derived_functions::gelu)
    }

    /// Returns the approximation of `gelu` by `tanh`.
    #[must_use]
    pub fn gelu_tanh(self) -> Term<'b> {
        self.with(derived_functions::gelu_tanh)
    }

    /// Returns `x * sigmoid(x)`.
    #[must_use]
    pub fn silu(self) -> Term<'b> {
        self.with(derived_functions::silu)
    }

    /// Returns `log(1 + exp(x))`, without overflow.
    #[must_use]
    pub fn softplus(self) -> Term<'b> {
        self.with(derived_functions::softplus)
    }

    /// Returns `x * x`.
    #[must_use]
    pub fn square(self) -> Term<'b> {
        self.with(derived_functions::square)
    }

    /// Returns `1 / x`.
    #[must_use]
    pub fn reciprocal(self) -> Term<'b> {
        self.with(derived_functions::reciprocal)
    }

    /// Returns `2 ** x`.
    #[must_use]
    pub fn exp2(self) -> Term<'b> {
        self.with(derived_functions::exp2)
    }

    /// Returns the logarithm to base 2.
    #[must_use]
    pub fn log2(self) -> Term<'b> {
        self.unary(Unary::Log2)
    }

    /// Returns the logarithm to base 10.
    #[must_use]
    pub fn log10(self) -> Term<'b> {
        self.unary(Unary::Log10)
    }

    /// Returns the hyperbolic sine.
    #[must_use]
    pub fn sinh(self) -> Term<'b> {
        self.with(derived_functions::sinh)
    }

    /// Returns the hyperbolic cosine.
    #[must_use]
    pub fn cosh(self) -> Term<'b> {
        self.with(derived_functions::cosh)
    }

    /// Returns the tangent.
    #[must_use]
    pub fn tan(self) -> Term<'b> {
        self.with(derived_functions::tan)
    }

    /// Returns `1 - erf(x)`, without cancellation.
    #[must_use]
    pub fn erfc(self) -> Term<'b> {
        self.unary(Unary::Erfc)
    }

    /// Returns whether it is infinite.
    #[must_use]
    pub fn is_inf(self) -> Term<'b> {
        self.with(derived_functions::is_inf)
    }

    /// Returns whether it is zero.
    #[must_use]
    pub fn logical_not(self) -> Term<'b> {
        self.with(derived_functions::logical_not)
    }

    /// Returns `a ** b`.
    #[must_use]
    pub fn pow(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.binary(Binary::Pow, other)
    }

    /// Returns the quotient rounded down.
    #[must_use]
    pub fn floor_div(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.binary(Binary::FloorDiv, other)
    }

    /// Returns the smaller; NaN if either is.
    #[must_use]
    pub fn min(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.binary(Binary::Min, other)
    }

    /// Returns the greater; NaN if either is.
    #[must_use]
    pub fn max(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.binary(Binary::Max, other)
    }

    /// Returns whether they are equal.
    #[must_use]
    pub fn eq(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.binary(Binary::Eq, other)
    }

    /// Returns whether they differ.
    #[must_use]
    pub fn ne(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.binary(Binary::Ne, other)
    }

    /// Returns whether it is less.
    #[must_use]
    pub fn lt(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.binary(Binary::Lt, other)
    }

    /// Returns whether it is less or equal.
    #[must_use]
    pub fn le(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.binary(Binary::Le, other)
    }

    /// Returns whether it is greater.
    #[must_use]
    pub fn gt(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.binary(Binary::Gt, other)
    }

    /// Returns whether it is greater or equal.
    #[must_use]
    pub fn ge(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.binary(Binary::Ge, other)
    }

    /// Returns `log(exp(a) + exp(b))`, without overflow.
    #[must_use]
    pub fn logaddexp(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.with_two(other, derived_functions::logaddexp)
    }

    /// Returns `sqrt(a * a + b * b)`, without intermediate overflow.
    #[must_use]
    pub fn hypot(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.with_two(other, derived_functions::hypot)
    }

    /// Returns whether both are nonzero.
    #[must_use]
    pub fn logical_and(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.logical(Binary::And, other)
    }

    /// Returns whether at least one is nonzero.
    #[must_use]
    pub fn logical_or(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.logical(Binary::Or, other)
    }

    /// Returns whether exactly one is nonzero.
    #[must_use]
    pub fn logical_xor(self, other: impl Into<TermOperand<'b>>) -> Term<'b> {
        self.logical(Binary::Xor, other)
    }
}
