//! Constant folding of literals.
//!
//! Literals are weak, and so are folded results: integers while they fit int64, floats if an
//! operand is one or the operation returns one. Operations whose result depends on a dtype aren't
//! folded: casts, arithmetic on bools, integers that overflow, an integer divided by zero.

use crate::graph::{Binary, Graph, Id, Literal, Node, Unary};

fn float(value: f64) -> Literal {
    // One NaN, so that equal expressions compare equal.
    Literal::Float(if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() })
}

/// Returns the value of a literal as a float.
pub(crate) fn as_float(literal: Literal) -> f64 {
    match literal {
        Literal::Bool(value) => f64::from(u8::from(value)),
        Literal::Int(value) => value as f64,
        Literal::Float(bits) => f64::from_bits(bits),
    }
}

/// Returns the result of a node on literals; `None` if it isn't folded.
pub(crate) fn fold(node: &Node, mut of: impl FnMut(Id) -> Option<Literal>) -> Option<Literal> {
    match node {
        Node::Literal(literal) => Some(*literal),
        Node::Unary(op, a) => unary(*op, of(*a)?),
        Node::Binary(op, a, b) => binary(*op, of(*a)?, of(*b)?),
        Node::Where(condition, a, b) => {
            let Literal::Bool(condition) = of(*condition)? else { return None };
            let (a, b) = (of(*a)?, of(*b)?);
            let chosen = if condition { a } else { b };
            match (a, b) {
                (Literal::Float(_), _) | (_, Literal::Float(_)) => Some(float(as_float(chosen))),
                (Literal::Int(_), Literal::Int(_)) | (Literal::Bool(_), Literal::Bool(_)) => {
                    Some(chosen)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn unary(op: Unary, x: Literal) -> Option<Literal> {
    use Literal::{Bool, Float, Int};
    match (op, x) {
        (Unary::Not, Bool(x)) => return Some(Bool(!x)),
        (Unary::Not, Int(x)) => return Some(Int(!x)),
        (Unary::IsNan, x) => return Some(Bool(as_float(x).is_nan())),
        (Unary::IsFinite, x) => return Some(Bool(as_float(x).is_finite())),
        // Literals are real.
        (Unary::Conj | Unary::Real, x) => return Some(x),
        (Unary::Imag, Int(_)) => return Some(Int(0)),
        (Unary::Imag, Float(_)) => return Some(float(0.0)),
        (Unary::Not, Float(_)) | (_, Bool(_)) => return None,
        (Unary::Neg, Int(x)) => return x.checked_neg().map(Int),
        (Unary::Abs, Int(x)) => return x.checked_abs().map(Int),
        (Unary::Sign, Int(x)) => return Some(Int(x.signum())),
        (Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc, Int(x)) => return Some(Int(x)),
        _ => {}
    }
    let v = as_float(x);
    Some(float(match op {
        Unary::Neg => -v,
        Unary::Abs => v.abs(),
        // Zeros and NaN stay.
        Unary::Sign if v == 0.0 || v.is_nan() => v.abs(),
        Unary::Sign => v.signum(),
        Unary::Exp => v.exp(),
        Unary::Expm1 => v.exp_m1(),
        Unary::Log => v.ln(),
        Unary::Log2 => v.log2(),
        Unary::Log10 => v.log10(),
        Unary::Log1p => v.ln_1p(),
        Unary::Sqrt => v.sqrt(),
        Unary::Rsqrt => 1.0 / v.sqrt(),
        Unary::Sin => v.sin(),
        Unary::Cos => v.cos(),
        Unary::Tanh => v.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-v).exp()),
        Unary::Floor => v.floor(),
        Unary::Ceil => v.ceil(),
        Unary::Round => v.round_ties_even(),
        Unary::Trunc => v.trunc(),
        Unary::Erf
        | Unary::Erfc
        | Unary::Not
        | Unary::IsNan
        | Unary::IsFinite
        | Unary::Conj
        | Unary::Real
        | Unary::Imag => return None,
    }))
}

fn binary(op: Binary, a: Literal, b: Literal) -> Option<Literal> {
    use Literal::{Bool, Int};
    match (a, b) {
        (Bool(a), Bool(b)) => bools(op, a, b).map(Bool),
        // A bool with a number counts as 0 or 1.
        (Int(a), Int(b)) => ints(op, a, b),
        (Bool(a), Int(b)) => ints(op, i64::from(a), b),
        (Int(a), Bool(b)) => ints(op, a, i64::from(b)),
        _ => floats(op, as_float(a), as_float(b)),
    }
}

fn compare<T: PartialOrd>(op: Binary, a: &T, b: &T) -> Option<bool> {
    Some(match op {
        Binary::Eq => a == b,
        Binary::Ne => a != b,
        Binary::Lt => a < b,
        Binary::Le => a <= b,
        Binary::Gt => a > b,
        Binary::Ge => a >= b,
        _ => return None,
    })
}

fn bools(op: Binary, a: bool, b: bool) -> Option<bool> {
    match op {
        Binary::And => Some(a & b),
        Binary::Or => Some(a | b),
        Binary::Xor => Some(a ^ b),
        _ => compare(op, &a, &b),
    }
}

fn ints(op: Binary, a: i64, b: i64) -> Option<Literal> {
    if let Some(value) = compare(op, &a, &b) {
        return Some(Literal::Bool(value));
    }
    let whole = match op {
        Binary::Add => a.checked_add(b)?,
        Binary::Sub => a.checked_sub(b)?,
        Binary::Mul => a.checked_mul(b)?,
        // Beyond 2^53 the operands would be rounded before the division.
        Binary::Div if b == 0 => return None,
        Binary::Div => return Some(float(a as f64 / b as f64)),
        Binary::FloorDiv => {
            let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
            quotient - i64::from(rest != 0 && (rest < 0) != (b < 0))
        }
        Binary::Mod => {
            let rest = a.checked_rem(b)?;
            if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
        }
        Binary::Pow if b < 0 => return None,
        Binary::Pow => power(a, b)?,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => {
            let shift = u32::try_from(b).ok().filter(|shift| *shift < 63)?;
            a.checked_mul(1 << shift)?
        }
        Binary::Shr => {
            let shift = u32::try_from(b).ok().filter(|shift| *shift < 64)?;
            a >> shift
        }
        _ => return None,
    };
    Some(Literal::Int(whole))
}

fn power(a: i64, b: i64) -> Option<i64> {
    match a {
        0 => Some(i64::from(b == 0)),
        1 => Some(1),
        -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
        _ => a.checked_pow(u32::try_from(b).ok()?),
    }
}

fn floats(op: Binary, a: f64, b: f64) -> Option<Literal> {
    if let Some(value) = compare(op, &a, &b) {
        return Some(Literal::Bool(value));
    }
    let both_zero = a == 0.0 && b == 0.0;
    Some(float(match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Pow => a.powf(b),
        // The kernel decides which zero it returns.
        Binary::Min | Binary::Max if both_zero && a.to_bits() != b.to_bits() => return None,
        Binary::Min | Binary::Max if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        _ => return None,
    }))
}

/// The values of the constant nodes in a growing graph.
#[derive(Default)]
pub(crate) struct Constants {
    values: Vec<Option<Literal>>,
}

impl Constants {
    /// Returns the value of a node, if it is constant.
    pub(crate) fn of(&mut self, graph: &Graph, id: Id) -> Option<Literal> {
        for node in &graph.nodes()[self.values.len()..] {
            let value = fold(node, |id| self.values[id.index()]);
            self.values.push(value);
        }
        self.values[id.index()]
    }
}
