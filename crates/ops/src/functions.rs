//! Functions of floats that the standard library has, the sign, and powers.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_tensor::Tensor;

use crate::element::{Number, Signed, for_dtype};
use crate::map::{broadcast, map, zip};
use crate::op::{Op, Registrar};
use crate::promote::{Operand, check_supported, common_of, computed, floating, rounded};

/// One function for each float that kernels compute in. Pointers, since a call of these costs far
/// less than what they do; so the kernels are compiled once for all of them.
#[derive(Clone, Copy)]
struct Function {
    f32: fn(f32) -> f32,
    f64: fn(f64) -> f64,
}

fn apply(op: Op, x: &Tensor, function: Function) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let dtype = floating(x.dtype());
    let mut out = op.output(x.shape(), computed(dtype))?;
    if !op.is_meta() {
        let wide = Operand::from(x).to_tensor(op, dtype)?;
        match out.dtype() {
            DType::F32 => op.at(map(&mut out, &wide, function.f32))?,
            _ => op.at(map(&mut out, &wide, function.f64))?,
        }
    }
    rounded(op, out, dtype)
}

/// `1 / (1 + exp(-x))`, of whichever sign so that nothing overflows.
fn sigmoid(x: f64) -> f64 {
    let small = (-x.abs()).exp();
    let share = 1.0 / (1.0 + small);
    if x < 0.0 { small * share } else { share }
}

/// As [`sigmoid`].
fn sigmoid_f32(x: f32) -> f32 {
    let small = (-x.abs()).exp();
    let share = 1.0 / (1.0 + small);
    if x < 0.0 { small * share } else { share }
}

/// 1, 0 or -1; NaN stays. For bools it is the bool.
fn sign(op: Op, x: &Tensor) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let dtype = x.dtype();
    if dtype == DType::Bool {
        return crate::map::cast(op, x, dtype);
    }
    let mut out = op.output(x.shape(), computed(dtype))?;
    if !op.is_meta() {
        let wide = Operand::from(x).to_tensor(op, dtype)?;
        for_dtype!(signed: op, computed(dtype), T => {
            let one = T::from_number(true);
            op.at(map(&mut out, &wide, |x: T| {
                if x.is_nan() {
                    x
                } else if T::ZERO.lt(x) {
                    one
                } else if x.lt(T::ZERO) {
                    one.neg()
                } else {
                    T::ZERO
                }
            }))?;
        });
    }
    rounded(op, out, dtype)
}

/// A whole number to the power of another that isn't negative, by squaring; wraps around.
fn whole_power(mut base: i64, mut exponent: i64) -> i64 {
    let mut product = 1_i64;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product = product.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    product
}

#[cold]
fn negative_power(op: Op, argument: &str, exponent: i64) -> Error {
    let message = format!(
        "argument '{argument}': {exponent} is negative, which gives fractions that int64 can't hold; \
         convert one of the operands to float64 with aten::to"
    );
    op.error(ErrorKind::Value, message)
}

/// `a` to the power of `b`, which is the argument of that name.
fn pow<'a>(
    op: Op,
    a: impl Into<Operand<'a>>,
    name: &str,
    b: impl Into<Operand<'a>>,
) -> Result<Tensor> {
    let (a, b) = (a.into(), b.into());
    let dtype = common_of(op, a, name, b)?;
    if dtype == DType::Bool {
        let message = "bools have no powers; convert them with aten::to";
        return Err(op.error(ErrorKind::DType, message));
    }
    let mut square = false;
    if let Operand::Scalar(exponent) = b {
        square = exponent.as_f64() == 2.0;
        if let (DType::I64, Some(exponent @ ..0)) = (dtype, exponent.as_i64()) {
            return Err(negative_power(op, name, exponent));
        }
    }
    let mut out = op.output(&broadcast(op, &[a.shape(), b.shape()])?, computed(dtype))?;
    if op.is_meta() {
        return rounded(op, out, dtype);
    }
    let (a, b) = (a.to_tensor(op, dtype)?, b.to_tensor(op, dtype)?);
    if square {
        for_dtype!(signed: op, computed(dtype), T => {
            op.at(map(&mut out, &a, |x: T| x.mul(x)))?;
        });
        return rounded(op, out, dtype);
    }
    match out.dtype() {
        DType::F32 => op.at(zip(&mut out, &a, &b, f32::powf))?,
        DType::F64 => op.at(zip(&mut out, &a, &b, f64::powf))?,
        _ => {
            let exponents = op.at(b.to_vec::<i64>())?;
            if let Some(&negative) = exponents.iter().find(|e| **e < 0) {
                return Err(negative_power(op, name, negative));
            }
            op.at(zip(&mut out, &a, &b, whole_power))?;
        }
    }
    rounded(op, out, dtype)
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    let functions = [
        ("aten::tanh(Tensor self) -> Tensor", Function { f32: f32::tanh, f64: f64::tanh }),
        ("aten::sigmoid(Tensor self) -> Tensor", Function { f32: sigmoid_f32, f64: sigmoid }),
        ("aten::sin(Tensor self) -> Tensor", Function { f32: f32::sin, f64: f64::sin }),
        ("aten::cos(Tensor self) -> Tensor", Function { f32: f32::cos, f64: f64::cos }),
        ("aten::log1p(Tensor self) -> Tensor", Function { f32: f32::ln_1p, f64: f64::ln_1p }),
        ("aten::expm1(Tensor self) -> Tensor", Function { f32: f32::exp_m1, f64: f64::exp_m1 }),
    ];
    for (schema, function) in functions {
        ops.op(schema, |op| Kernel::typed(move |x: &Tensor| apply(op, x, function)))?;
    }
    ops.op("aten::sign(Tensor self) -> Tensor", |op| Kernel::typed(move |x: &Tensor| sign(op, x)))?;
    ops.op("aten::pow(Tensor self, Tensor exponent) -> Tensor", |op| {
        Kernel::typed(move |a: &Tensor, b: &Tensor| pow(op, a, "exponent", b))
    })?;
    ops.op("aten::pow.Scalar(Tensor self, Scalar exponent) -> Tensor", |op| {
        Kernel::typed(move |a: &Tensor, b: Scalar| pow(op, a, "exponent", b))
    })?;
    // A number on the left: `2 ** x`.
    ops.op("aten::rpow.Scalar(Tensor self, Scalar other) -> Tensor", |op| {
        Kernel::typed(move |a: &Tensor, b: Scalar| pow(op, b, "self", a))
    })
}
