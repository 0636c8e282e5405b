//! `where`, with tensors or numbers as its two values.

use keyfold_core::{DType, ErrorKind, Result, Scalar};
use keyfold_layers::autocast::Category;
use keyfold_tensor::Tensor;

use super::expression::Expression;
use super::gradients::where_min_max::{where_, where_scalar_other, where_scalar_self};
use super::{Pointwise, Size};
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::like_derivative;
use crate::naming::{Form, Naming, Public};
use crate::op::Op;
use crate::row::{Gradient, Layers, Row, Rule};
use crate::vjp::{READS_FIRST, formula};

const NAME: &str = "aten::where";
const TEXT: &str = "where(condition, self, other)";

fn check_condition(op: &Op, condition: &Tensor) -> Result<()> {
    if condition.dtype() == DType::Bool {
        return Ok(());
    }
    let given = condition.dtype();
    let message = format!("argument 'condition' must be bool, not {given}; compare it first");
    Err(op.error(ErrorKind::DType, message))
}

#[inline(always)]
fn tensors<'t>(
    call: Call<'_, Pointwise>,
    (condition, a, b): (&'t Tensor, &'t Tensor, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    check_condition(&call, condition)?;
    call.state.plan([condition, a, b], [], Size::Unknown)
}

#[inline(always)]
fn scalar_other<'t>(
    call: Call<'_, Pointwise>,
    (condition, a, b): (&'t Tensor, &'t Tensor, Scalar),
) -> Result<CallPlan<impl Run>> {
    check_condition(&call, condition)?;
    call.state.plan([condition, a], [b], Size::Unknown)
}

#[inline(always)]
fn scalar_self<'t>(
    call: Call<'_, Pointwise>,
    (condition, a, b): (&'t Tensor, Scalar, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    check_condition(&call, condition)?;
    call.state.plan([condition, b], [a], Size::Unknown)
}

#[inline(always)]
fn scalars(
    call: Call<'_, Pointwise>,
    (condition, a, b): (&Tensor, Scalar, Scalar),
) -> Result<CallPlan<impl Run>> {
    check_condition(&call, condition)?;
    call.state.plan([condition], [a, b], Size::Unknown)
}

/// Returns the rows of `where`.
pub(super) fn rows() -> Result<Vec<Row>> {
    let layers = |derivative: Rule<Gradient>, autocast| Layers {
        derivative,
        tangent: like_derivative(derivative),
        batching: Rule::Derived,
        autocast,
    };
    let parse = |inputs: &[&str], params: &[&str]| Expression::parse(TEXT, inputs, params);
    Ok(vec![
        Row::pointwise::<(&Tensor, &Tensor, &Tensor), _, _>(
            (NAME, ""),
            "Tensor condition, Tensor self, Tensor other",
            parse(&["condition", "self", "other"], &[])?,
            |row| row,
            tensors,
            layers(formula(READS_FIRST, where_), Category::Widest),
            Naming::Named(Public {
                name: "where",
                form: Form::Choice,
                doc: "Return elements of `x1` where the condition is true, else of `x2`.",
                is_method: false,
            }),
        )?,
        Row::pointwise::<(&Tensor, &Tensor, Scalar), _, _>(
            (NAME, "ScalarOther"),
            "Tensor condition, Tensor self, Scalar other",
            parse(&["condition", "self"], &["other"])?,
            |row| row,
            scalar_other,
            layers(formula(READS_FIRST, where_scalar_other), Category::Leave),
            Naming::PartOf("where"),
        )?,
        Row::pointwise::<(&Tensor, Scalar, &Tensor), _, _>(
            (NAME, "ScalarSelf"),
            "Tensor condition, Scalar self, Tensor other",
            parse(&["condition", "other"], &["self"])?,
            |row| row,
            scalar_self,
            layers(formula(READS_FIRST, where_scalar_self), Category::Leave),
            Naming::PartOf("where"),
        )?,
        Row::pointwise::<(&Tensor, Scalar, Scalar), _, _>(
            (NAME, "Scalar"),
            "Tensor condition, Scalar self, Scalar other",
            parse(&["condition"], &["self", "other"])?,
            |row| row,
            scalars,
            layers(Rule::Refused("no argument is floating or complex"), Category::Leave),
            Naming::PartOf("where"),
        )?,
    ])
}
