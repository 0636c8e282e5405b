//! Powers: of tensors, by numbers, of numbers.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_expr::Expr;
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Keeps;
use keyfold_tensor::{Tensor, ValueRef};
use smallvec::SmallVec;

use super::gradients::functions::{pow, pow_scalar, rpow_scalar};
use super::operator::Expression;
use super::{Pointwise, Size, parse};
use crate::gradient::{FIRST, RESULT, given};
use crate::infer::{Call, Form, Plan, Run};
use crate::op::Op;
use crate::row::{Gradient, Layers, Row, Rule};

/// The expressions of powers by 2 and by 3, which are products.
///
/// # Errors
/// As [`Expr::parse_with`].
fn known_powers() -> Result<Vec<(Scalar, Expr)>> {
    let mut known = Vec::new();
    for power in [2, 3] {
        for (number, text) in [
            (Scalar::Int(power), format!("self ** {power}")),
            (Scalar::Float(power as f64), format!("self ** {power}.0")),
        ] {
            known.push((number, parse(&text, &["self"], &[])?));
        }
    }
    Ok(known)
}

/// Powers of a tensor by numbers: by any, and by those whose expressions are products.
struct Powers {
    any: Pointwise,
    known: Vec<(Scalar, Pointwise)>,
}

#[cold]
fn negative_power(
    op: &Op,
    argument: &str,
    exponent: impl std::fmt::Display,
    dtype: DType,
) -> Error {
    let message = format!(
        "argument '{argument}': {exponent} is negative, which gives fractions that {dtype} can't \
         hold; convert one of the operands to float64 with aten::to"
    );
    op.error(ErrorKind::Value, message)
}

/// A base or an exponent: an array, or a plain number.
#[derive(Clone, Copy)]
enum Operand<'a> {
    Tensor(&'a Tensor),
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl From<Scalar> for Operand<'_> {
    fn from(scalar: Scalar) -> Self {
        Operand::Scalar(scalar)
    }
}

/// Refuses powers of bools, and negative ones of whole numbers where the exponent is a number.
fn check_power<'a>(op: &Op, a: Operand<'a>, name: &str, b: Operand<'a>) -> Result<()> {
    let dtype = match (a, b) {
        (Operand::Tensor(a), Operand::Tensor(b)) => a.dtype().promote(b.dtype()),
        (Operand::Tensor(t), Operand::Scalar(s)) | (Operand::Scalar(s), Operand::Tensor(t)) => {
            t.dtype().promote_scalar(s)
        }
        (Operand::Scalar(a), Operand::Scalar(b)) => a.dtype().promote_scalar(b),
    };
    if dtype == DType::Bool {
        return Err(op.error(ErrorKind::DType, "bools have no powers; convert them with aten::to"));
    }
    if let Operand::Scalar(exponent) = b
        && dtype.is_integral()
        && let Some(exponent @ ..0) = exponent.as_i64()
    {
        return Err(negative_power(op, name, exponent, dtype));
    }
    Ok(())
}

/// The error of a power of whole numbers that met a negative exponent, in words of the operator.
fn named<T>(op: &Op, name: &str, result: Result<T>, exponents: &Tensor) -> Result<T> {
    let Err(error) = &result else { return result };
    if error.kind() != ErrorKind::Value || !exponents.dtype().is_integral() {
        return result;
    }
    let whole = crate::map::cast(op, exponents, DType::I64)?;
    match op.at(whole.to_vec::<i64>())?.iter().find(|item| **item < 0) {
        Some(negative) => Err(negative_power(op, name, negative, exponents.dtype())),
        None => result,
    }
}

/// The run of a power with a tensor of exponents; its errors name the operator.
struct Named<'a, R> {
    run: R,
    name: &'static str,
    exponents: &'a Tensor,
}

impl<R: Run> Run for Named<'_, R> {
    #[inline(always)]
    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()> {
        // SAFETY: the caller's promise.
        named(op, self.name, unsafe { self.run.run(op, out) }, self.exponents)
    }

    unsafe fn write(self, op: &Op, form: &Form, out: &Tensor, args: &[ValueRef<'_>]) -> Result<()> {
        // SAFETY: the caller's promise.
        let result = unsafe { self.run.write(op, form, out, args) };
        named(op, self.name, result, self.exponents)
    }
}

fn of_tensors<'t>(
    call: Call<'_, Pointwise>,
    (a, b): (&'t Tensor, &'t Tensor),
) -> Result<Plan<impl Run>> {
    let (name, exponents) = ("exponent", b);
    check_power(&call, a.into(), name, b.into())?;
    let plan = named(&call, name, call.state.plan([a, b], [], Size::Unknown), b)?;
    Ok(plan.map(|run| Named { run, name, exponents }))
}

#[inline(always)]
fn by_number(call: Call<'_, Powers>, (a, b): (&Tensor, Scalar)) -> Result<Plan<impl Run>> {
    let Powers { any, known } = call.state;
    check_power(&call, a.into(), "exponent", b.into())?;
    let (row, params) = match known.iter().find(|(number, _)| *number == b) {
        Some((_, row)) => (row, None),
        None => (any, Some(b)),
    };
    row.plan([a], SmallVec::<[Scalar; 1]>::from_iter(params), Size::Unknown)
}

fn of_number(call: Call<'_, Pointwise>, (a, b): (&Tensor, Scalar)) -> Result<Plan<impl Run>> {
    let (name, exponents) = ("self", a);
    check_power(&call, b.into(), name, a.into())?;
    let plan = named(&call, name, call.state.plan([a], [b], Size::Unknown), a)?;
    Ok(plan.map(|run| Named { run, name, exponents }))
}

/// The rows of powers.
pub(super) fn rows() -> Result<Vec<Row>> {
    const POWER: &[Keeps] = &[Keeps::these(&[0, 1]), Keeps::ALL];
    let layers = |derivative: Rule<Gradient>| Layers {
        derivative,
        tangent: Rule::Derived,
        batching: Rule::Derived,
        autocast: Category::FullPrecision,
    };
    let powers = known_powers()?;
    Ok(vec![
        Row::pointwise::<(&Tensor, &Tensor), _, _>(
            ("aten::pow", ""),
            "Tensor self, Tensor exponent",
            Expression::parse("self ** exponent", &["self", "exponent"], &[])?,
            |row| row,
            of_tensors,
            layers(given(POWER, pow)),
        )?,
        Row::pointwise::<(&Tensor, Scalar), _, _>(
            ("aten::pow", "Scalar"),
            "Tensor self, Scalar exponent",
            Expression::parse("self ** exponent", &["self"], &["exponent"])?,
            move |any| {
                let row = |expr: &Expr| Pointwise::new(any.op().clone(), expr.clone());
                let known = powers.iter().map(|(number, expr)| (*number, row(expr))).collect();
                Powers { any, known }
            },
            by_number,
            layers(given(FIRST, pow_scalar)),
        )?,
        // A number on the left: `2 ** x`.
        Row::pointwise::<(&Tensor, Scalar), _, _>(
            ("aten::rpow", "Scalar"),
            "Tensor self, Scalar other",
            Expression::parse("other ** self", &["self"], &["other"])?,
            |row| row,
            of_number,
            layers(given(RESULT, rpow_scalar)),
        )?,
    ])
}
