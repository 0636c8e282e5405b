//! Functions of one tensor, and powers.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_expr::Expr;
use keyfold_tensor::{SameAs, Tensor};

use super::{Pointwise, parse};
use crate::op::{Op, Registrar};

/// The functions of one tensor called `self`, each with its expression.
pub const FUNCTIONS: [(&str, &str); 31] = [
    ("aten::neg", "-self"),
    ("aten::abs", "abs(self)"),
    ("aten::sign", "sign(self)"),
    ("aten::conj", "conj(self)"),
    ("aten::real", "real(self)"),
    ("aten::imag", "imag(self)"),
    // Written with a bool, which changes no dtype.
    ("aten::relu", "where((self > False) | isnan(self), self, False)"),
    ("aten::exp", "exp(self)"),
    ("aten::expm1", "expm1(self)"),
    ("aten::log", "log(self)"),
    ("aten::log1p", "log1p(self)"),
    ("aten::sqrt", "sqrt(self)"),
    ("aten::rsqrt", "rsqrt(self)"),
    ("aten::reciprocal", "1.0 / self"),
    ("aten::sin", "sin(self)"),
    ("aten::cos", "cos(self)"),
    ("aten::tanh", "tanh(self)"),
    ("aten::sigmoid", "sigmoid(self)"),
    ("aten::erf", "erf(self)"),
    ("aten::softplus", "softplus(self)"),
    ("aten::silu", "silu(self)"),
    ("aten::gelu", "gelu(self)"),
    ("aten::gelu_tanh", "gelu_tanh(self)"),
    ("aten::floor", "floor(self)"),
    ("aten::ceil", "ceil(self)"),
    ("aten::round", "round(self)"),
    ("aten::trunc", "trunc(self)"),
    ("aten::isnan", "isnan(self)"),
    ("aten::isinf", "isinf(self)"),
    ("aten::isfinite", "isfinite(self)"),
    ("aten::bitwise_not", "~self"),
];

/// Why a function refuses a dtype, where its expression wouldn't say it well.
fn refusal(name: &str, dtype: DType) -> Option<&'static str> {
    match name {
        "aten::neg" if dtype == DType::Bool => {
            Some("bools can't be negated; use aten::logical_not, or convert")
        }
        "aten::relu" | "aten::softplus" | "aten::silu" | "aten::gelu" | "aten::gelu_tanh"
            if dtype.is_complex() =>
        {
            Some("it takes real numbers; take one part, or the abs")
        }
        _ => None,
    }
}

fn check(op: &Op, dtype: DType) -> Result<()> {
    refusal(op.name, dtype).map_or(Ok(()), |why| {
        Err(op.error(ErrorKind::DType, format!("argument 'self': dtype {dtype}: {why}")))
    })
}

fn function(ops: &Registrar<'_>, name: &'static str, expr: &Expr) -> Result<()> {
    ops.with_out(
        (name, ""),
        "Tensor self",
        |op| {
            let row = Pointwise::new(op, expr.clone());
            Kernel::typed(move |x: &Tensor| {
                check(row.op(), x.dtype())?;
                row.compute(&[x], &[])
            })
        },
        |op| {
            let row = Pointwise::new(op, expr.clone());
            Kernel::typed(move |x: &Tensor, out: &Tensor| {
                check(row.op(), x.dtype())?;
                row.compute_into(&[x], &[], out)?;
                Ok::<_, Error>(SameAs(1))
            })
        },
    )
}

/// Powers of a tensor by numbers. By 2 and by 3 they are products, and expressions of their own.
struct Powers<T> {
    any: T,
    known: Vec<(Scalar, T)>,
}

impl Powers<Expr> {
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
        Ok(Powers { any: parse("self ** exponent", &["self"], &["exponent"])?, known })
    }

    /// Ready to be computed.
    fn on(&self, op: &Op) -> Powers<Pointwise> {
        let row = |expr: &Expr| Pointwise::new(op.clone(), expr.clone());
        let known = self.known.iter().map(|(number, expr)| (*number, row(expr)));
        Powers { any: row(&self.any), known: known.collect() }
    }
}

impl Powers<Pointwise> {
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

fn powers(ops: &Registrar<'_>) -> Result<()> {
    let both = parse("self ** exponent", &["self", "exponent"], &[])?;
    ops.with_out(
        ("aten::pow", ""),
        "Tensor self, Tensor exponent",
        |op| {
            let row = Pointwise::new(op, both.clone());
            Kernel::typed(move |a: &Tensor, b: &Tensor| {
                check_power(row.op(), a.into(), "exponent", b.into())?;
                named(row.op(), "exponent", row.compute(&[a, b], &[]), b)
            })
        },
        |op| {
            let row = Pointwise::new(op, both.clone());
            Kernel::typed(move |a: &Tensor, b: &Tensor, out: &Tensor| {
                check_power(row.op(), a.into(), "exponent", b.into())?;
                named(row.op(), "exponent", row.compute_into(&[a, b], &[], out), b)?;
                Ok::<_, Error>(SameAs(2))
            })
        },
    )?;
    let powers = Powers::parse()?;
    ops.with_out(
        ("aten::pow", "Scalar"),
        "Tensor self, Scalar exponent",
        |op| {
            let powers = powers.on(&op);
            Kernel::typed(move |a: &Tensor, b: Scalar| {
                check_power(&op, a.into(), "exponent", b.into())?;
                let (row, params) = powers.by(&b);
                row.compute(&[a], params)
            })
        },
        |op| {
            let powers = powers.on(&op);
            Kernel::typed(move |a: &Tensor, b: Scalar, out: &Tensor| {
                check_power(&op, a.into(), "exponent", b.into())?;
                let (row, params) = powers.by(&b);
                row.compute_into(&[a], params, out)?;
                Ok::<_, Error>(SameAs(2))
            })
        },
    )?;
    // A number on the left: `2 ** x`.
    let of_number = parse("other ** self", &["self"], &["other"])?;
    ops.with_out(
        ("aten::rpow", "Scalar"),
        "Tensor self, Scalar other",
        |op| {
            let row = Pointwise::new(op, of_number.clone());
            Kernel::typed(move |a: &Tensor, b: Scalar| {
                check_power(row.op(), b.into(), "self", a.into())?;
                named(row.op(), "self", row.compute(&[a], &[b]), a)
            })
        },
        |op| {
            let row = Pointwise::new(op, of_number.clone());
            Kernel::typed(move |a: &Tensor, b: Scalar, out: &Tensor| {
                check_power(row.op(), b.into(), "self", a.into())?;
                named(row.op(), "self", row.compute_into(&[a], &[b], out), a)?;
                Ok::<_, Error>(SameAs(2))
            })
        },
    )
}

/// Defines these operators in a dispatcher.
pub(super) fn register(ops: &Registrar<'_>) -> Result<()> {
    for (name, text) in FUNCTIONS {
        function(ops, name, &parse(text, &["self"], &[])?)?;
    }
    // Anything but zero is true; written with a bool, which changes no dtype.
    function(ops, "aten::logical_not", &parse("self == False", &["self"], &[])?)?;
    powers(ops)
}
