//! Choices between two values by a condition: of tensors, or with numbers in the place of either.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_layers::autocast::Category;
use keyfold_tensor::{SameAs, Tensor};

use super::gradients::choice::{choose, choose_number, choose_or};
use super::operator::Expression;
use crate::gradient::{FIRST, given};
use crate::op::Op;
use crate::row::{Gradient, Layers, Row, Rule};

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

/// The rows of `where`.
pub(super) fn rows() -> Result<Vec<Row>> {
    let layers = |derivative: Rule<Gradient>, autocast| Layers {
        derivative,
        batching: Rule::Derived,
        autocast,
    };
    let all = Expression::parse(TEXT, &["condition", "self", "other"], &[])?;
    let left = Expression::parse(TEXT, &["condition", "other"], &["self"])?;
    let right = Expression::parse(TEXT, &["condition", "self"], &["other"])?;
    let none = Expression::parse(TEXT, &["condition"], &["self", "other"])?;
    Ok(vec![
        Row::pointwise(
            (NAME, ""),
            "Tensor condition, Tensor self, Tensor other",
            all,
            |row| {
                Kernel::typed(move |c: &Tensor, a: &Tensor, b: &Tensor| {
                    check_condition(row.op(), c)?;
                    row.compute(&[c, a, b], &[])
                })
            },
            |row| {
                Kernel::typed(move |c: &Tensor, a: &Tensor, b: &Tensor, out: &Tensor| {
                    check_condition(row.op(), c)?;
                    row.compute_into(&[c, a, b], &[], out)?;
                    Ok::<_, Error>(SameAs(3))
                })
            },
            layers(given(FIRST, choose), Category::Widest),
        )?,
        Row::pointwise(
            (NAME, "ScalarOther"),
            "Tensor condition, Tensor self, Scalar other",
            right,
            |row| {
                Kernel::typed(move |c: &Tensor, a: &Tensor, b: Scalar| {
                    check_condition(row.op(), c)?;
                    row.compute(&[c, a], &[b])
                })
            },
            |row| {
                Kernel::typed(move |c: &Tensor, a: &Tensor, b: Scalar, out: &Tensor| {
                    check_condition(row.op(), c)?;
                    row.compute_into(&[c, a], &[b], out)?;
                    Ok::<_, Error>(SameAs(3))
                })
            },
            layers(given(FIRST, choose_or), Category::Leave),
        )?,
        Row::pointwise(
            (NAME, "ScalarSelf"),
            "Tensor condition, Scalar self, Tensor other",
            left,
            |row| {
                Kernel::typed(move |c: &Tensor, a: Scalar, b: &Tensor| {
                    check_condition(row.op(), c)?;
                    row.compute(&[c, b], &[a])
                })
            },
            |row| {
                Kernel::typed(move |c: &Tensor, a: Scalar, b: &Tensor, out: &Tensor| {
                    check_condition(row.op(), c)?;
                    row.compute_into(&[c, b], &[a], out)?;
                    Ok::<_, Error>(SameAs(3))
                })
            },
            layers(given(FIRST, choose_number), Category::Leave),
        )?,
        Row::pointwise(
            (NAME, "Scalar"),
            "Tensor condition, Scalar self, Scalar other",
            none,
            |row| {
                Kernel::typed(move |c: &Tensor, a: Scalar, b: Scalar| {
                    check_condition(row.op(), c)?;
                    row.compute(&[c], &[a, b])
                })
            },
            |row| {
                Kernel::typed(move |c: &Tensor, a: Scalar, b: Scalar, out: &Tensor| {
                    check_condition(row.op(), c)?;
                    row.compute_into(&[c], &[a, b], out)?;
                    Ok::<_, Error>(SameAs(3))
                })
            },
            layers(Rule::Refused("takes no tensor that has a gradient"), Category::Leave),
        )?,
    ])
}
