//! Functions of one tensor.

use keyfold_core::{DType, ErrorKind, Result};
use keyfold_layers::autocast::Category;
use keyfold_tensor::Tensor;

use super::expression::Expression;
use super::gradients::binary::{abs, neg};
use super::gradients::complex::{conjugate, imag, real, sign};
use super::gradients::unary_pow::{cos, exp, expm1, log, log1p, relu, sigmoid, sin, sqrt, tanh};
use super::{Pointwise, Size};
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::like_derivative;
use crate::op::Op;
use crate::row::{Gradient, Layers, Row, Rule};
use crate::vjp::{BOOL_RESULT, INTEGER_RESULT, READS_FIRST, READS_NOTHING, READS_RESULT, formula};

/// Why a function refuses a dtype, where its expression wouldn't say it well.
type Refusal = fn(DType) -> Option<&'static str>;

fn accept_all(_: DType) -> Option<&'static str> {
    None
}

fn refuse_bool(dtype: DType) -> Option<&'static str> {
    (dtype == DType::Bool).then_some("bools can't be negated; use aten::logical_not, or convert")
}

fn refuse_complex(dtype: DType) -> Option<&'static str> {
    dtype.is_complex().then_some("it takes real numbers; take one part, or the abs")
}

fn check(op: &Op, refusal: Refusal, dtype: DType) -> Result<()> {
    refusal(dtype).map_or(Ok(()), |why| {
        Err(op.error(ErrorKind::DType, format!("argument 'self': dtype {dtype}: {why}")))
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
    fn row(&self) -> Result<Row> {
        let UnaryRow { name, text, refusal, derivative, autocast } = *self;
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
        )
    }
}

#[inline(always)]
fn unary(call: Call<'_, (Pointwise, Refusal)>, (x,): (&Tensor,)) -> Result<CallPlan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, x.dtype())?;
    row.plan([x], [], Size::Unknown)
}

/// The rows of the functions.
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
        unary_row("aten::neg", "-self", refuse_bool, formula(READS_NOTHING, neg), Leave),
        unary_row("aten::abs", "abs(self)", accept_all, formula(READS_FIRST, abs), Leave),
        unary_row("aten::sign", "sign(self)", accept_all, formula(READS_FIRST, sign), Leave),
        unary_row("aten::conj", "conj(self)", accept_all, formula(READS_NOTHING, conjugate), Leave),
        unary_row("aten::real", "real(self)", accept_all, formula(READS_NOTHING, real), Leave),
        unary_row("aten::imag", "imag(self)", accept_all, formula(READS_NOTHING, imag), Leave),
        // Written with a bool, which changes no dtype.
        unary_row(
            "aten::relu",
            "where((self > False) | isnan(self), self, False)",
            refuse_complex,
            formula(READS_RESULT, relu),
            Leave,
        ),
        unary_row("aten::exp", "exp(self)", accept_all, formula(READS_RESULT, exp), FullPrecision),
        unary_row(
            "aten::expm1",
            "expm1(self)",
            accept_all,
            formula(READS_RESULT, expm1),
            FullPrecision,
        ),
        unary_row("aten::log", "log(self)", accept_all, formula(READS_FIRST, log), FullPrecision),
        unary_row(
            "aten::log1p",
            "log1p(self)",
            accept_all,
            formula(READS_FIRST, log1p),
            FullPrecision,
        ),
        unary_row("aten::sqrt", "sqrt(self)", accept_all, formula(READS_RESULT, sqrt), Leave),
        unary_row("aten::rsqrt", "rsqrt(self)", accept_all, Rule::Derived, Leave),
        unary_row("aten::reciprocal", "1.0 / self", accept_all, Rule::Derived, Leave),
        unary_row("aten::sin", "sin(self)", accept_all, formula(READS_FIRST, sin), Leave),
        unary_row("aten::cos", "cos(self)", accept_all, formula(READS_FIRST, cos), Leave),
        unary_row("aten::tanh", "tanh(self)", accept_all, formula(READS_RESULT, tanh), Leave),
        unary_row(
            "aten::sigmoid",
            "sigmoid(self)",
            accept_all,
            formula(READS_RESULT, sigmoid),
            Leave,
        ),
        unary_row("aten::erf", "erf(self)", accept_all, Rule::Derived, Leave),
        unary_row("aten::softplus", "softplus(self)", refuse_complex, Rule::Derived, Leave),
        unary_row("aten::silu", "silu(self)", refuse_complex, Rule::Derived, Leave),
        unary_row("aten::gelu", "gelu(self)", refuse_complex, Rule::Derived, Leave),
        unary_row("aten::gelu_tanh", "gelu_tanh(self)", refuse_complex, Rule::Derived, Leave),
        unary_row("aten::floor", "floor(self)", accept_all, Rule::Derived, Leave),
        unary_row("aten::ceil", "ceil(self)", accept_all, Rule::Derived, Leave),
        unary_row("aten::round", "round(self)", accept_all, Rule::Derived, Leave),
        unary_row("aten::trunc", "trunc(self)", accept_all, Rule::Derived, Leave),
        unary_row("aten::isnan", "isnan(self)", accept_all, BOOL_RESULT, Leave),
        unary_row("aten::isinf", "isinf(self)", accept_all, BOOL_RESULT, Leave),
        unary_row("aten::isfinite", "isfinite(self)", accept_all, BOOL_RESULT, Leave),
        unary_row("aten::bitwise_not", "~self", accept_all, INTEGER_RESULT, Leave),
        // Anything but zero is true; written with a bool, which changes no dtype.
        unary_row("aten::logical_not", "self == False", accept_all, BOOL_RESULT, Leave),
    ];
    functions.iter().map(UnaryRow::row).collect()
}
