//! The functions of the language as methods of terms.

use super::{Operand, Term};
use crate::derived_functions;
use crate::graph::{Binary, Id, Unary};

impl<'b> Term<'b> {
    fn unary(self, op: Unary) -> Term<'b> {
        self.with(|g, x| derived_functions::unary(g, op, x))
    }

    fn binary(self, op: Binary, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.with_two(other, |g, a, b| derived_functions::binary(g, op, a, b))
    }

    fn logical(self, op: Binary, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.with_two(other, |g, a, b| derived_functions::logical(g, op, a, b))
    }

    /// Within `low` and `high`; NaN stays.
    #[must_use]
    pub fn clamp(self, low: impl Into<Operand<'b>>, high: impl Into<Operand<'b>>) -> Term<'b> {
        let high: Id = self.builder.term(high).id;
        self.with_two(low, |g, x, low| derived_functions::clamp(g, x, low, high))
    }

    /// The absolute value.
    #[must_use]
    pub fn abs(self) -> Term<'b> {
        self.unary(Unary::Abs)
    }

    /// -1, 0 or 1; NaN stays.
    #[must_use]
    pub fn sign(self) -> Term<'b> {
        self.unary(Unary::Sign)
    }

    /// `e ** x`
    #[must_use]
    pub fn exp(self) -> Term<'b> {
        self.unary(Unary::Exp)
    }

    /// `e ** x - 1`, exact near 0.
    #[must_use]
    pub fn expm1(self) -> Term<'b> {
        self.unary(Unary::Expm1)
    }

    /// The natural logarithm.
    #[must_use]
    pub fn log(self) -> Term<'b> {
        self.unary(Unary::Log)
    }

    /// `log(1 + x)`, exact near 0.
    #[must_use]
    pub fn log1p(self) -> Term<'b> {
        self.unary(Unary::Log1p)
    }

    /// The square root.
    #[must_use]
    pub fn sqrt(self) -> Term<'b> {
        self.unary(Unary::Sqrt)
    }

    /// `1 / sqrt(x)`
    #[must_use]
    pub fn rsqrt(self) -> Term<'b> {
        self.unary(Unary::Rsqrt)
    }

    /// The complex conjugate; a real number is its own.
    #[must_use]
    pub fn conj(self) -> Term<'b> {
        self.unary(Unary::Conj)
    }

    /// The real part.
    #[must_use]
    pub fn real(self) -> Term<'b> {
        self.unary(Unary::Real)
    }

    /// The imaginary part.
    #[must_use]
    pub fn imag(self) -> Term<'b> {
        self.unary(Unary::Imag)
    }

    /// The sine, of radians.
    #[must_use]
    pub fn sin(self) -> Term<'b> {
        self.unary(Unary::Sin)
    }

    /// The cosine, of radians.
    #[must_use]
    pub fn cos(self) -> Term<'b> {
        self.unary(Unary::Cos)
    }

    /// The hyperbolic tangent.
    #[must_use]
    pub fn tanh(self) -> Term<'b> {
        self.unary(Unary::Tanh)
    }

    /// `1 / (1 + exp(-x))`
    #[must_use]
    pub fn sigmoid(self) -> Term<'b> {
        self.unary(Unary::Sigmoid)
    }

    /// The error function.
    #[must_use]
    pub fn erf(self) -> Term<'b> {
        self.unary(Unary::Erf)
    }

    /// The greatest whole number that isn't above.
    #[must_use]
    pub fn floor(self) -> Term<'b> {
        self.unary(Unary::Floor)
    }

    /// The smallest whole number that isn't below.
    #[must_use]
    pub fn ceil(self) -> Term<'b> {
        self.unary(Unary::Ceil)
    }

    /// The nearest whole number, the even one of two.
    #[must_use]
    pub fn round(self) -> Term<'b> {
        self.unary(Unary::Round)
    }

    /// The whole number towards zero.
    #[must_use]
    pub fn trunc(self) -> Term<'b> {
        self.unary(Unary::Trunc)
    }

    /// Whether it is NaN.
    #[must_use]
    pub fn is_nan(self) -> Term<'b> {
        self.unary(Unary::IsNan)
    }

    /// Whether it is neither infinite nor NaN.
    #[must_use]
    pub fn is_finite(self) -> Term<'b> {
        self.unary(Unary::IsFinite)
    }

    /// `x` above 0, else 0; NaN stays.
    #[must_use]
    pub fn relu(self) -> Term<'b> {
        self.with(derived_functions::relu)
    }

    /// `x` times the normal distribution function, by `erf`.
    #[must_use]
    pub fn gelu(self) -> Term<'b> {
        self.with(derived_functions::gelu)
    }

    /// The approximation of `gelu` by `tanh`.
    #[must_use]
    pub fn gelu_tanh(self) -> Term<'b> {
        self.with(derived_functions::gelu_tanh)
    }

    /// `x * sigmoid(x)`
    #[must_use]
    pub fn silu(self) -> Term<'b> {
        self.with(derived_functions::silu)
    }

    /// `log(1 + exp(x))`, for all x.
    #[must_use]
    pub fn softplus(self) -> Term<'b> {
        self.with(derived_functions::softplus)
    }

    /// `x * x`
    #[must_use]
    pub fn square(self) -> Term<'b> {
        self.with(derived_functions::square)
    }

    /// `1 / x`
    #[must_use]
    pub fn reciprocal(self) -> Term<'b> {
        self.with(derived_functions::reciprocal)
    }

    /// `2 ** x`
    #[must_use]
    pub fn exp2(self) -> Term<'b> {
        self.with(derived_functions::exp2)
    }

    /// The logarithm to base 2.
    #[must_use]
    pub fn log2(self) -> Term<'b> {
        self.unary(Unary::Log2)
    }

    /// The logarithm to base 10.
    #[must_use]
    pub fn log10(self) -> Term<'b> {
        self.unary(Unary::Log10)
    }

    /// The hyperbolic sine.
    #[must_use]
    pub fn sinh(self) -> Term<'b> {
        self.with(derived_functions::sinh)
    }

    /// The hyperbolic cosine.
    #[must_use]
    pub fn cosh(self) -> Term<'b> {
        self.with(derived_functions::cosh)
    }

    /// The tangent.
    #[must_use]
    pub fn tan(self) -> Term<'b> {
        self.with(derived_functions::tan)
    }

    /// `1 - erf(x)`
    #[must_use]
    pub fn erfc(self) -> Term<'b> {
        self.unary(Unary::Erfc)
    }

    /// Whether it is infinite.
    #[must_use]
    pub fn is_inf(self) -> Term<'b> {
        self.with(derived_functions::is_inf)
    }

    /// Whether it is zero.
    #[must_use]
    pub fn logical_not(self) -> Term<'b> {
        self.with(derived_functions::logical_not)
    }

    /// `a ** b`
    #[must_use]
    pub fn pow(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.binary(Binary::Pow, other)
    }

    /// The quotient rounded down.
    #[must_use]
    pub fn floor_div(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.binary(Binary::FloorDiv, other)
    }

    /// The smaller; NaN if either is.
    #[must_use]
    pub fn min(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.binary(Binary::Min, other)
    }

    /// The greater; NaN if either is.
    #[must_use]
    pub fn max(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.binary(Binary::Max, other)
    }

    /// Whether they are equal.
    #[must_use]
    pub fn eq(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.binary(Binary::Eq, other)
    }

    /// Whether they differ.
    #[must_use]
    pub fn ne(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.binary(Binary::Ne, other)
    }

    /// Whether it is less.
    #[must_use]
    pub fn lt(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.binary(Binary::Lt, other)
    }

    /// Whether it is less or equal.
    #[must_use]
    pub fn le(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.binary(Binary::Le, other)
    }

    /// Whether it is greater.
    #[must_use]
    pub fn gt(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.binary(Binary::Gt, other)
    }

    /// Whether it is greater or equal.
    #[must_use]
    pub fn ge(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.binary(Binary::Ge, other)
    }

    /// `log(exp(a) + exp(b))`, for all a and b.
    #[must_use]
    pub fn logaddexp(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.with_two(other, derived_functions::logaddexp)
    }

    /// `sqrt(a * a + b * b)`, without overflow on the way.
    #[must_use]
    pub fn hypot(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.with_two(other, derived_functions::hypot)
    }

    /// Whether both aren't zero.
    #[must_use]
    pub fn logical_and(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.logical(Binary::And, other)
    }

    /// Whether one isn't zero.
    #[must_use]
    pub fn logical_or(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.logical(Binary::Or, other)
    }

    /// Whether just one isn't zero.
    #[must_use]
    pub fn logical_xor(self, other: impl Into<Operand<'b>>) -> Term<'b> {
        self.logical(Binary::Xor, other)
    }
}
