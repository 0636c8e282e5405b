//! Pointwise operations: modes and their attributes.

use serde::{Deserialize, Serialize};

use crate::Float;

/// What a pointwise operation computes of each element.
///
/// Forward modes read `x`, then `b`, then `t`; backward ones read `dy` and the forward's input `x`, and
/// write `dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the table below says each formula")]
pub enum PointwiseMode {
    Identity,
    Abs,
    Ceil,
    Cos,
    Erf,
    Exp,
    Floor,
    Log,
    Neg,
    Reciprocal,
    Rsqrt,
    Sin,
    Sqrt,
    Tan,
    LogicalNot,
    Relu,
    Tanh,
    Sigmoid,
    Elu,
    Gelu,
    GeluApproxTanh,
    Softplus,
    Swish,
    GenIndex,
    Add,
    AddSquare,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    Mod,
    FloorMod,
    Pow,
    Atan2,
    CmpEq,
    CmpNeq,
    CmpGt,
    CmpGe,
    CmpLt,
    CmpLe,
    LogicalAnd,
    LogicalOr,
    BinarySelect,
    ReluBackward,
    TanhBackward,
    SigmoidBackward,
    EluBackward,
    GeluBackward,
    GeluApproxTanhBackward,
    SoftplusBackward,
    SwishBackward,
}

/// Inputs of a mode: how many, and whether they are `dy` and `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arity {
    One,
    Two,
    Three,
    Backward,
}

use PointwiseMode as M;

/// Each mode with its name, its inputs, and its formula.
const TABLE: [(PointwiseMode, &str, Arity, &str); 52] = [
    (M::Identity, "identity", Arity::One, "x"),
    (M::Abs, "abs", Arity::One, "|x|"),
    (M::Ceil, "ceil", Arity::One, "ceil(x)"),
    (M::Cos, "cos", Arity::One, "cos(x)"),
    (M::Erf, "erf", Arity::One, "erf(x)"),
    (M::Exp, "exp", Arity::One, "exp(x)"),
    (M::Floor, "floor", Arity::One, "floor(x)"),
    (M::Log, "log", Arity::One, "log(x)"),
    (M::Neg, "neg", Arity::One, "-x"),
    (M::Reciprocal, "reciprocal", Arity::One, "1 / x"),
    (M::Rsqrt, "rsqrt", Arity::One, "1 / sqrt(x)"),
    (M::Sin, "sin", Arity::One, "sin(x)"),
    (M::Sqrt, "sqrt", Arity::One, "sqrt(x)"),
    (M::Tan, "tan", Arity::One, "tan(x)"),
    (M::LogicalNot, "logical_not", Arity::One, "not x"),
    (
        M::Relu,
        "relu",
        Arity::One,
        "min(x, upper_clip) above lower_clip, else lower_clip + slope (x - lower_clip)",
    ),
    (M::Tanh, "tanh", Arity::One, "tanh(x)"),
    (M::Sigmoid, "sigmoid", Arity::One, "1 / (1 + exp(-x))"),
    (M::Elu, "elu", Arity::One, "x above 0, else elu_alpha (exp(x) - 1)"),
    (M::Gelu, "gelu", Arity::One, "x (1 + erf(x / sqrt(2))) / 2"),
    (
        M::GeluApproxTanh,
        "gelu_approx_tanh",
        Arity::One,
        "x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2",
    ),
    (M::Softplus, "softplus", Arity::One, "log(1 + exp(softplus_beta x)) / softplus_beta"),
    (M::Swish, "swish", Arity::One, "x / (1 + exp(-swish_beta x))"),
    (M::GenIndex, "gen_index", Arity::One, "the element's index along `axis`"),
    (M::Add, "add", Arity::Two, "alpha1 x + alpha2 b"),
    (M::AddSquare, "add_square", Arity::Two, "x + b^2"),
    (M::Sub, "sub", Arity::Two, "alpha1 x - alpha2 b"),
    (M::Mul, "mul", Arity::Two, "alpha1 x alpha2 b"),
    (M::Div, "div", Arity::Two, "x / b"),
    (M::Max, "max", Arity::Two, "the greater of x and b"),
    (M::Min, "min", Arity::Two, "the less of x and b"),
    (M::Mod, "mod", Arity::Two, "the remainder of x / b with the sign of x"),
    (M::FloorMod, "floor_mod", Arity::Two, "the remainder of x / b with the sign of b"),
    (M::Pow, "pow", Arity::Two, "x ^ b"),
    (M::Atan2, "atan2", Arity::Two, "the angle of the point (b, x)"),
    (M::CmpEq, "cmp_eq", Arity::Two, "x == b"),
    (M::CmpNeq, "cmp_neq", Arity::Two, "x != b"),
    (M::CmpGt, "cmp_gt", Arity::Two, "x > b"),
    (M::CmpGe, "cmp_ge", Arity::Two, "x >= b"),
    (M::CmpLt, "cmp_lt", Arity::Two, "x < b"),
    (M::CmpLe, "cmp_le", Arity::Two, "x <= b"),
    (M::LogicalAnd, "logical_and", Arity::Two, "x and b"),
    (M::LogicalOr, "logical_or", Arity::Two, "x or b"),
    (M::BinarySelect, "binary_select", Arity::Three, "x where t, else b"),
    (
        M::ReluBackward,
        "relu_backward",
        Arity::Backward,
        "dy where x is between the clips, slope dy below",
    ),
    (M::TanhBackward, "tanh_backward", Arity::Backward, "dy (1 - tanh(x)^2)"),
    (M::SigmoidBackward, "sigmoid_backward", Arity::Backward, "dy s (1 - s), s the sigmoid of x"),
    (M::EluBackward, "elu_backward", Arity::Backward, "dy above 0, else dy elu_alpha exp(x)"),
    (M::GeluBackward, "gelu_backward", Arity::Backward, "dy times gelu's derivative at x"),
    (
        M::GeluApproxTanhBackward,
        "gelu_approx_tanh_backward",
        Arity::Backward,
        "dy times its derivative at x",
    ),
    (
        M::SoftplusBackward,
        "softplus_backward",
        Arity::Backward,
        "dy times softplus's derivative at x",
    ),
    (M::SwishBackward, "swish_backward", Arity::Backward, "dy times swish's derivative at x"),
];

