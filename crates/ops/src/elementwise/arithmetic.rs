//! Arithmetic and comparisons: of two tensors, or of a tensor and a number.

use keyfold_core::{DType, ErrorKind, Result, Scalar};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Keeps;
use keyfold_tensor::Tensor;

use super::gradients::arithmetic::{
    add, div, div_scalar, mul, mul_scalar, neg, rdiv_scalar, same, sub,
};
use super::gradients::choice::{maximum, maximum_scalar, minimum, minimum_scalar};
use super::operator::Expression;
use super::{Pointwise, Size, parse};
use crate::gradient::{FIRST, GIVES_BOOLS, GIVES_WHOLE_NUMBERS, NOTHING, OTHER, given};
use crate::infer::{Call, Plan, Run};
use crate::op::Op;
use crate::row::{Gradient, Layers, Row, Rule};
use crate::tangent::of_expression;

/// Why an operator refuses a common dtype beyond what its expression does, if it does.
type Refusal = fn(DType) -> Option<&'static str>;

fn nothing(_: DType) -> Option<&'static str> {
    None
}

fn bools(dtype: DType) -> Option<&'static str> {
    (dtype == DType::Bool)
        .then_some("bools can't be subtracted; use aten::ne for \"exclusive or\", or convert")
}

fn unordered(dtype: DType) -> Option<&'static str> {
    dtype.is_complex().then_some("complex numbers have no order; take their abs first")
}

fn check(op: &Op, refusal: Refusal, dtype: DType) -> Result<()> {
    refusal(dtype).map_or(Ok(()), |why| Err(op.error(ErrorKind::DType, why)))
}

/// An operator of two tensors, and its overload for a tensor and a number.
struct Pair {
    name: &'static str,
    /// Its expression, of `self` and `other`.
    text: &'static str,
    refusal: Refusal,
    /// The derivatives of both overloads.
    derivatives: [Rule<Gradient>; 2],
    /// The category of the overload of two tensors; with a number nothing is cast.
    autocast: Category,
}

impl Pair {
    fn rows(&self) -> Result<[Row; 2]> {
        let Pair { name, text, refusal, derivatives: [of_tensors, of_number], autocast } = *self;
        let tensors = Row::pointwise::<(&Tensor, &Tensor), _, _>(
            (name, ""),
            "Tensor self, Tensor other",
            Expression::parse(text, &["self", "other"], &[])?,
            move |row| (row, refusal),
            pair,
            Layers {
                derivative: of_tensors,
                tangent: of_expression(of_tensors),
                batching: Rule::Derived,
                autocast,
            },
        )?;
        let (derivative, autocast) = (of_number, Category::Leave);
        Ok([tensors, Number { name, text, refusal, derivative, autocast }.row()?])
    }
}

/// An operator of a tensor and a number called `other`.
struct Number {
    name: &'static str,
    text: &'static str,
    refusal: Refusal,
    derivative: Rule<Gradient>,
    autocast: Category,
}

impl Number {
    fn row(&self) -> Result<Row> {
        let Number { name, text, refusal, derivative, autocast } = *self;
        let is_zero = parse("self - self == other", &["self"], &["other"])?;
        Row::pointwise::<(&Tensor, Scalar), _, _>(
            (name, "Scalar"),
            "Tensor self, Scalar other",
            Expression::parse(text, &["self"], &["other"])?,
            move |row| {
                let is_zero = Pointwise::new(row.op().clone(), is_zero.clone());
                WithNumber { row, is_zero, refusal }
            },
            with_number,
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
fn pair<'t>(
    call: Call<'_, (Pointwise, Refusal)>,
    (a, b): (&'t Tensor, &'t Tensor),
) -> Result<Plan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, a.dtype().promote(b.dtype()))?;
    row.plan([a, b], [], Size::Unknown)
}

/// An operator of a tensor and a number.
struct WithNumber {
    row: Pointwise,
    /// Whether `other` is 0, for each element of whole numbers.
    is_zero: Pointwise,
    refusal: Refusal,
}

#[inline(always)]
fn with_number(call: Call<'_, WithNumber>, (a, b): (&Tensor, Scalar)) -> Result<Plan<impl Run>> {
    let WithNumber { row, is_zero, refusal } = call.state;
    check(&call, *refusal, a.dtype().promote_scalar(b))?;
    match beyond(call.name, a.dtype(), b) {
        None => row.plan([a], [b], Size::Unknown),
        Some(answer) => is_zero.plan([a], [Scalar::Int((!answer).into())], Size::Unknown),
    }
}

