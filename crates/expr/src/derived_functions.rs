//! Functions composed of several nodes (`gelu`, `logaddexp`, `hypot`), and one-line helpers that
//! add a node.
//!
//! The parser and the builder share them. Neither these functions nor their derivatives compute
//! `inf * 0` or `inf - inf` if the exact value is finite. For `gelu` and `silu` that takes the rule
//! in `derive/gelu.rs` as well.

use std::f64::consts::FRAC_1_SQRT_2;

use crate::graph::{Binary, Graph, Id, Literal, Node, Unary};

/// `sqrt(2 / pi)`
const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;

pub(crate) fn float(g: &mut Graph, value: f64) -> Id {
    // One NaN, so that equal expressions compare equal.
    let value = if value.is_nan() { f64::NAN } else { value };
    g.add(Node::Literal(Literal::Float(value.to_bits())))
}

pub(crate) fn int(g: &mut Graph, value: i64) -> Id {
    g.add(Node::Literal(Literal::Int(value)))
}

pub(crate) fn unary(g: &mut Graph, op: Unary, x: Id) -> Id {
    g.add(Node::Unary(op, x))
}

pub(crate) fn binary(g: &mut Graph, op: Binary, a: Id, b: Id) -> Id {
    g.add(Node::Binary(op, a, b))
}

pub(crate) fn choose(g: &mut Graph, condition: Id, a: Id, b: Id) -> Id {
    g.add(Node::Where(condition, a, b))
}

pub(crate) fn add(g: &mut Graph, a: Id, b: Id) -> Id {
    binary(g, Binary::Add, a, b)
}

pub(crate) fn sub(g: &mut Graph, a: Id, b: Id) -> Id {
    binary(g, Binary::Sub, a, b)
}

pub(crate) fn mul(g: &mut Graph, a: Id, b: Id) -> Id {
    binary(g, Binary::Mul, a, b)
}

pub(crate) fn div(g: &mut Graph, a: Id, b: Id) -> Id {
    binary(g, Binary::Div, a, b)
}

/// Returns a multiple of a node.
pub(crate) fn scaled(g: &mut Graph, factor: f64, x: Id) -> Id {
    let factor = float(g, factor);
    mul(g, factor, x)
}

/// Returns `relu` as a single selection, so that NaN stays, and -0.0 becomes 0.0.
pub(crate) fn relu(g: &mut Graph, x: Id) -> Id {
    let zero = int(g, 0);
    let flat = binary(g, Binary::Le, x, zero);
    choose(g, flat, zero, x)
}

/// `gelu`, `gelu_tanh` and `silu` are `x` times a gate, a function of `x` with values from 0 to 1.
/// Below these bounds the gates are 0 in every format. `x` is bounded by them before it is
/// multiplied with the gate, since `-inf * 0` is NaN.
pub(crate) const GELU_ZERO_BELOW: f64 = -40.0;
pub(crate) const GELU_TANH_ZERO_BELOW: f64 = -24.0;
pub(crate) const SILU_ZERO_BELOW: f64 = -1000.0;

/// Returns `max(x, bound)`. The derivative of a product with a gate ignores the bound, below which
/// the gate is 0.
pub(crate) fn bounded_below(g: &mut Graph, x: Id, bound: f64) -> Id {
    let bound = float(g, bound);
    binary(g, Binary::Max, x, bound)
}

/// Returns `x` times the distribution function of the normal distribution, by `erfc`, since `1 +
/// erf` would cancel below 0.
pub(crate) fn gelu(g: &mut Graph, x: Id) -> Id {
    let scaled_x = scaled(g, -FRAC_1_SQRT_2, x);
    let gate = unary(g, Unary::Erfc, scaled_x);
    let x = bounded_below(g, x, GELU_ZERO_BELOW);
    let half = scaled(g, 0.5, x);
    mul(g, half, gate)
}

/// Returns the approximation of `gelu` by `tanh`. Its gate `0.5 * (1 + tanh(u))` would cancel below
/// 0, so it is computed as `sigmoid(2 * u)`. The cubic `u` takes x clamped to [-24, 24] and can't
/// overflow; beyond, the gate is 0 or 1 in every format.
pub(crate) fn gelu_tanh(g: &mut Graph, x: Id) -> Id {
    let bounded = bounded_below(g, x, GELU_TANH_ZERO_BELOW);
    let (_, inner) = gelu_tanh_operands(g, bounded);
    let gate = unary(g, Unary::Sigmoid, inner);
    mul(g, bounded, gate)
}

