//! Pointwise functions of one tensor.

use keyfold_core::{DType, ErrorKind, Result};
use keyfold_layers::autocast::Category;
use keyfold_tensor::Tensor;

use super::expression::Expression;
use super::gradients::binary::{abs, neg};
use super::gradients::complex::{conjugate, imag, real, sign};
use super::gradients::unary_pow::{
    cos, exp, expm1, gelu, gelu_sigmoid, gelu_tanh, log, log1p, relu, sigmoid, sin, sqrt, tanh,
};
use super::{Pointwise, Size};
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::like_derivative;
use crate::naming::{Naming, UNARY_PARAMETERS, named, named_method};
use crate::op::Op;
use crate::row::{Gradient, Layers, Row, Rule};
use crate::vjp::{BOOL_RESULT, INTEGER_RESULT, READS_FIRST, READS_NOTHING, READS_RESULT, formula};

/// Returns the reason why a function refuses a dtype, for a clearer message than the expression's.
pub(super) type Refusal = fn(DType) -> Option<&'static str>;

pub(super) fn accept_all(_: DType) -> Option<&'static str> {
    None
}

fn refuse_bool(dtype: DType) -> Option<&'static str> {
    (dtype == DType::Bool).then_some("bools can't be negated; use aten::logical_not, or convert")
}

pub(super) fn refuse_complex(dtype: DType) -> Option<&'static str> {
    dtype.is_complex().then_some("it takes real numbers; take one part, or the abs")
}

pub(super) fn check(op: &Op, refusal: Refusal, argument: &str, dtype: DType) -> Result<()> {
    refusal(dtype).map_or(Ok(()), |why| {
        Err(op.error(ErrorKind::DType, format!("argument '{argument}': dtype {dtype}: {why}")))
    })
}

/// A function of one tensor called `self`.
struct UnaryRow {
    name: &'static str,
    /// Its expression, of `self`.
    text: &'static str,
    refusal: Refusal,
    derivative: Rule<Gradient>,
    autocast: Category,
}

impl UnaryRow {
    /// The row of a function that `keyfold.NAME` calls, which has this docstring.
    fn named(self, name: &'static str, doc: &'static str) -> Result<Row> {
        self.row(named(name, UNARY_PARAMETERS, doc))
    }

    /// As [`UnaryRow::named`], of a function that is a method of `Tensor`, too.
    fn method(self, name: &'static str, doc: &'static str) -> Result<Row> {
        self.row(named_method(name, UNARY_PARAMETERS, doc))
    }

    fn row(self, naming: Naming) -> Result<Row> {
        let UnaryRow { name, text, refusal, derivative, autocast } = self;
        Row::pointwise::<(&Tensor,), _, _>(
            (name, ""),
            "Tensor self",
            Expression::parse(text, &["self"], &[])?,
            move |row| (row, refusal),
            unary,
            Layers {
                derivative,
                tangent: like_derivative(derivative),
                batching: Rule::Derived,
                autocast,
            },
            naming,
        )
    }
}

#[inline(always)]
fn unary(call: Call<'_, (Pointwise, Refusal)>, (x,): (&Tensor,)) -> Result<CallPlan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, "self", x.dtype())?;
    row.plan([x], [], Size::Unknown)
}

