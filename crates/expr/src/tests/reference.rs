//! A naive evaluator in float64.

use crate::graph::{Binary, Expr, Literal, Node, Unary};

/// Returns the value of an expression of elementwise inputs; bools are 0 and 1.
pub(crate) fn value(expr: &Expr, inputs: &[f64]) -> f64 {
    let mut values: Vec<f64> = Vec::new();
    for node in expr.nodes() {
        let of = |id: &crate::Id| values[id.index()];
        let value = match node {
            Node::Literal(Literal::Bool(value)) => f64::from(u8::from(*value)),
            Node::Literal(Literal::Int(value)) => *value as f64,
            Node::Literal(Literal::Float(bits)) => f64::from_bits(*bits),
            Node::Input(at) => inputs[*at as usize],
            Node::Unary(op, a) => unary(*op, of(a)),
            Node::Binary(op, a, b) => binary(*op, of(a), of(b)),
            Node::Where(condition, a, b) => of(if of(condition) != 0.0 { a } else { b }),
            Node::Cast(dtype, a) if dtype.is_floating() => of(a),
            Node::Cast(keyfold_core::DType::Bool, a) => f64::from(u8::from(of(a) != 0.0)),
            Node::Cast(_, a) => of(a).trunc(),
            other => panic!("{other:?} has no value here"),
        };
        values.push(value);
    }
    values[expr.root().index()]
}

fn unary(op: Unary, x: f64) -> f64 {
    let truth = |value: bool| f64::from(u8::from(value));
    match op {
        Unary::Neg => -x,
        Unary::Not => truth(x == 0.0),
        Unary::Abs => x.abs(),
        Unary::Sign if x == 0.0 || x.is_nan() => x.abs(),
        Unary::Sign => x.signum(),
        Unary::Conj | Unary::Real => x,
        Unary::Imag => 0.0,
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log2 => x.log2(),
        Unary::Log10 => x.log10(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Erf => erf(x),
        Unary::Erfc => 1.0 - erf(x),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::IsNan => truth(x.is_nan()),
        Unary::IsFinite => truth(x.is_finite()),
    }
}

fn binary(op: Binary, a: f64, b: f64) -> f64 {
    let truth = |value: bool| f64::from(u8::from(value));
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::FloorDiv => (a / b).floor(),
        Binary::Mod => a - b * (a / b).floor(),
        Binary::Pow => a.powf(b),
        Binary::Min | Binary::Max if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::Eq => truth(a == b),
        Binary::Ne => truth(a != b),
        Binary::Lt => truth(a < b),
        Binary::Le => truth(a <= b),
        Binary::Gt => truth(a > b),
        Binary::Ge => truth(a >= b),
        Binary::And => truth(a != 0.0 && b != 0.0),
        Binary::Or => truth(a != 0.0 || b != 0.0),
        Binary::Xor => truth((a != 0.0) != (b != 0.0)),
        Binary::Shl | Binary::Shr => panic!("shifts have no value here"),
    }
}

/// Returns the error function, by its series of positive terms `2 / sqrt(pi) * exp(-x^2) * sum of
/// 2^n x^(2n+1) / (2n+1)!!` (Abramowitz and Stegun 7.1.6).
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-18 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}
