//! Arithmetic, comparisons and choices: of two tensors, or of a tensor and a number.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_expr::Expr;
use keyfold_tensor::{SameAs, Tensor};

use super::{Pointwise, check_out, parse};
use crate::op::{Op, Registrar};
use crate::write::fill;

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

/// Registers an operator of two tensors, and its overload for a tensor and a number.
fn pair(ops: &Registrar<'_>, name: &'static str, text: &str, refusal: Refusal) -> Result<()> {
    let both = parse(text, &["self", "other"], &[])?;
    ops.with_out(
        (name, ""),
        "Tensor self, Tensor other",
        |op| {
            let row = Pointwise::new(op, both.clone());
            Kernel::typed(move |a: &Tensor, b: &Tensor| {
                check(row.op(), refusal, a.dtype().promote(b.dtype()))?;
                row.compute(&[a, b], &[])
            })
        },
        |op| {
            let row = Pointwise::new(op, both.clone());
            Kernel::typed(move |a: &Tensor, b: &Tensor, out: &Tensor| {
                check(row.op(), refusal, a.dtype().promote(b.dtype()))?;
                row.compute_into(&[a, b], &[], out)?;
                Ok::<_, Error>(SameAs(2))
            })
        },
    )?;
    number(ops, (name, "Scalar"), &parse(text, &["self"], &["other"])?, refusal)
}

