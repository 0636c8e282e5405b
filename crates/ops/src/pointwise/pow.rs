//! `pow` of tensors and numbers.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_expr::Expr;
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Saves, TensorMeta};
use keyfold_layers::pipeline::Evaluated;
use keyfold_tensor::{Tensor, ValueRef};
use smallvec::SmallVec;

use super::expression::Expression;
use super::gradients::unary_pow::{pow, pow_scalar, rpow_scalar};
use super::{Pointwise, Size, parse};
use crate::infer::{Call, CallPlan, Run};
use crate::naming::{Form, Naming, Public};
use crate::op::Op;
use crate::row::{Gradient, Layers, Row, Rule};
use crate::vjp::{READS_FIRST, READS_RESULT, formula};

/// Returns the expressions of powers by 2 and by 3, which are computed as products.
///
/// # Errors
/// As [`Expr::parse_with`].
fn constant_powers() -> Result<Vec<(Scalar, Expr)>> {
    let mut constant = Vec::new();
    for power in [2, 3] {
        for (number, text) in [
            (Scalar::Int(power), format!("self ** {power}")),
            (Scalar::Float(power as f64), format!("self ** {power}.0")),
        ] {
            constant.push((number, parse(&text, &["self"], &[])?));
        }
    }
    Ok(constant)
}

/// The expressions of powers of a tensor by a number: the general one, and those for constant exponents.
struct Powers {
    any: Pointwise,
    constant: Vec<(Scalar, Pointwise)>,
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

/// A base or an exponent: a tensor or a number.
#[derive(Clone, Copy)]
enum PowerOperand<'a> {
    Tensor(&'a Tensor),
    Scalar(Scalar),
}

impl<'a> From<&'a Tensor> for PowerOperand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        PowerOperand::Tensor(tensor)
    }
}

impl From<Scalar> for PowerOperand<'_> {
    fn from(scalar: Scalar) -> Self {
        PowerOperand::Scalar(scalar)
    }
}

/// Refuses powers of bools, and negative powers of integers if the exponent is a number.
fn check_power<'a>(op: &Op, a: PowerOperand<'a>, name: &str, b: PowerOperand<'a>) -> Result<()> {
    let dtype = match (a, b) {
        (PowerOperand::Tensor(a), PowerOperand::Tensor(b)) => a.dtype().promote(b.dtype()),
        (PowerOperand::Tensor(t), PowerOperand::Scalar(s))
        | (PowerOperand::Scalar(s), PowerOperand::Tensor(t)) => t.dtype().promote_scalar(s),
        (PowerOperand::Scalar(a), PowerOperand::Scalar(b)) => a.dtype().promote_scalar(b),
    };
    if dtype == DType::Bool {
        return Err(op.error(ErrorKind::DType, "bools have no powers; convert them with aten::to"));
    }
    if let PowerOperand::Scalar(exponent) = b
        && dtype.is_integral()
        && let Some(exponent @ ..0) = exponent.as_i64()
    {
        return Err(negative_power(op, name, exponent, dtype));
    }
    Ok(())
}

/// Replaces the backend's error for a negative exponent of integers by one with the operator and argument.
fn with_operator_name<T>(op: &Op, name: &str, result: Result<T>, exponents: &Tensor) -> Result<T> {
    let Err(error) = &result else { return result };
    if error.kind() != ErrorKind::Value || !exponents.dtype().is_integral() {
        return result;
    }
    let whole = crate::convert::cast(op, exponents, DType::I64)?;
    match op.at(whole.to_vec::<i64>())?.iter().find(|item| **item < 0) {
        Some(negative) => Err(negative_power(op, name, negative, exponents.dtype())),
        None => result,
    }
}

/// The computation of a power with a tensor of exponents, whose errors name the operator.
struct PowRun<'a, R> {
    run: R,
    name: &'static str,
    exponents: &'a Tensor,
}