/// Returns `x`, bounded from below, bounded from above as well, and the operand of `gelu_tanh`'s
/// `sigmoid`.
pub(crate) fn gelu_tanh_operands(g: &mut Graph, bounded: Id) -> (Id, Id) {
    let high = float(g, -GELU_TANH_ZERO_BELOW);
    let near = binary(g, Binary::Min, bounded, high);
    let squared = mul(g, near, near);
    let curve = scaled(g, 0.044_715, squared);
    let one = int(g, 1);
    let factor = add(g, one, curve);
    let cubic = mul(g, near, factor);
    (near, scaled(g, 2.0 * SQRT_2_OVER_PI, cubic))
}

pub(crate) fn silu(g: &mut Graph, x: Id) -> Id {
    let gate = unary(g, Unary::Sigmoid, x);
    let x = bounded_below(g, x, SILU_ZERO_BELOW);
    mul(g, x, gate)
}

/// Returns `log(1 + exp(x))`. Above 40 the result is `x`, exact to the last bit of a float64, and
/// the overflowing `exp` isn't selected. It has no kink, so that derivatives of derivatives are
/// right, too.
pub(crate) fn softplus(g: &mut Graph, x: Id) -> Id {
    let end = int(g, 40);
    let beyond = binary(g, Binary::Gt, x, end);
    let curve = log1p_exp(g, x);
    choose(g, beyond, x, curve)
}

fn log1p_exp(g: &mut Graph, x: Id) -> Id {
    let exp = unary(g, Unary::Exp, x);
    unary(g, Unary::Log1p, exp)
}

/// Returns `log(exp(a) + exp(b))`: the greater operand plus the other's contribution; for equal
/// infinities their mean, whose derivatives are those of equal numbers.
pub(crate) fn logaddexp(g: &mut Graph, a: Id, b: Id) -> Id {
    // As floats, since the difference of integers may wrap.
    let (a, b) = (scaled(g, 1.0, a), scaled(g, 1.0, b));
    let (difference, zero) = (sub(g, a, b), int(g, 0));
    let equal = binary(g, Binary::Eq, a, b);
    let finite = unary(g, Unary::IsFinite, a);
    let infinite = unary(g, Unary::Not, finite);
    let endless = binary(g, Binary::And, equal, infinite);
    let above = binary(g, Binary::Gt, difference, zero);
    let back = scaled(g, -1.0, difference);
    let (left, right) = (log1p_exp(g, back), log1p_exp(g, difference));
    let (left, right) = (add(g, a, left), add(g, b, right));
    let finite = choose(g, above, left, right);
    let sum = add(g, a, b);
    let mean = scaled(g, 0.5, sum);
    choose(g, endless, mean, finite)
}

/// Returns `sqrt(a * a + b * b)` without intermediate overflow or underflow; infinite if either is.
/// Both are divided by the power of two of the greater one, which is exact, and constant in
/// derivatives. At 0 and at infinity, where the square root has no derivative, it is a sum of
/// absolute values, whose derivatives are 0 and the limits.
pub(crate) fn hypot(g: &mut Graph, a: Id, b: Id) -> Id {
    let (a, b) = (scaled(g, 1.0, a), scaled(g, 1.0, b));
    let (long_a, long_b) = (unary(g, Unary::Abs, a), unary(g, Unary::Abs, b));
    let long = binary(g, Binary::Max, long_a, long_b);
    let exponent = unary(g, Unary::Log2, long);
    let exponent = unary(g, Unary::Floor, exponent);
    // One less for large numbers, since the rounded logarithm of the greatest number is that of
    // infinity.
    let (zero, one) = (int(g, 0), int(g, 1));
    let (large, less) = (binary(g, Binary::Gt, exponent, zero), sub(g, exponent, one));
    let exponent = choose(g, large, less, exponent);
    let power = exp2(g, exponent);
    let (short_a, short_b) = (div(g, a, power), div(g, b, power));
    let (square_a, square_b) = (mul(g, short_a, short_a), mul(g, short_b, short_b));
    let sum = add(g, square_a, square_b);
    let root = unary(g, Unary::Sqrt, sum);
    let length = mul(g, power, root);
    let infinity = float(g, f64::INFINITY);
    let endless_a = binary(g, Binary::Eq, long_a, infinity);
    let endless_b = binary(g, Binary::Eq, long_b, infinity);
    let both = add(g, long_a, long_b);
    let both = scaled(g, FRAC_1_SQRT_2, both);
    let without_a = choose(g, endless_b, long_b, both);
    let with_a = choose(g, endless_b, both, long_a);
    let edge = choose(g, endless_a, with_a, without_a);
    let endless = binary(g, Binary::Or, endless_a, endless_b);
    let none = binary(g, Binary::Eq, long, zero);
    let at_edge = binary(g, Binary::Or, endless, none);
    choose(g, at_edge, edge, length)
}

