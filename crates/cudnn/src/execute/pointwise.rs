//! Pointwise operations: each mode as an expression.

use keyfold_core::{DType, Result, Scalar};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use super::node::{Node, Results};
use crate::{Pointwise, PointwiseMode, Port};

use PointwiseMode as M;

/// Angles by an estimate of the octant, which one rotation and its series make exact to rounding.
const ATAN2: &str = "\
    m = max(abs(x), abs(b)); \
    u = abs(where(isinf(m), where(isinf(x), 1.0, 0.0), where(m == 0, 0.0, x / m))); \
    left = b < 0 or 1.0 / b < 0; \
    v = where(isinf(m), where(isinf(b), where(left, -1.0, 1.0), 0.0), \
              where(m == 0, where(left, -1.0, 1.0), b / m)); \
    w = abs(v); \
    r = min(u, w) / max(u, w); \
    a0 = r * (pi / 4 + 0.273 * (1.0 - r)); \
    a1 = where(u > w, pi / 2 - a0, a0); \
    a2 = where(left, pi - a1, a1); \
    d = (u * cos(a2) - v * sin(a2)) / (v * cos(a2) + u * sin(a2)); \
    a3 = a2 + d * (1.0 - d * d * (1.0 / 3.0 - d * d / 5.0)); \
    where(isnan(m), m, where(x < 0 or 1.0 / x < 0, -a3, a3))";

/// The expression of an operation, and its parameters: made once for a plan.
#[derive(Debug)]
pub(super) struct Expression {
    text: String,
    numbers: Vec<Scalar>,
}

impl Expression {
    /// Makes the expression of an operation that computes in floats or in whole numbers.
    pub(super) fn new(pointwise: &Pointwise, is_float: bool) -> Expression {
        let numbers = numbers(pointwise).into_iter().map(|number| number.1).collect();
        Expression { text: text(pointwise, is_float), numbers }
    }
}

/// Returns the expression of a mode, of its inputs and of the parameters that [`numbers`] gives.
fn text(pointwise: &Pointwise, is_float: bool) -> String {
    let scaled = (pointwise.alpha1.0, pointwise.alpha2.0) != (1.0, 1.0);
    let relu_is_plain = *pointwise == Pointwise::new(M::Relu);
    let zero_slope = pointwise.relu_lower_clip_slope.0 == 0.0;
    let body = match pointwise.mode {
        M::Identity => "x",
        M::Abs if is_float => "abs(x)",
        // The least integer has no magnitude and no negative: both saturate.
        M::Abs => "where(x < 0, where(-x < 0, bitwise_not(x), -x), x)",
        M::Ceil => "ceil(x)",
        M::Cos => "cos(x)",
        M::Erf => "erf(x)",
        M::Exp => "exp(x)",
        M::Floor => "floor(x)",
        M::Log => "log(x)",
        M::Neg if is_float => "-x",
        M::Neg => "where(x < 0 and -x < 0, bitwise_not(x), -x)",
        M::Reciprocal => "1.0 / x",
        M::Rsqrt => "rsqrt(x)",
        M::Sin => "sin(x)",
        M::Sqrt => "sqrt(x)",
        M::Tan => "tan(x)",
        M::LogicalNot => "not bool(x)",
        M::Relu if relu_is_plain => "relu(x)",
        M::Relu if zero_slope => "where(x <= lower, lower, min(x, upper))",
        M::Relu => "where(x > lower, min(x, upper), lower + slope * (x - lower))",
        M::Tanh => "tanh(x)",
        M::Sigmoid => "sigmoid(x)",
        M::Elu => "where(x > 0, x, alpha * expm1(x))",
        M::Gelu => "gelu(x)",
        M::GeluApproxTanh => "gelu_tanh(x)",
        M::Softplus => "softplus(beta * x) / beta",
        M::Swish if pointwise.swish_beta.0 == 1.0 => "silu(x)",
        M::Swish => "y = beta * x; where(y == -inf, 0.0, x * sigmoid(y))",
        M::GenIndex => "x",
        M::Add if scaled => "alpha1 * x + alpha2 * b",
        M::Add => "x + b",
        M::AddSquare => "x + b * b",
        M::Sub if scaled => "alpha1 * x - alpha2 * b",
        M::Sub => "x - b",
        M::Mul if scaled => "alpha1 * x * (alpha2 * b)",
        M::Mul => "x * b",
        M::Div if is_float => "x / b",
        // Division of whole numbers rounds down: a quotient below 0 that isn't exact is one too
        // little.
        M::Div => "q = x // b; where(q * b != x and (x < 0) != (b < 0), q + 1, q)",
        M::Max => "max(x, b)",
        M::Min => "min(x, b)",
        M::Mod if is_float => "r = abs(x) % abs(b); where(x < 0 or 1.0 / x < 0, -r, r)",
        // The remainder of `%` has the sign of b.
        M::Mod => "r = x % b; where(r != 0 and (x < 0) != (b < 0), r - b, r)",
        M::FloorMod => "x % b",
        M::Pow => "x ** b",
        M::Atan2 => ATAN2,
        M::CmpEq => "x == b",
        M::CmpNeq => "x != b",
        M::CmpGt => "x > b",
        M::CmpGe => "x >= b",
        M::CmpLt => "x < b",
        M::CmpLe => "x <= b",
        M::LogicalAnd => "bool(x) and bool(b)",
        M::LogicalOr => "bool(x) or bool(b)",
        M::BinarySelect => "where(t, x, b)",
        M::ReluBackward => "where(x <= lower, slope * dy, where(x >= upper, 0.0, dy))",
        M::TanhBackward => "y = tanh(x); dy * (1.0 - y * y)",
        M::SigmoidBackward => "y = sigmoid(x); dy * (y * (1.0 - y))",
        M::EluBackward => "where(x > 0, dy, dy * (alpha * exp(x)))",
        // Operators of their own.
        M::GeluBackward | M::GeluApproxTanhBackward => "dy",
        M::SoftplusBackward => "dy * sigmoid(beta * x)",
        M::SwishBackward => "y = sigmoid(beta * x); dy * (y + beta * x * y * (1.0 - y))",
    };
    let header = match pointwise.mode {
        mode if mode.is_backward() => "dy, x",
        M::BinarySelect => "x, b, t",
        mode if (M::Add..=M::LogicalOr).contains(&mode) => "x, b",
        _ => "x",
    };
    match numbers(pointwise).iter().map(|number| number.0).collect::<Vec<_>>().join(", ") {
        names if names.is_empty() => format!("{header}: {body}"),
        names => format!("{header}; {names}: {body}"),
    }
}