/// Registers an operator of a tensor and a number called `other`.
fn number(
    ops: &Registrar<'_>,
    name: (&'static str, &str),
    expr: &Expr,
    refusal: Refusal,
) -> Result<()> {
    ops.with_out(
        name,
        "Tensor self, Scalar other",
        |op| {
            let row = Pointwise::new(op, expr.clone());
            Kernel::typed(move |a: &Tensor, b: Scalar| {
                check(row.op(), refusal, a.dtype().promote_scalar(b))?;
                if let Some(answer) = beyond(row.op().name, a.dtype(), b) {
                    let device = row.op().device_of(a);
                    return row.op().at(Tensor::full(a.shape(), answer, DType::Bool, device));
                }
                row.compute(&[a], &[b])
            })
        },
        |op| {
            let row = Pointwise::new(op, expr.clone());
            Kernel::typed(move |a: &Tensor, b: Scalar, out: &Tensor| {
                check(row.op(), refusal, a.dtype().promote_scalar(b))?;
                if let Some(answer) = beyond(row.op().name, a.dtype(), b) {
                    check_out(row.op(), out, a.shape(), DType::Bool)?;
                    fill(row.op(), out, answer)?;
                } else {
                    row.compute_into(&[a], &[b], out)?;
                }
                Ok::<_, Error>(SameAs(2))
            })
        },
    )
}

/// What a comparison of whole numbers with one that their dtype can't hold always answers, as in
/// NumPy; arithmetic with such a number is an error.
fn beyond(name: &str, dtype: DType, number: Scalar) -> Option<Scalar> {
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
    Some(Scalar::Bool(answer))
}

fn check_condition(op: &Op, condition: &Tensor) -> Result<()> {
    if condition.dtype() == DType::Bool {
        return Ok(());
    }
    let given = condition.dtype();
    let message = format!("argument 'condition' must be bool, not {given}; compare it first");
    Err(op.error(ErrorKind::DType, message))
}

fn choices(ops: &Registrar<'_>) -> Result<()> {
    const NAME: &str = "aten::where";
    let text = "where(condition, self, other)";
    let all = parse(text, &["condition", "self", "other"], &[])?;
    let left = parse(text, &["condition", "other"], &["self"])?;
    let right = parse(text, &["condition", "self"], &["other"])?;
    let none = parse(text, &["condition"], &["self", "other"])?;
    ops.with_out(
        (NAME, ""),
        "Tensor condition, Tensor self, Tensor other",
        |op| {
            let row = Pointwise::new(op, all.clone());
            Kernel::typed(move |c: &Tensor, a: &Tensor, b: &Tensor| {
                check_condition(row.op(), c)?;
                row.compute(&[c, a, b], &[])
            })
        },
        |op| {
            let row = Pointwise::new(op, all.clone());
            Kernel::typed(move |c: &Tensor, a: &Tensor, b: &Tensor, out: &Tensor| {
                check_condition(row.op(), c)?;
                row.compute_into(&[c, a, b], &[], out)?;
                Ok::<_, Error>(SameAs(3))
            })
        },
    )?;
    ops.with_out(
        (NAME, "ScalarOther"),
        "Tensor condition, Tensor self, Scalar other",
        |op| {
            let row = Pointwise::new(op, right.clone());
            Kernel::typed(move |c: &Tensor, a: &Tensor, b: Scalar| {
                check_condition(row.op(), c)?;
                row.compute(&[c, a], &[b])
            })
        },
        |op| {
            let row = Pointwise::new(op, right.clone());
            Kernel::typed(move |c: &Tensor, a: &Tensor, b: Scalar, out: &Tensor| {
                check_condition(row.op(), c)?;
                row.compute_into(&[c, a], &[b], out)?;
                Ok::<_, Error>(SameAs(3))
            })
        },
    )?;
    ops.with_out(
        (NAME, "ScalarSelf"),
        "Tensor condition, Scalar self, Tensor other",
        |op| {
            let row = Pointwise::new(op, left.clone());
            Kernel::typed(move |c: &Tensor, a: Scalar, b: &Tensor| {
                check_condition(row.op(), c)?;
                row.compute(&[c, b], &[a])
            })
        },
        |op| {
            let row = Pointwise::new(op, left.clone());
            Kernel::typed(move |c: &Tensor, a: Scalar, b: &Tensor, out: &Tensor| {
                check_condition(row.op(), c)?;
                row.compute_into(&[c, b], &[a], out)?;
                Ok::<_, Error>(SameAs(3))
            })
        },
    )?;
    ops.with_out(
        (NAME, "Scalar"),
        "Tensor condition, Scalar self, Scalar other",
        |op| {
            let row = Pointwise::new(op, none.clone());
            Kernel::typed(move |c: &Tensor, a: Scalar, b: Scalar| {
                check_condition(row.op(), c)?;
                row.compute(&[c], &[a, b])
            })
        },
        |op| {
            let row = Pointwise::new(op, none.clone());
            Kernel::typed(move |c: &Tensor, a: Scalar, b: Scalar, out: &Tensor| {
                check_condition(row.op(), c)?;
                row.compute_into(&[c], &[a, b], out)?;
                Ok::<_, Error>(SameAs(3))
            })
        },
    )
}

/// Defines these operators in a dispatcher.
pub(super) fn register(ops: &Registrar<'_>) -> Result<()> {
    let pairs: [(&'static str, &str, Refusal); 19] = [
        ("aten::add", "self + other", nothing),
        ("aten::sub", "self - other", bools),
        ("aten::mul", "self * other", nothing),
        ("aten::div", "self / other", nothing),
        ("aten::maximum", "maximum(self, other)", unordered),
        ("aten::minimum", "minimum(self, other)", unordered),
        ("aten::floor_divide", "self // other", unordered),
        ("aten::remainder", "self % other", unordered),
        ("aten::bitwise_and", "self & other", nothing),
        ("aten::bitwise_or", "self | other", nothing),
        ("aten::bitwise_xor", "self ^ other", nothing),
        ("aten::bitwise_left_shift", "self << other", nothing),
        ("aten::bitwise_right_shift", "self >> other", nothing),
        ("aten::eq", "self == other", nothing),
        ("aten::ne", "self != other", nothing),
        ("aten::lt", "self < other", unordered),
        ("aten::le", "self <= other", unordered),
        ("aten::gt", "self > other", unordered),
        ("aten::ge", "self >= other", unordered),
    ];
    for (name, text, refusal) in pairs {
        pair(ops, name, text, refusal)?;
    }
    // A number on the left: `1 - x` and `1 / x`.
    let on_the_left = |text| parse(text, &["self"], &["other"]);
    number(ops, ("aten::rsub", "Scalar"), &on_the_left("other - self")?, bools)?;
    number(ops, ("aten::rdiv", "Scalar"), &on_the_left("other / self")?, nothing)?;
    for (name, text, refusal) in [
        ("aten::rfloor_divide", "other // self", unordered as Refusal),
        ("aten::rremainder", "other % self", unordered),
        ("aten::rbitwise_left_shift", "other << self", nothing),
        ("aten::rbitwise_right_shift", "other >> self", nothing),
    ] {
        number(ops, (name, "Scalar"), &on_the_left(text)?, refusal)?;
    }
    choices(ops)
}