impl PointwiseMode {
    /// Returns all modes, in declaration order.
    pub fn all() -> impl Iterator<Item = PointwiseMode> {
        TABLE.iter().map(|row| row.0)
    }

    /// Returns its name, as in JSON and in the builder.
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Returns what it computes, as a formula of `x`, `b`, `t` or of `dy` and `x`.
    pub const fn formula(self) -> &'static str {
        TABLE[self as usize].3
    }

    pub(crate) const fn arity(self) -> Arity {
        TABLE[self as usize].2
    }

    /// Returns whether it is the gradient of an activation.
    pub fn is_backward(self) -> bool {
        self.arity() == Arity::Backward
    }

    /// Returns whether its results are truth values.
    pub fn is_logical(self) -> bool {
        (M::CmpEq..=M::LogicalOr).contains(&self) || self == M::LogicalNot
    }
}

/// The attributes of a pointwise operation. Those that aren't in the formula of its mode keep their
/// defaults: the validator refuses others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pointwise {
    /// The function.
    pub mode: PointwiseMode,
    /// The factor of the first input.
    #[serde(default = "one")]
    pub alpha1: Float,
    /// The factor of the second input.
    #[serde(default = "one")]
    pub alpha2: Float,
    /// The least value of relu.
    #[serde(default = "zero")]
    pub relu_lower_clip: Float,
    /// The greatest value of relu.
    #[serde(default = "infinity")]
    pub relu_upper_clip: Float,
    /// The slope of relu below its lower clip.
    #[serde(default = "zero")]
    pub relu_lower_clip_slope: Float,
    /// The factor of elu below 0.
    #[serde(default = "one")]
    pub elu_alpha: Float,
    /// The sharpness of softplus.
    #[serde(default = "one")]
    pub softplus_beta: Float,
    /// The sharpness of swish.
    #[serde(default = "one")]
    pub swish_beta: Float,
    /// The dimension whose index `gen_index` gives; needed there alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axis: Option<i64>,
}

fn one() -> Float {
    Float(1.0)
}

fn zero() -> Float {
    Float(0.0)
}

fn infinity() -> Float {
    Float(f64::INFINITY)
}

impl Pointwise {
    /// Returns the first attribute that isn't its default and isn't one of the mode, with its
    /// value.
    pub(crate) fn foreign(&self) -> Option<(&'static str, String)> {
        let Pointwise {
            mode,
            alpha1,
            alpha2,
            relu_lower_clip,
            relu_upper_clip,
            relu_lower_clip_slope,
            elu_alpha,
            softplus_beta,
            swish_beta,
            axis,
        } = self;
        let is_scaled = matches!(mode, M::Add | M::Sub | M::Mul);
        let is_relu = matches!(mode, M::Relu | M::ReluBackward);
        let floats = [
            ("alpha1", alpha1, one(), is_scaled),
            ("alpha2", alpha2, one(), is_scaled),
            ("relu_lower_clip", relu_lower_clip, zero(), is_relu),
            ("relu_upper_clip", relu_upper_clip, infinity(), is_relu),
            ("relu_lower_clip_slope", relu_lower_clip_slope, zero(), is_relu),
            ("elu_alpha", elu_alpha, one(), matches!(mode, M::Elu | M::EluBackward)),
            (
                "softplus_beta",
                softplus_beta,
                one(),
                matches!(mode, M::Softplus | M::SoftplusBackward),
            ),
            ("swish_beta", swish_beta, one(), matches!(mode, M::Swish | M::SwishBackward)),
        ];
        let foreign =
            floats.into_iter().find(|(_, value, default, is_of)| !is_of && *value != default);
        let axis = axis.filter(|_| *mode != M::GenIndex);
        foreign
            .map(|(name, value, ..)| (name, value.0.to_string()))
            .or(axis.map(|axis| ("axis", axis.to_string())))
    }

    /// Makes the attributes of a mode, with cuDNN's defaults.
    pub fn new(mode: PointwiseMode) -> Pointwise {
        Pointwise {
            mode,
            alpha1: one(),
            alpha2: one(),
            relu_lower_clip: zero(),
            relu_upper_clip: infinity(),
            relu_lower_clip_slope: zero(),
            elu_alpha: one(),
            softplus_beta: one(),
            swish_beta: one(),
            axis: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_declaration_order_under_the_names_of_json() {
        for (index, mode) in PointwiseMode::all().enumerate() {
            assert_eq!(mode as usize, index);
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
        }
    }
}