/// Returns the parameters of a mode's expression.
fn numbers(p: &Pointwise) -> Vec<(&'static str, Scalar)> {
    let mut all = match p.mode {
        M::Relu if *p == Pointwise::new(M::Relu) => vec![],
        M::Relu | M::ReluBackward => vec![
            ("lower", p.relu_lower_clip),
            ("upper", p.relu_upper_clip),
            ("slope", p.relu_lower_clip_slope),
        ],
        M::Elu | M::EluBackward => vec![("alpha", p.elu_alpha)],
        M::Softplus | M::SoftplusBackward => vec![("beta", p.softplus_beta)],
        M::Swish if p.swish_beta.0 == 1.0 => vec![],
        M::Swish | M::SwishBackward => vec![("beta", p.swish_beta)],
        M::Add | M::Sub | M::Mul if (p.alpha1.0, p.alpha2.0) != (1.0, 1.0) => {
            vec![("alpha1", p.alpha1), ("alpha2", p.alpha2)]
        }
        _ => vec![],
    };
    all.drain(..).map(|(name, number)| (name, Scalar::Float(number.0))).collect()
}

/// Returns the dtype that a mode computes in: whole numbers are converted to float64 for functions
/// whose results aren't whole.
fn working(pointwise: &Pointwise, dtype: DType) -> DType {
    let whole = match pointwise.mode {
        M::Add | M::Sub | M::Mul => numbers(pointwise).is_empty(),
        M::Relu => *pointwise == Pointwise::new(M::Relu),
        M::Identity | M::Abs | M::Neg | M::AddSquare | M::Max | M::Min => true,
        M::Div | M::Mod | M::FloorMod => true,
        mode => mode.is_logical() || matches!(mode, M::GenIndex | M::BinarySelect),
    };
    if dtype.is_floating() || whole { dtype } else { DType::F64 }
}

pub(super) fn compute(node: &Node<'_>, pointwise: &Pointwise) -> Result<Results> {
    let (calls, mode) = (node.calls(), pointwise.mode);
    let dtype = working(pointwise, node.dtype);
    if mode == M::GenIndex {
        let x = node.read(Port::X)?;
        let axis = pointwise.axis.unwrap_or(0) as usize;
        let text = format!("x[{}]: index({})", x.ndim(), x.ndim() - 1 - axis);
        let shape = node.output_dims(Port::Y)?;
        return Ok(vec![(Port::Y, calls.shaped(&text, &[&x], &[], shape)?)]);
    }
    if mode.is_backward() {
        let (dy, x) = (node.read_as(Port::Dy, dtype)?, node.read_as(Port::X, dtype)?);
        let name = match mode {
            M::GeluBackward => "aten::gelu_backward.out",
            M::GeluApproxTanhBackward => "aten::gelu_tanh_backward.out",
            _ => return map(node, (Port::Dx, dtype), &[&dy, &x]),
        };
        let (x, args) = (&x, &dy);
        let result = calls.into(name, &[args.into(), x.into()], node.target(Port::Dx, dtype))?;
        return Ok(node.done(Port::Dx, result, dtype));
    }
    let x = node.look_as(Port::X, dtype)?;
    let b = node.look_as(Port::B, dtype)?;
    let t = node.look_as(Port::T, DType::Bool)?;
    let inputs = [x.as_deref(), b.as_deref(), t.as_deref()];
    let inputs: SmallVec<[&Tensor; 3]> = inputs.into_iter().flatten().collect();
    let result = if mode.is_logical() { DType::Bool } else { dtype };
    map(node, (Port::Y, result), &inputs)
}

/// Evaluates the expression of an operation, whose result has a dtype.
fn map(node: &Node<'_>, (port, dtype): (Port, DType), inputs: &[&Tensor]) -> Result<Results> {
    let Expression { text, numbers } = node.expression.expect("pointwise steps have expressions");
    let target = node.target(port, dtype);
    let result = node.calls().map_to(text, inputs, numbers, None, target)?;
    Ok(node.done(port, result, dtype))
}
