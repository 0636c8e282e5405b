//! Functions of one tensor.

use keyfold_core::{DType, ErrorKind, Result};
use keyfold_layers::autocast::Category;
use keyfold_tensor::Tensor;

use super::gradients::arithmetic::{abs, neg};
use super::gradients::complex::{conjugate, imag, real, sign};
use super::gradients::functions::{cos, exp, expm1, log, log1p, relu, sigmoid, sin, sqrt, tanh};
use super::operator::Expression;
use super::{Pointwise, Size};
use crate::gradient::{FIRST, GIVES_BOOLS, GIVES_WHOLE_NUMBERS, NOTHING, RESULT, given};
use crate::infer::{Call, Plan, Run};
use crate::op::Op;
use crate::row::{Gradient, Layers, Row, Rule};
use crate::tangent::of_expression;

/// Why a function refuses a dtype, where its expression wouldn't say it well.
type Refusal = fn(DType) -> Option<&'static str>;

fn nothing(_: DType) -> Option<&'static str> {
    None
}

fn bools(dtype: DType) -> Option<&'static str> {
    (dtype == DType::Bool).then_some("bools can't be negated; use aten::logical_not, or convert")
}

fn complex(dtype: DType) -> Option<&'static str> {
    dtype.is_complex().then_some("it takes real numbers; take one part, or the abs")
}

fn check(op: &Op, refusal: Refusal, dtype: DType) -> Result<()> {
    refusal(dtype).map_or(Ok(()), |why| {
        Err(op.error(ErrorKind::DType, format!("argument 'self': dtype {dtype}: {why}")))
    })
}

/// A function of one tensor called `self`.
struct Function {
    name: &'static str,
    /// Its expression, of `self`.
    text: &'static str,
    refusal: Refusal,
    derivative: Rule<Gradient>,
    autocast: Category,
}

impl Function {
    fn row(&self) -> Result<Row> {
        let Function { name, text, refusal, derivative, autocast } = *self;
        Row::pointwise::<(&Tensor,), _, _>(
            (name, ""),
            "Tensor self",
            Expression::parse(text, &["self"], &[])?,
            move |row| (row, refusal),
            unary,
            Layers {
                derivative,
                tangent: of_expression(derivative),
                batching: Rule::Derived,
                autocast,
            },
        )
    }
}

#[inline(always)]
fn unary(call: Call<'_, (Pointwise, Refusal)>, (x,): (&Tensor,)) -> Result<Plan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, x.dtype())?;
    row.plan([x], [], Size::Unknown)
}

/// The rows of the functions.
pub(super) fn rows() -> Result<Vec<Row>> {
    use Category::{FullPrecision, Leave};
    let function = |name, text, refusal, derivative, autocast| Function {
        name,
        text,
        refusal,
        derivative,
        autocast,
    };
    let functions = [
        function("aten::neg", "-self", bools, given(NOTHING, neg), Leave),
        function("aten::abs", "abs(self)", nothing, given(FIRST, abs), Leave),
        function("aten::sign", "sign(self)", nothing, given(FIRST, sign), Leave),
        function("aten::conj", "conj(self)", nothing, given(NOTHING, conjugate), Leave),
        function("aten::real", "real(self)", nothing, given(NOTHING, real), Leave),
        function("aten::imag", "imag(self)", nothing, given(NOTHING, imag), Leave),
        // Written with a bool, which changes no dtype.
        function(
            "aten::relu",
            "where((self > False) | isnan(self), self, False)",
            complex,
            given(RESULT, relu),
            Leave,
        ),
        function("aten::exp", "exp(self)", nothing, given(RESULT, exp), FullPrecision),
        function("aten::expm1", "expm1(self)", nothing, given(RESULT, expm1), FullPrecision),
        function("aten::log", "log(self)", nothing, given(FIRST, log), FullPrecision),
        function("aten::log1p", "log1p(self)", nothing, given(FIRST, log1p), FullPrecision),
        function("aten::sqrt", "sqrt(self)", nothing, given(RESULT, sqrt), Leave),
        function("aten::rsqrt", "rsqrt(self)", nothing, Rule::Derived, Leave),
        function("aten::reciprocal", "1.0 / self", nothing, Rule::Derived, Leave),
        function("aten::sin", "sin(self)", nothing, given(FIRST, sin), Leave),
        function("aten::cos", "cos(self)", nothing, given(FIRST, cos), Leave),
        function("aten::tanh", "tanh(self)", nothing, given(RESULT, tanh), Leave),
        function("aten::sigmoid", "sigmoid(self)", nothing, given(RESULT, sigmoid), Leave),
        function("aten::erf", "erf(self)", nothing, Rule::Derived, Leave),
        function("aten::softplus", "softplus(self)", complex, Rule::Derived, Leave),
        function("aten::silu", "silu(self)", complex, Rule::Derived, Leave),
        function("aten::gelu", "gelu(self)", complex, Rule::Derived, Leave),
        function("aten::gelu_tanh", "gelu_tanh(self)", complex, Rule::Derived, Leave),
        function("aten::floor", "floor(self)", nothing, Rule::Derived, Leave),
        function("aten::ceil", "ceil(self)", nothing, Rule::Derived, Leave),
        function("aten::round", "round(self)", nothing, Rule::Derived, Leave),
        function("aten::trunc", "trunc(self)", nothing, Rule::Derived, Leave),
        function("aten::isnan", "isnan(self)", nothing, GIVES_BOOLS, Leave),
        function("aten::isinf", "isinf(self)", nothing, GIVES_BOOLS, Leave),
        function("aten::isfinite", "isfinite(self)", nothing, GIVES_BOOLS, Leave),
        function("aten::bitwise_not", "~self", nothing, GIVES_WHOLE_NUMBERS, Leave),
        // Anything but zero is true; written with a bool, which changes no dtype.
        function("aten::logical_not", "self == False", nothing, GIVES_BOOLS, Leave),
    ];
    functions.iter().map(Function::row).collect()
}