pub(crate) fn square(g: &mut Graph, x: Id) -> Id {
    mul(g, x, x)
}

pub(crate) fn reciprocal(g: &mut Graph, x: Id) -> Id {
    let one = int(g, 1);
    div(g, one, x)
}

pub(crate) fn clamp(g: &mut Graph, x: Id, low: Id, high: Id) -> Id {
    let above = binary(g, Binary::Max, x, low);
    binary(g, Binary::Min, above, high)
}

pub(crate) fn exp2(g: &mut Graph, x: Id) -> Id {
    let two = float(g, 2.0);
    binary(g, Binary::Pow, two, x)
}

/// Returns `exp(x) / 2` and `exp(-x) / 2`, each without early overflow.
fn half_exponentials(g: &mut Graph, x: Id) -> (Id, Id) {
    let halved = scaled(g, 0.5, x);
    let up = unary(g, Unary::Exp, halved);
    let down = reciprocal(g, up);
    let [up, down] = [up, down].map(|root| {
        let half = scaled(g, 0.5, root);
        mul(g, half, root)
    });
    (up, down)
}

pub(crate) fn cosh(g: &mut Graph, x: Id) -> Id {
    let (up, down) = half_exponentials(g, x);
    add(g, up, down)
}

/// Returns `sinh`, near 0 by `expm1`, since the difference of the exponentials would cancel.
pub(crate) fn sinh(g: &mut Graph, x: Id) -> Id {
    let (up, down) = half_exponentials(g, x);
    let far = sub(g, up, down);
    let t = unary(g, Unary::Expm1, x);
    let one = int(g, 1);
    let above = add(g, t, one);
    let ratio = div(g, t, above);
    let sum = add(g, t, ratio);
    let near = scaled(g, 0.5, sum);
    // As a float, since the least integer has no negative.
    let float = scaled(g, 1.0, x);
    let size = unary(g, Unary::Abs, float);
    let is_near = binary(g, Binary::Lt, size, one);
    choose(g, is_near, near, far)
}

pub(crate) fn tan(g: &mut Graph, x: Id) -> Id {
    let (sin, cos) = (unary(g, Unary::Sin, x), unary(g, Unary::Cos, x));
    div(g, sin, cos)
}

pub(crate) fn is_inf(g: &mut Graph, x: Id) -> Id {
    let size = unary(g, Unary::Abs, x);
    let infinity = float(g, f64::INFINITY);
    binary(g, Binary::Eq, size, infinity)
}

/// Returns whether a number is nonzero; a bool is unchanged.
pub(crate) fn to_bool(g: &mut Graph, x: Id) -> Id {
    if g.is_bool(x) {
        return x;
    }
    let no = g.add(Node::Literal(Literal::Bool(false)));
    binary(g, Binary::Ne, x, no)
}

pub(crate) fn logical(g: &mut Graph, op: Binary, a: Id, b: Id) -> Id {
    let (a, b) = (to_bool(g, a), to_bool(g, b));
    binary(g, op, a, b)
}

pub(crate) fn logical_not(g: &mut Graph, x: Id) -> Id {
    let x = to_bool(g, x);
    unary(g, Unary::Not, x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_truth_value_of_a_bool_adds_no_node() {
        let mut g = Graph::default();
        let x = g.add(Node::Input(0));
        let zero = int(&mut g, 0);
        let positive = binary(&mut g, Binary::Gt, x, zero);
        let both = logical(&mut g, Binary::And, positive, x);
        let neither = logical_not(&mut g, both);
        assert_eq!(to_bool(&mut g, neither), neither);
        assert_ne!(to_bool(&mut g, x), x);
    }
}
