//! Arithmetic, element by element.

use keyfold_core::{DType, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_tensor::Tensor;

use crate::element::{Float, Number, Signed, for_dtype};
use crate::map::{broadcast, choose, map, zip};
use crate::op::{Op, Registrar};
use crate::promote::{Operand, check_supported, common, computed, floating, rounded};

/// A function of two numbers of one type.
trait Binary: 'static {
    fn apply<T: Number>(a: T, b: T) -> T;
}

struct Add;
impl Binary for Add {
    #[inline]
    fn apply<T: Number>(a: T, b: T) -> T {
        a.add(b)
    }
}

struct Mul;
impl Binary for Mul {
    #[inline]
    fn apply<T: Number>(a: T, b: T) -> T {
        a.mul(b)
    }
}

struct Maximum;
impl Binary for Maximum {
    #[inline]
    fn apply<T: Number>(a: T, b: T) -> T {
        a.maximum(b)
    }
}

struct Minimum;
impl Binary for Minimum {
    #[inline]
    fn apply<T: Number>(a: T, b: T) -> T {
        a.minimum(b)
    }
}

/// A function of one float.
trait FloatUnary: 'static {
    fn apply<T: Float>(x: T) -> T;
}

struct Exp;
impl FloatUnary for Exp {
    #[inline]
    fn apply<T: Float>(x: T) -> T {
        x.exp()
    }
}

struct Log;
impl FloatUnary for Log {
    #[inline]
    fn apply<T: Float>(x: T) -> T {
        x.ln()
    }
}

struct Sqrt;
impl FloatUnary for Sqrt {
    #[inline]
    fn apply<T: Float>(x: T) -> T {
        x.sqrt()
    }
}

fn binary<'a, F: Binary>(
    op: Op,
    a: impl Into<Operand<'a>>,
    b: impl Into<Operand<'a>>,
) -> Result<Tensor> {
    let (a, b) = (a.into(), b.into());
    let dtype = common(op, a, b)?;
    let mut out = op.output(&broadcast(op, &[a.shape(), b.shape()])?, computed(dtype))?;
    if !op.is_meta() {
        let (a, b) = (a.to_tensor(op, dtype)?, b.to_tensor(op, dtype)?);
        for_dtype!(all: op, computed(dtype), T => op.at(zip(&mut out, &a, &b, F::apply::<T>))?);
    }
    rounded(op, out, dtype)
}

fn sub<'a>(op: Op, a: impl Into<Operand<'a>>, b: impl Into<Operand<'a>>) -> Result<Tensor> {
    let (a, b) = (a.into(), b.into());
    let dtype = common(op, a, b)?;
    if dtype == DType::Bool {
        let message = "bools can't be subtracted; use aten::ne for \"exclusive or\", or convert";
        return Err(op.error(ErrorKind::DType, message));
    }
    let mut out = op.output(&broadcast(op, &[a.shape(), b.shape()])?, computed(dtype))?;
    if !op.is_meta() {
        let (a, b) = (a.to_tensor(op, dtype)?, b.to_tensor(op, dtype)?);
        for_dtype!(signed: op, computed(dtype), T => op.at(zip(&mut out, &a, &b, <T as Signed>::sub))?);
    }
    rounded(op, out, dtype)
}

fn div<'a>(op: Op, a: impl Into<Operand<'a>>, b: impl Into<Operand<'a>>) -> Result<Tensor> {
    let (a, b) = (a.into(), b.into());
    let dtype = floating(common(op, a, b)?);
    let mut out = op.output(&broadcast(op, &[a.shape(), b.shape()])?, computed(dtype))?;
    if !op.is_meta() {
        let (a, b) = (a.to_tensor(op, dtype)?, b.to_tensor(op, dtype)?);
        for_dtype!(float: op, computed(dtype), T => op.at(zip(&mut out, &a, &b, <T as Float>::div))?);
    }
    rounded(op, out, dtype)
}

fn float_unary<F: FloatUnary>(op: Op, x: &Tensor) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let dtype = floating(x.dtype());
    let mut out = op.output(x.shape(), computed(dtype))?;
    if !op.is_meta() {
        let wide = Operand::from(x).to_tensor(op, dtype)?;
        for_dtype!(float: op, computed(dtype), T => op.at(map(&mut out, &wide, F::apply::<T>))?);
    }
    rounded(op, out, dtype)
}

fn neg(op: Op, x: &Tensor) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    if x.dtype() == DType::Bool {
        let message = "bools can't be negated; use aten::logical_not, or convert";
        return Err(op.error(ErrorKind::DType, message));
    }
    let mut out = op.output(x.shape(), computed(x.dtype()))?;
    if !op.is_meta() {
        let wide = Operand::from(x).to_tensor(op, x.dtype())?;
        for_dtype!(signed: op, computed(x.dtype()), T => op.at(map(&mut out, &wide, <T as Signed>::neg))?);
    }
    rounded(op, out, x.dtype())
}

