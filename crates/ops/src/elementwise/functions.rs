//! Functions of one tensor, and powers.

use std::sync::Arc;

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_kit::evaluate::Compiled;
use keyfold_tensor::{SameAs, Tensor};

use super::{compile, compute, compute_into};
use crate::op::{Op, Registrar};
use crate::promote::Operand;

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

fn check(op: Op, dtype: DType) -> Result<()> {
    refusal(op.name, dtype).map_or(Ok(()), |why| {
        Err(op.error(ErrorKind::DType, format!("argument 'self': dtype {dtype}: {why}")))
    })
}

fn function(ops: &Registrar<'_>, name: &'static str, expression: &Arc<Compiled>) -> Result<()> {
    ops.with_out(
        (name, ""),
        "Tensor self",
        |op| {
            let expression = expression.clone();
            Kernel::typed(move |x: &Tensor| {
                check(op, x.dtype())?;
                compute(op, &expression, &[x], &[])
            })
        },
        |op| {
            let expression = expression.clone();
            Kernel::typed(move |x: &Tensor, out: &Tensor| {
                check(op, x.dtype())?;
                compute_into(op, &expression, &[x], &[], out)?;
                Ok::<_, Error>(SameAs(1))
            })
        },
    )
}

/// Powers, with expressions of their own for exponents that few products do for.
#[derive(Clone)]
struct Powers {
    both: Arc<Compiled>,
    number: Arc<Compiled>,
    /// Of a number, on the left.
    of_number: Arc<Compiled>,
    /// By exponents that are written into the expression.
    known: Vec<(Scalar, Arc<Compiled>)>,
}

impl Powers {
    fn new() -> Result<Powers> {
        let mut known = Vec::new();
        for power in [2, 3] {
            for (number, text) in [
                (Scalar::Int(power), format!("self ** {power}")),
                (Scalar::Float(power as f64), format!("self ** {power}.0")),
            ] {
                known.push((number, compile(&text, &["self"], &[])?));
            }
        }
        Ok(Powers {
            both: compile("self ** exponent", &["self", "exponent"], &[])?,
            number: compile("self ** exponent", &["self"], &["exponent"])?,
            of_number: compile("other ** self", &["self"], &["other"])?,
            known,
        })
    }

    /// The expression for an exponent, and its parameters.
    fn by_number<'p>(&self, exponent: &'p Scalar) -> (&Compiled, &'p [Scalar]) {
        match self.known.iter().find(|(number, _)| number == exponent) {
            Some((_, expression)) => (expression, &[]),
            None => (&self.number, std::slice::from_ref(exponent)),
        }
    }
}

#[cold]
fn negative_power(op: Op, argument: &str, exponent: impl std::fmt::Display, dtype: DType) -> Error {
    let message = format!(
        "argument '{argument}': {exponent} is negative, which gives fractions that {dtype} can't \
         hold; convert one of the operands to float64 with aten::to"
    );
    op.error(ErrorKind::Value, message)
}

/// Refuses powers of bools, and negative ones of whole numbers where the exponent is a number.
fn check_power<'a>(op: Op, a: Operand<'a>, name: &str, b: Operand<'a>) -> Result<()> {
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
fn named<T>(op: Op, name: &str, result: Result<T>, exponents: &Tensor) -> Result<T> {
    let Err(error) = &result else { return result };
    if error.kind() != ErrorKind::Value || !exponents.dtype().is_integral() {
        return result;
    }
    let whole = crate::map::cast(op, exponents, DType::I64)?;
    match op.at(whole.as_slice::<i64>())?.iter().find(|item| **item < 0) {
        Some(negative) => Err(negative_power(op, name, negative, exponents.dtype())),
        None => result,
    }
}

fn powers(ops: &Registrar<'_>) -> Result<()> {
    let powers = Powers::new()?;
    ops.with_out(
        ("aten::pow", ""),
        "Tensor self, Tensor exponent",
        |op| {
            let powers = powers.clone();
            Kernel::typed(move |a: &Tensor, b: &Tensor| {
                check_power(op, a.into(), "exponent", b.into())?;
                named(op, "exponent", compute(op, &powers.both, &[a, b], &[]), b)
            })
        },
        |op| {
            let powers = powers.clone();
            Kernel::typed(move |a: &Tensor, b: &Tensor, out: &Tensor| {
                check_power(op, a.into(), "exponent", b.into())?;
                named(op, "exponent", compute_into(op, &powers.both, &[a, b], &[], out), b)?;
                Ok::<_, Error>(SameAs(2))
            })
        },
    )?;
    ops.with_out(
        ("aten::pow", "Scalar"),
        "Tensor self, Scalar exponent",
        |op| {
            let powers = powers.clone();
            Kernel::typed(move |a: &Tensor, b: Scalar| {
                check_power(op, a.into(), "exponent", b.into())?;
                let (expression, params) = powers.by_number(&b);
                compute(op, expression, &[a], params)
            })
        },
        |op| {
            let powers = powers.clone();
            Kernel::typed(move |a: &Tensor, b: Scalar, out: &Tensor| {
                check_power(op, a.into(), "exponent", b.into())?;
                let (expression, params) = powers.by_number(&b);
                compute_into(op, expression, &[a], params, out)?;
                Ok::<_, Error>(SameAs(2))
            })
        },
    )?;
    // A number on the left: `2 ** x`.
    ops.with_out(
        ("aten::rpow", "Scalar"),
        "Tensor self, Scalar other",
        |op| {
            let powers = powers.clone();
            Kernel::typed(move |a: &Tensor, b: Scalar| {
                check_power(op, b.into(), "self", a.into())?;
                named(op, "self", compute(op, &powers.of_number, &[a], &[b]), a)
            })
        },
        |op| {
            let powers = powers.clone();
            Kernel::typed(move |a: &Tensor, b: Scalar, out: &Tensor| {
                check_power(op, b.into(), "self", a.into())?;
                named(op, "self", compute_into(op, &powers.of_number, &[a], &[b], out), a)?;
                Ok::<_, Error>(SameAs(2))
            })
        },
    )
}

/// Defines these operators in a dispatcher.
pub(super) fn register(ops: &Registrar<'_>) -> Result<()> {
    for (name, text) in FUNCTIONS {
        function(ops, name, &compile(text, &["self"], &[])?)?;
    }
    // Anything but zero is true; written with a bool, which changes no dtype.
    function(ops, "aten::logical_not", &compile("self == False", &["self"], &[])?)?;
    powers(ops)
}
