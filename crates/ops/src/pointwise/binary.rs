//! Arithmetic and comparisons of two tensors, or of a tensor and a number.

use keyfold_core::{DType, ErrorKind, Result, Scalar};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Saves;
use keyfold_tensor::Tensor;

use super::expression::Expression;
use super::gradients::binary::{
    add, div, div_scalar, mul, mul_scalar, neg, rdiv_scalar, same, sub,
};
use super::gradients::where_min_max::{maximum, maximum_scalar, minimum, minimum_scalar};
use super::unary::{Refusal, accept_all};
use super::{Pointwise, Size, parse};
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::like_derivative;
use crate::naming::{Form, Naming, Public};
use crate::op::Op;
use crate::row::{Gradient, Layers, Row, Rule};
use crate::vjp::{BOOL_RESULT, INTEGER_RESULT, READS_FIRST, READS_NOTHING, READS_OTHER, formula};

fn refuse_bool(dtype: DType) -> Option<&'static str> {
    (dtype == DType::Bool)
        .then_some("bools can't be subtracted; use aten::ne for \"exclusive or\", or convert")
}

fn refuse_complex(dtype: DType) -> Option<&'static str> {
    dtype.is_complex().then_some("complex numbers have no order; take their abs first")
}

fn check(op: &Op, refusal: Refusal, dtype: DType) -> Result<()> {
    refusal(dtype).map_or(Ok(()), |why| Err(op.error(ErrorKind::DType, why)))
}

/// An operator of two tensors, and its overload for a tensor and a number.
struct BinaryRows {
    name: &'static str,
    /// Its expression, of `self` and `other`.
    text: &'static str,
    refusal: Refusal,
    /// The derivatives of both overloads.
    derivatives: [Rule<Gradient>; 2],
    /// The autocast category of the overload of two tensors; the overload with a number casts nothing.
    autocast: Category,
}

impl BinaryRows {
    /// The rows of an operator that a function of Python calls, which has this docstring. `reversed`
    /// is the operator that takes the number where it stands on the left.
    fn named(
        self,
        function: &'static str,
        reversed: &'static str,
        doc: &'static str,
    ) -> Result<Vec<Row>> {
        let BinaryRows { name, text, refusal, derivatives: [of_tensors, of_number], autocast } =
            self;
        let tensors = Row::pointwise::<(&Tensor, &Tensor), _, _>(
            (name, ""),
            "Tensor self, Tensor other",
            Expression::parse(text, &["self", "other"], &[])?,
            move |row| (row, refusal),
            tensor_tensor,
            Layers {
                derivative: of_tensors,
                tangent: like_derivative(of_tensors),
                batching: Rule::Derived,
                autocast,
            },
            Naming::Named(Public {
                name: function,
                form: Form::Pair(reversed),
                doc,
                is_method: false,
            }),
        )?;
        let (derivative, autocast) = (of_number, Category::Leave);
        let number = ScalarRow { name, text, refusal, derivative, autocast };
        Ok(vec![tensors, number.part_of(function)?])
    }
}

/// An operator of a tensor and a number called `other`.
struct ScalarRow {
    name: &'static str,
    text: &'static str,
    refusal: Refusal,
    derivative: Rule<Gradient>,
    autocast: Category,
}

impl ScalarRow {
    /// The row of an operator that this function of Python calls.
    fn part_of(self, function: &'static str) -> Result<Row> {
        let ScalarRow { name, text, refusal, derivative, autocast } = self;
        let is_zero = parse("self - self == other", &["self"], &["other"])?;
        Row::pointwise::<(&Tensor, Scalar), _, _>(
            (name, "Scalar"),
            "Tensor self, Scalar other",
            Expression::parse(text, &["self"], &["other"])?,
            move |row| {
                let is_zero = Pointwise::new(row.op().clone(), is_zero.clone());
                TensorScalar { row, is_zero, refusal }
            },
            tensor_scalar,
            Layers {
                derivative,
                tangent: like_derivative(derivative),
                batching: Rule::Derived,
                autocast,
            },
            Naming::PartOf(function),
        )
    }
}