/// Returns the rows of the functions.
pub(super) fn rows() -> Result<Vec<Row>> {
    use Category::{FullPrecision, Leave};
    let unary_row = |name, text, refusal, derivative, autocast| UnaryRow {
        name,
        text,
        refusal,
        derivative,
        autocast,
    };
    let functions = [
        unary_row("aten::neg", "-self", refuse_bool, formula(READS_NOTHING, neg), Leave)
            .named("negative", "Return the elements with their signs turned."),
        unary_row("aten::abs", "abs(self)", accept_all, formula(READS_FIRST, abs), Leave)
            .method("abs", "Return the absolute values."),
        unary_row("aten::sign", "sign(self)", accept_all, formula(READS_FIRST, sign), Leave).named(
            "sign",
            "Return 1, 0 or -1 for each element; of complex ones `x / abs(x)`, and 0 of 0.\n\nNaN \
             stays; a bool is its own sign.",
        ),
        unary_row("aten::conj", "conj(self)", accept_all, formula(READS_NOTHING, conjugate), Leave)
            .method("conj", "Return the complex conjugates; real elements as they are."),
        unary_row("aten::real", "real(self)", accept_all, formula(READS_NOTHING, real), Leave)
            .named("real", "Return the real parts, in an array of their own."),
        unary_row("aten::imag", "imag(self)", accept_all, formula(READS_NOTHING, imag), Leave)
            .named(
                "imag",
                "Return the imaginary parts, in an array of their own: 0 of real elements.",
            ),
        // Compares with a bool, which promotes no dtype.
        unary_row(
            "aten::relu",
            "where((self > False) | isnan(self), self, False)",
            refuse_complex,
            formula(READS_RESULT, relu),
            Leave,
        )
        .method("relu", "Return each element, or 0 where it is negative. Not in the standard."),
        unary_row("aten::exp", "exp(self)", accept_all, formula(READS_RESULT, exp), FullPrecision)
            .method("exp", "Return the exponentials: float64 for integers."),
        unary_row(
            "aten::expm1",
            "expm1(self)",
            accept_all,
            formula(READS_RESULT, expm1),
            FullPrecision,
        )
        .named("expm1", "Return `exp(x) - 1`, exact for small elements: float64 for integers."),
        unary_row("aten::log", "log(self)", accept_all, formula(READS_FIRST, log), FullPrecision)
            .method("log", "Return the natural logarithms: float64 for integers."),
        unary_row(
            "aten::log1p",
            "log1p(self)",
            accept_all,
            formula(READS_FIRST, log1p),
            FullPrecision,
        )
        .named("log1p", "Return `log(1 + x)`, exact for small elements: float64 for integers."),
        unary_row("aten::sqrt", "sqrt(self)", accept_all, formula(READS_RESULT, sqrt), Leave)
            .method("sqrt", "Return the square roots: float64 for integers."),
        unary_row("aten::rsqrt", "rsqrt(self)", accept_all, Rule::Derived, Leave)
            .named("rsqrt", "Return `1 / sqrt(x)`: float64 for integers. Not in the standard."),
        unary_row("aten::reciprocal", "1.0 / self", accept_all, Rule::Derived, Leave)
            .named("reciprocal", "Return `1 / x`: float64 for integers."),
        unary_row("aten::sin", "sin(self)", accept_all, formula(READS_FIRST, sin), Leave)
            .method("sin", "Return the sines of angles in radians: float64 for integers."),
        unary_row("aten::cos", "cos(self)", accept_all, formula(READS_FIRST, cos), Leave)
            .method("cos", "Return the cosines of angles in radians: float64 for integers."),
        unary_row("aten::tanh", "tanh(self)", accept_all, formula(READS_RESULT, tanh), Leave)
            .method("tanh", "Return the hyperbolic tangents: float64 for integers."),
        unary_row(
            "aten::sigmoid",
            "sigmoid(self)",
            accept_all,
            formula(READS_RESULT, sigmoid),
            Leave,
        )
        .method(
            "sigmoid",
            "Return `1 / (1 + exp(-x))`: float64 for integers. Not in the standard.",
        ),
        unary_row("aten::erf", "erf(self)", accept_all, Rule::Derived, Leave)
            .named("erf", "Return the error function: float64 for integers. Not in the standard."),
        unary_row("aten::softplus", "softplus(self)", refuse_complex, Rule::Derived, Leave).named(
            "softplus",
            "Return `log(1 + exp(x))`, which is never infinite for finite x. Not in the standard.",
        ),
        unary_row("aten::silu", "silu(self)", refuse_complex, Rule::Derived, Leave)
            .named("silu", "Return `x * sigmoid(x)`. Not in the standard."),
        unary_row(
            "aten::mish",
            "max(self, -1000.0) * tanh(softplus(self))",
            refuse_complex,
            Rule::Derived,
            Leave,
        )
        .named(
            "mish",
            "Return `x * tanh(log(1 + exp(x)))`. Not in the standard.\n\nD. Misra, \"Mish: a self \
             regularized non-monotonic activation function\", 2019.",
        ),
        unary_row("aten::gelu", "gelu(self)", refuse_complex, formula(READS_FIRST, gelu), Leave)
            .row(Naming::PartOf("gelu")),
        unary_row(
            "aten::gelu_tanh",
            "gelu_tanh(self)",
            refuse_complex,
            formula(READS_FIRST, gelu_tanh),
            Leave,
        )
        .row(Naming::PartOf("gelu")),
        unary_row(
            "aten::gelu_sigmoid",
            "max(self, -600.0) * sigmoid(1.702 * self)",
            refuse_complex,
            formula(READS_FIRST, gelu_sigmoid),
            Leave,
        )
        .row(Naming::PartOf("gelu")),
        unary_row("aten::floor", "floor(self)", accept_all, Rule::Derived, Leave)
            .named("floor", "Return the greatest integers that are not above the elements."),
        unary_row("aten::ceil", "ceil(self)", accept_all, Rule::Derived, Leave)
            .named("ceil", "Return the smallest integers that are not below the elements."),
        unary_row("aten::round", "round(self)", accept_all, Rule::Derived, Leave)
            .named("round", "Return the nearest integers, the even one of two."),
        unary_row("aten::trunc", "trunc(self)", accept_all, Rule::Derived, Leave)
            .named("trunc", "Return the elements without their fractions."),
        unary_row("aten::isnan", "isnan(self)", accept_all, BOOL_RESULT, Leave)
            .named("isnan", "Return whether each element is NaN."),
        unary_row("aten::isinf", "isinf(self)", accept_all, BOOL_RESULT, Leave)
            .named("isinf", "Return whether each element is infinite."),
        unary_row("aten::isfinite", "isfinite(self)", accept_all, BOOL_RESULT, Leave)
            .named("isfinite", "Return whether each element is neither infinite nor NaN."),
        unary_row("aten::bitwise_not", "~self", accept_all, INTEGER_RESULT, Leave)
            .named("bitwise_invert", "Return all bits turned over; \"not\" for bools."),
        // Every value but zero is true. Compares with a bool, which promotes no dtype.
        unary_row("aten::logical_not", "self == False", accept_all, BOOL_RESULT, Leave)
            .named("logical_not", "Return whether each element is false, or zero."),
    ];
    functions.into_iter().collect()
}
