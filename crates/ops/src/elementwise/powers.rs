//! Powers: of tensors, by numbers, of numbers.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_expr::Expr;
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Keeps;
use keyfold_tensor::{SameAs, Tensor};

use super::gradients::functions::{pow, pow_scalar, rpow_scalar};
use super::operator::Expression;
use super::{Pointwise, parse};
use crate::gradient::{FIRST, RESULT, given};
use crate::op::Op;
use crate::row::{Gradient, Layers, Row, Rule};

/// The expressions of powers by 2 and by 3, which are products.
struct Powers(Vec<(Scalar, Expr)>);

impl Powers {
    /// # Errors
    /// As [`Expr::parse_with`].
    fn parse() -> Result<Self> {
        let mut known = Vec::new();
        for power in [2, 3] {
            for (number, text) in [
                (Scalar::Int(power), format!("self ** {power}")),
                (Scalar::Float(power as f64), format!("self ** {power}.0")),
            ] {
                known.push((number, parse(&text, &["self"], &[])?));
            }
        }
        Ok(Powers(known))
    }

    /// Ready to be computed, beside the power by any number.
    fn on(&self, any: Pointwise) -> PreparedPowers {
        let row = |expr: &Expr| Pointwise::new(any.op().clone(), expr.clone());
        let known = self.0.iter().map(|(number, expr)| (*number, row(expr))).collect();
        PreparedPowers { any, known }
    }
}

/// Powers of a tensor by numbers, on a backend or on Meta.
struct PreparedPowers {
    any: Pointwise,
    known: Vec<(Scalar, Pointwise)>,
}

impl PreparedPowers {
    fn op(&self) -> &Op {
        self.any.op()
    }

    /// The power by a number, and the numbers that its expression takes.
    fn by<'p>(&self, exponent: &'p Scalar) -> (&Pointwise, &'p [Scalar]) {
        match self.known.iter().find(|(number, _)| number == exponent) {
            Some((_, row)) => (row, &[]),
            None => (&self.any, std::slice::from_ref(exponent)),
        }
    }
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

/// The rows of powers.
pub(super) fn rows() -> Result<Vec<Row>> {
    const POWER: &[Keeps] = &[Keeps::these(&[0, 1]), Keeps::ALL];
    let layers = |derivative: Rule<Gradient>| Layers {
        derivative,
        batching: Rule::Derived,
        autocast: Category::FullPrecision,
    };
    let tensors = Row::pointwise(
        ("aten::pow", ""),
        "Tensor self, Tensor exponent",
        Expression::parse("self ** exponent", &["self", "exponent"], &[])?,
        |row| {
            Kernel::typed(move |a: &Tensor, b: &Tensor| {
                check_power(row.op(), a.into(), "exponent", b.into())?;
                named(row.op(), "exponent", row.compute(&[a, b], &[]), b)
            })
        },
        |row| {
            Kernel::typed(move |a: &Tensor, b: &Tensor, out: &Tensor| {
                check_power(row.op(), a.into(), "exponent", b.into())?;
                named(row.op(), "exponent", row.compute_into(&[a, b], &[], out), b)?;
                Ok::<_, Error>(SameAs(2))
            })
        },
        layers(given(POWER, pow)),
    )?;
    // Powers by 2 and 3 are expressions of their own, so the kernels make what they compute themselves.
    let (known, for_out) = (Powers::parse()?, Powers::parse()?);
    let by_number = Row::pointwise(
        ("aten::pow", "Scalar"),
        "Tensor self, Scalar exponent",
        Expression::parse("self ** exponent", &["self"], &["exponent"])?,
        move |row| {
            let powers = known.on(row);
            Kernel::typed(move |a: &Tensor, b: Scalar| {
                check_power(powers.op(), a.into(), "exponent", b.into())?;
                let (row, params) = powers.by(&b);
                row.compute(&[a], params)
            })
        },
        move |row| {
            let powers = for_out.on(row);
            Kernel::typed(move |a: &Tensor, b: Scalar, out: &Tensor| {
                check_power(powers.op(), a.into(), "exponent", b.into())?;
                let (row, params) = powers.by(&b);
                row.compute_into(&[a], params, out)?;
                Ok::<_, Error>(SameAs(2))
            })
        },
        layers(given(FIRST, pow_scalar)),
    )?;
    // A number on the left: `2 ** x`.
    let of_number = Row::pointwise(
        ("aten::rpow", "Scalar"),
        "Tensor self, Scalar other",
        Expression::parse("other ** self", &["self"], &["other"])?,
        |row| {
            Kernel::typed(move |a: &Tensor, b: Scalar| {
                check_power(row.op(), b.into(), "self", a.into())?;
                named(row.op(), "self", row.compute(&[a], &[b]), a)
            })
        },
        |row| {
            Kernel::typed(move |a: &Tensor, b: Scalar, out: &Tensor| {
                check_power(row.op(), b.into(), "self", a.into())?;
                named(row.op(), "self", row.compute_into(&[a], &[b], out), a)?;
                Ok::<_, Error>(SameAs(2))
            })
        },
        layers(given(RESULT, rpow_scalar)),
    )?;
    Ok(vec![tensors, by_number, of_number])
}