fn abs(op: Op, x: &Tensor) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let mut out = op.output(x.shape(), computed(x.dtype()))?;
    if !op.is_meta() {
        let wide = Operand::from(x).to_tensor(op, x.dtype())?;
        for_dtype!(all: op, computed(x.dtype()), T => op.at(map(&mut out, &wide, <T as Number>::abs))?);
    }
    rounded(op, out, x.dtype())
}

fn relu(op: Op, x: &Tensor) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let mut out = op.output(x.shape(), computed(x.dtype()))?;
    if !op.is_meta() {
        let wide = Operand::from(x).to_tensor(op, x.dtype())?;
        for_dtype!(all: op, computed(x.dtype()), T => {
            // NaN stays, -0.0 becomes 0.0.
            op.at(map(&mut out, &wide, |x: T| if T::ZERO.lt(x) || x.is_nan() { x } else { T::ZERO }))?;
        });
    }
    rounded(op, out, x.dtype())
}

fn choose_between<'a>(
    op: Op,
    condition: &Tensor,
    a: impl Into<Operand<'a>>,
    b: impl Into<Operand<'a>>,
) -> Result<Tensor> {
    let (a, b) = (a.into(), b.into());
    if condition.dtype() != DType::Bool {
        let given = condition.dtype();
        let message = format!("argument 'condition' must be bool, not {given}; compare it first");
        return Err(op.error(ErrorKind::DType, message));
    }
    let dtype = common(op, a, b)?;
    let shape = broadcast(op, &[condition.shape(), a.shape(), b.shape()])?;
    let mut out = op.output(&shape, computed(dtype))?;
    if !op.is_meta() {
        let (a, b) = (a.to_tensor(op, dtype)?, b.to_tensor(op, dtype)?);
        for_dtype!(all: op, computed(dtype), T => op.at(choose::<T>(&mut out, condition, &a, &b))?);
    }
    rounded(op, out, dtype)
}

/// An operator of two tensors, and its overload for a tensor and a number.
macro_rules! pair {
    // A macro, since a function can't be given a function that is generic over its operands.
    ($ops:expr, $name:literal, $kernel:expr) => {
        $ops.op(concat!("aten::", $name, "(Tensor self, Tensor other) -> Tensor"), |op| {
            Kernel::typed(move |a: &Tensor, b: &Tensor| $kernel(op, a, b))
        })?;
        $ops.op(concat!("aten::", $name, ".Scalar(Tensor self, Scalar other) -> Tensor"), |op| {
            Kernel::typed(move |a: &Tensor, b: Scalar| $kernel(op, a, b))
        })?;
    };
}
pub(crate) use pair;

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    pair!(ops, "add", binary::<Add>);
    pair!(ops, "sub", sub);
    pair!(ops, "mul", binary::<Mul>);
    pair!(ops, "div", div);
    pair!(ops, "maximum", binary::<Maximum>);
    pair!(ops, "minimum", binary::<Minimum>);
    // A number on the left: `1 - x` and `1 / x`.
    ops.op("aten::rsub.Scalar(Tensor self, Scalar other) -> Tensor", |op| {
        Kernel::typed(move |a: &Tensor, b: Scalar| sub(op, b, a))
    })?;
    ops.op("aten::rdiv.Scalar(Tensor self, Scalar other) -> Tensor", |op| {
        Kernel::typed(move |a: &Tensor, b: Scalar| div(op, b, a))
    })?;
    ops.op("aten::neg(Tensor self) -> Tensor", |op| Kernel::typed(move |x: &Tensor| neg(op, x)))?;
    ops.op("aten::abs(Tensor self) -> Tensor", |op| Kernel::typed(move |x: &Tensor| abs(op, x)))?;
    ops.op("aten::relu(Tensor self) -> Tensor", |op| Kernel::typed(move |x: &Tensor| relu(op, x)))?;
    ops.op("aten::exp(Tensor self) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor| float_unary::<Exp>(op, x))
    })?;
    ops.op("aten::log(Tensor self) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor| float_unary::<Log>(op, x))
    })?;
    ops.op("aten::sqrt(Tensor self) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor| float_unary::<Sqrt>(op, x))
    })?;
    ops.op("aten::where(Tensor condition, Tensor self, Tensor other) -> Tensor", |op| {
        Kernel::typed(move |c: &Tensor, a: &Tensor, b: &Tensor| choose_between(op, c, a, b))
    })?;
    ops.op(
        "aten::where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor",
        |op| Kernel::typed(move |c: &Tensor, a: &Tensor, b: Scalar| choose_between(op, c, a, b)),
    )?;
    ops.op(
        "aten::where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor",
        |op| Kernel::typed(move |c: &Tensor, a: Scalar, b: &Tensor| choose_between(op, c, a, b)),
    )?;
    ops.op("aten::where.Scalar(Tensor condition, Scalar self, Scalar other) -> Tensor", |op| {
        Kernel::typed(move |c: &Tensor, a: Scalar, b: Scalar| choose_between(op, c, a, b))
    })
}