/// What a comparison of whole numbers with one that their dtype can't hold always answers, as in
/// NumPy; arithmetic with such a number is an error.
fn beyond(name: &str, dtype: DType, number: Scalar) -> Option<bool> {
    let fits = !dtype.is_integral()
        || !matches!(number, Scalar::Int(_) | Scalar::UInt(_))
        || number.check(dtype).is_ok();
    if fits {
        return None;
    }
    let below = number.as_f64() < 0.0;
    let answer = match name {
        "aten::eq" => false,
        "aten::ne" => true,
        "aten::lt" | "aten::le" => !below,
        "aten::gt" | "aten::ge" => below,
        _ => return None,
    };
    Some(answer)
}

/// The rows of arithmetic and comparisons.
pub(super) fn rows() -> Result<Vec<Row>> {
    use Category::{FullPrecision, Leave, Widest};
    const SHARE: &[Keeps] = &[Keeps::these(&[1]), Keeps::these(&[1]).and_results()];
    const RESULT_AND_FIRST: &[Keeps] = &[Keeps::these(&[0]).and_results()];
    const BOTH: &[Keeps] = &[Keeps::these(&[0, 1])];
    let pair = |name, text, refusal, derivatives, autocast| Pair {
        name,
        text,
        refusal,
        derivatives,
        autocast,
    };
    let pairs = [
        pair(
            "aten::add",
            "self + other",
            nothing,
            [given(NOTHING, add), given(NOTHING, same)],
            Widest,
        ),
        pair(
            "aten::sub",
            "self - other",
            bools,
            [given(NOTHING, sub), given(NOTHING, same)],
            Widest,
        ),
        pair(
            "aten::mul",
            "self * other",
            nothing,
            [given(OTHER, mul), given(NOTHING, mul_scalar)],
            Widest,
        ),
        pair(
            "aten::div",
            "self / other",
            nothing,
            [given(SHARE, div), given(NOTHING, div_scalar)],
            Widest,
        ),
        pair(
            "aten::maximum",
            "maximum(self, other)",
            unordered,
            [given(BOTH, maximum), given(FIRST, maximum_scalar)],
            Widest,
        ),
        pair(
            "aten::minimum",
            "minimum(self, other)",
            unordered,
            [given(BOTH, minimum), given(FIRST, minimum_scalar)],
            Widest,
        ),
        pair("aten::floor_divide", "self // other", unordered, [Rule::Derived; 2], Widest),
        pair("aten::remainder", "self % other", unordered, [Rule::Derived; 2], Widest),
        pair("aten::bitwise_and", "self & other", nothing, [GIVES_WHOLE_NUMBERS; 2], Leave),
        pair("aten::bitwise_or", "self | other", nothing, [GIVES_WHOLE_NUMBERS; 2], Leave),
        pair("aten::bitwise_xor", "self ^ other", nothing, [GIVES_WHOLE_NUMBERS; 2], Leave),
        pair("aten::bitwise_left_shift", "self << other", nothing, [GIVES_WHOLE_NUMBERS; 2], Leave),
        pair(
            "aten::bitwise_right_shift",
            "self >> other",
            nothing,
            [GIVES_WHOLE_NUMBERS; 2],
            Leave,
        ),
        pair("aten::eq", "self == other", nothing, [GIVES_BOOLS; 2], Widest),
        pair("aten::ne", "self != other", nothing, [GIVES_BOOLS; 2], Widest),
        pair("aten::lt", "self < other", unordered, [GIVES_BOOLS; 2], Widest),
        pair("aten::le", "self <= other", unordered, [GIVES_BOOLS; 2], Widest),
        pair("aten::gt", "self > other", unordered, [GIVES_BOOLS; 2], Widest),
        pair("aten::ge", "self >= other", unordered, [GIVES_BOOLS; 2], Widest),
    ];
    // A number on the left: `1 - x` and `1 / x`.
    let number = |name, text, refusal, derivative, autocast| Number {
        name,
        text,
        refusal,
        derivative,
        autocast,
    };
    let on_the_left = [
        number("aten::rsub", "other - self", bools, given(NOTHING, neg), Leave),
        number(
            "aten::rdiv",
            "other / self",
            nothing,
            given(RESULT_AND_FIRST, rdiv_scalar),
            FullPrecision,
        ),
        number("aten::rfloor_divide", "other // self", unordered, Rule::Derived, Leave),
        number("aten::rremainder", "other % self", unordered, Rule::Derived, Leave),
        number("aten::rbitwise_left_shift", "other << self", nothing, GIVES_WHOLE_NUMBERS, Leave),
        number("aten::rbitwise_right_shift", "other >> self", nothing, GIVES_WHOLE_NUMBERS, Leave),
    ];
    let mut rows = Vec::new();
    for pair in pairs {
        rows.extend(pair.rows()?);
    }
    for number in on_the_left {
        rows.push(number.row()?);
    }
    Ok(rows)
}