impl<R: Run> Run for PowRun<'_, R> {
    #[inline(always)]
    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()> {
        // SAFETY: the caller's promise.
        with_operator_name(op, self.name, unsafe { self.run.run(op, out) }, self.exponents)
    }

    fn evaluates(&self, args: &[ValueRef<'_>]) -> Option<Box<Evaluated>> {
        self.run.evaluates(args)
    }

    unsafe fn write(
        self,
        op: &Op,
        form: &TensorMeta,
        out: &Tensor,
        args: &[ValueRef<'_>],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let result = unsafe { self.run.write(op, form, out, args) };
        with_operator_name(op, self.name, result, self.exponents)
    }
}

#[inline(always)]
fn tensor_tensor<'t>(
    call: Call<'_, Pointwise>,
    (a, b): (&'t Tensor, &'t Tensor),
) -> Result<CallPlan<impl Run>> {
    let (name, exponents) = ("exponent", b);
    check_power(&call, a.into(), name, b.into())?;
    let plan = with_operator_name(&call, name, call.state.plan([a, b], [], Size::Unknown), b)?;
    Ok(plan.map(|run| PowRun { run, name, exponents }))
}

#[inline(always)]
fn tensor_scalar(call: Call<'_, Powers>, (a, b): (&Tensor, Scalar)) -> Result<CallPlan<impl Run>> {
    let Powers { any, constant } = call.state;
    check_power(&call, a.into(), "exponent", b.into())?;
    let (row, params) = match constant.iter().find(|(number, _)| *number == b) {
        Some((_, row)) => (row, None),
        None => (any, Some(b)),
    };
    row.plan([a], SmallVec::<[Scalar; 1]>::from_iter(params), Size::Unknown)
}

#[inline(always)]
fn scalar_tensor(
    call: Call<'_, Pointwise>,
    (a, b): (&Tensor, Scalar),
) -> Result<CallPlan<impl Run>> {
    let (name, exponents) = ("self", a);
    check_power(&call, b.into(), name, a.into())?;
    let plan = with_operator_name(&call, name, call.state.plan([a], [b], Size::Unknown), a)?;
    Ok(plan.map(|run| PowRun { run, name, exponents }))
}

/// Returns the rows of powers.
pub(super) fn rows() -> Result<Vec<Row>> {
    const READS_POW: &[Saves] = &[Saves::arguments(&[0, 1]), Saves::ALL];
    let layers = |derivative: Rule<Gradient>| Layers {
        derivative,
        tangent: Rule::Derived,
        batching: Rule::Derived,
        autocast: Category::FullPrecision,
    };
    let powers = constant_powers()?;
    Ok(vec![
        Row::pointwise::<(&Tensor, &Tensor), _, _>(
            ("aten::pow", ""),
            "Tensor self, Tensor exponent",
            Expression::parse("self ** exponent", &["self", "exponent"], &[])?,
            |row| row,
            tensor_tensor,
            layers(formula(READS_POW, pow)),
            Naming::Named(Public {
                name: "pow",
                form: Form::Pair("aten::rpow"),
                is_method: false,
                doc: "Return `x1` to the power of `x2`, element by element. Integers wrap \
                      around.\n\nRaises:\n    InvalidValue: a negative power of integers, which \
                      gives fractions.\n    DTypeError: both are bools.",
            }),
        )?,
        Row::pointwise::<(&Tensor, Scalar), _, _>(
            ("aten::pow", "Scalar"),
            "Tensor self, Scalar exponent",
            Expression::parse("self ** exponent", &["self"], &["exponent"])?,
            move |any| {
                let row = |expr: &Expr| Pointwise::new(any.op().clone(), expr.clone());
                let constant = powers.iter().map(|(number, expr)| (*number, row(expr))).collect();
                Powers { any, constant }
            },
            tensor_scalar,
            layers(formula(READS_FIRST, pow_scalar)),
            Naming::PartOf("pow"),
        )?,
        // The base is a number: `2 ** x`.
        Row::pointwise::<(&Tensor, Scalar), _, _>(
            ("aten::rpow", "Scalar"),
            "Tensor self, Scalar other",
            Expression::parse("other ** self", &["self"], &["other"])?,
            |row| row,
            scalar_tensor,
            layers(formula(READS_RESULT, rpow_scalar)),
            Naming::PartOf("pow"),
        )?,
    ])
}