#[inline(always)]
fn tensor_tensor<'t>(
    call: Call<'_, (Pointwise, Refusal)>,
    (a, b): (&'t Tensor, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    let (row, refusal) = call.state;
    check(&call, *refusal, a.dtype().promote(b.dtype()))?;
    row.plan([a, b], [], Size::Unknown)
}

/// An operator of a tensor and a number.
struct TensorScalar {
    row: Pointwise,
    /// The expression `self - self == other`, a constant for integers.
    is_zero: Pointwise,
    refusal: Refusal,
}

#[inline(always)]
fn tensor_scalar(
    call: Call<'_, TensorScalar>,
    (a, b): (&Tensor, Scalar),
) -> Result<CallPlan<impl Run>> {
    let TensorScalar { row, is_zero, refusal } = call.state;
    check(&call, *refusal, a.dtype().promote_scalar(b))?;
    match out_of_range_comparison(call.name, a.dtype(), b) {
        None => row.plan([a], [b], Size::Unknown),
        Some(answer) => is_zero.plan([a], [Scalar::Int((!answer).into())], Size::Unknown),
    }
}

/// Returns the constant result of a comparison of integers with a number that their dtype can't hold, as in
/// NumPy; `None` for other operators, for which such a number is an error.
fn out_of_range_comparison(name: &str, dtype: DType, number: Scalar) -> Option<bool> {
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

/// Returns the rows of arithmetic and comparisons.
pub(super) fn rows() -> Result<Vec<Row>> {
    use Category::{FullPrecision, Leave, Widest};
    const READS_OTHER_AND_RESULT: &[Saves] =
        &[Saves::arguments(&[1]), Saves::arguments(&[1]).and_results()];
    const READS_RESULT_AND_FIRST: &[Saves] = &[Saves::arguments(&[0]).and_results()];
    const READS_BOTH: &[Saves] = &[Saves::arguments(&[0, 1])];
    let binary = |name, text, refusal, derivatives, autocast| BinaryRows {
        name,
        text,
        refusal,
        derivatives,
        autocast,
    };
    let pairs = [
        binary(
            "aten::add",
            "self + other",
            accept_all,
            [formula(READS_NOTHING, add), formula(READS_NOTHING, same)],
            Widest,
        )
        .named("add", "aten::add", "Return the sum, element by element; \"or\" for bools."),
        binary(
            "aten::sub",
            "self - other",
            refuse_bool,
            [formula(READS_NOTHING, sub), formula(READS_NOTHING, same)],
            Widest,
        )
        .named("subtract", "aten::rsub", "Return the difference, element by element."),
        binary(
            "aten::mul",
            "self * other",
            accept_all,
            [formula(READS_OTHER, mul), formula(READS_NOTHING, mul_scalar)],
            Widest,
        )
        .named(
            "multiply",
            "aten::mul",
            "Return the product, element by element; \"and\" for bools.",
        ),
        binary(
            "aten::div",
            "self / other",
            accept_all,
            [formula(READS_OTHER_AND_RESULT, div), formula(READS_NOTHING, div_scalar)],
            Widest,
        )
        .named(
            "divide",
            "aten::rdiv",
            "Return the quotient, element by element: float64 for integers.",
        ),
        binary(
            "aten::maximum",
            "maximum(self, other)",
            refuse_complex,
            [formula(READS_BOTH, maximum), formula(READS_FIRST, maximum_scalar)],
            Widest,
        )
        .named(
            "maximum",
            "aten::maximum",
            "Return the greater of each two elements. NaN goes through.",
        ),
        binary(
            "aten::minimum",
            "minimum(self, other)",
            refuse_complex,
            [formula(READS_BOTH, minimum), formula(READS_FIRST, minimum_scalar)],
            Widest,
        )
        .named(
            "minimum",
            "aten::minimum",
            "Return the lesser of each two elements. NaN goes through.",
        ),
        binary("aten::floor_divide", "self // other", refuse_complex, [Rule::Derived; 2], Widest)
            .named(
                "floor_divide",
                "aten::rfloor_divide",
                "Return the quotients rounded down; 0 where integers are divided by 0.",
            ),
        binary("aten::remainder", "self % other", refuse_complex, [Rule::Derived; 2], Widest)
            .named(
                "remainder",
                "aten::rremainder",
                "Return the remainders, with the sign of the divisor; 0 for integers modulo \
                 0.",
            ),
        binary("aten::bitwise_and", "self & other", accept_all, [INTEGER_RESULT; 2], Leave).named(
            "bitwise_and",
            "aten::bitwise_and",
            "Return the bits that both have. For integers and bools.",
        ),
        binary("aten::bitwise_or", "self | other", accept_all, [INTEGER_RESULT; 2], Leave).named(
            "bitwise_or",
            "aten::bitwise_or",
            "Return the bits that either has. For integers and bools.",
        ),
        binary("aten::bitwise_xor", "self ^ other", accept_all, [INTEGER_RESULT; 2], Leave).named(
            "bitwise_xor",
            "aten::bitwise_xor",
            "Return the bits that one of both has. For integers and bools.",
        ),
        binary("aten::bitwise_left_shift", "self << other", accept_all, [INTEGER_RESULT; 2], Leave)
            .named(
                "bitwise_left_shift",
                "aten::rbitwise_left_shift",
                "Return the bits moved up by `x2` places. For integers.",
            ),
        binary(
            "aten::bitwise_right_shift",
            "self >> other",
            accept_all,
            [INTEGER_RESULT; 2],
            Leave,
        )
        .named(
            "bitwise_right_shift",
            "aten::rbitwise_right_shift",
            "Return the bits moved down by `x2` places; the sign fills up.",
        ),
        binary("aten::eq", "self == other", accept_all, [BOOL_RESULT; 2], Widest).named(
            "equal",
            "aten::eq",
            "Return whether each two elements are equal.",
        ),
        binary("aten::ne", "self != other", accept_all, [BOOL_RESULT; 2], Widest).named(
            "not_equal",
            "aten::ne",
            "Return whether each two elements differ.",
        ),
        binary("aten::lt", "self < other", refuse_complex, [BOOL_RESULT; 2], Widest).named(
            "less",
            "aten::gt",
            "Return whether each element is less than its partner.",
        ),
        binary("aten::le", "self <= other", refuse_complex, [BOOL_RESULT; 2], Widest).named(
            "less_equal",
            "aten::ge",
            "Return whether each element is at most its partner.",
        ),
        binary("aten::gt", "self > other", refuse_complex, [BOOL_RESULT; 2], Widest).named(
            "greater",
            "aten::lt",
            "Return whether each element is greater than its partner.",
        ),
        binary("aten::ge", "self >= other", refuse_complex, [BOOL_RESULT; 2], Widest).named(
            "greater_equal",
            "aten::le",
            "Return whether each element is at least its partner.",
        ),
    ];
    // A number on the left: `1 - x` and `1 / x`.
    let scalar_row = |name, text, refusal, derivative, autocast| ScalarRow {
        name,
        text,
        refusal,
        derivative,
        autocast,
    };
    let on_the_left = [
        scalar_row("aten::rsub", "other - self", refuse_bool, formula(READS_NOTHING, neg), Leave)
            .part_of("subtract"),
        scalar_row(
            "aten::rdiv",
            "other / self",
            accept_all,
            formula(READS_RESULT_AND_FIRST, rdiv_scalar),
            FullPrecision,
        )
        .part_of("divide"),
        scalar_row("aten::rfloor_divide", "other // self", refuse_complex, Rule::Derived, Leave)
            .part_of("floor_divide"),
        scalar_row("aten::rremainder", "other % self", refuse_complex, Rule::Derived, Leave)
            .part_of("remainder"),
        scalar_row("aten::rbitwise_left_shift", "other << self", accept_all, INTEGER_RESULT, Leave)
            .part_of("bitwise_left_shift"),
        scalar_row(
            "aten::rbitwise_right_shift",
            "other >> self",
            accept_all,
            INTEGER_RESULT,
            Leave,
        )
        .part_of("bitwise_right_shift"),
    ];
    let mut rows = Vec::new();
    for pair in pairs {
        rows.extend(pair?);
    }
    for number in on_the_left {
        rows.push(number?);
    }
    Ok(rows)
}
