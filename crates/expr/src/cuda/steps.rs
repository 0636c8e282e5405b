//! One step as one expression in C.

use keyfold_core::{DType, DTypeKind};

use super::numbers::{computed, stored};
use crate::graph::{Binary, Unary};
use crate::lower::Step;

/// Functions that a text may need.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Helper {
    /// Vectors, quotients, faults: always there.
    Launch,
    /// Whole numbers.
    Whole,
    /// Halves.
    Half,
    /// Floats.
    Float,
    /// Complex numbers; needs floats.
    Complex,
}

impl Helper {
    /// Each after those that it needs.
    pub(super) const ALL: [Helper; 5] =
        [Helper::Launch, Helper::Whole, Helper::Half, Helper::Float, Helper::Complex];

    /// The name of its guard, and its text.
    pub(super) fn text(self) -> (&'static str, &'static str) {
        match self {
            Helper::Launch => ("KF_LAUNCH", include_str!("helpers/launch.cuh")),
            Helper::Whole => ("KF_WHOLE", include_str!("helpers/whole.cuh")),
            Helper::Half => ("KF_HALF", include_str!("helpers/half.cuh")),
            Helper::Float => ("KF_FLOAT", include_str!("helpers/float.cuh")),
            Helper::Complex => ("KF_COMPLEX", include_str!("helpers/complex.cuh")),
        }
    }
}

/// What has functions of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Bool,
    Whole,
    Float,
    Complex,
}

fn family(dtype: DType) -> Family {
    match dtype.kind() {
        DTypeKind::Bool => Family::Bool,
        DTypeKind::UInt | DTypeKind::Int => Family::Whole,
        DTypeKind::Float => Family::Float,
        DTypeKind::Complex => Family::Complex,
    }
}

/// `(type)value`, with the value converted to an element in memory.
pub(super) fn store(value: &str, dtype: DType) -> String {
    match dtype {
        DType::Bool => format!("(unsigned char)({value})"),
        DType::F16 => format!("kf_to_f16({value})"),
        DType::BF16 => format!("kf_to_bf16({value})"),
        _ => value.into(),
    }
}

/// An element in memory as a value.
pub(super) fn load(element: &str, dtype: DType) -> String {
    match dtype {
        DType::Bool => format!("({element} != 0)"),
        DType::F16 => format!("kf_from_f16({element})"),
        DType::BF16 => format!("kf_from_bf16({element})"),
        _ => element.into(),
    }
}

/// The helpers that elements of the dtype need.
pub(super) fn helpers(dtype: DType, mut need: impl FnMut(Helper)) {
    match (dtype, dtype.kind()) {
        (DType::F16 | DType::BF16, _) => need(Helper::Half),
        (_, DTypeKind::UInt | DTypeKind::Int) => need(Helper::Whole),
        (_, DTypeKind::Float) => need(Helper::Float),
        (_, DTypeKind::Complex) => {
            need(Helper::Float);
            need(Helper::Complex);
        }
        _ => {}
    }
}

/// A function of one operand, `a`, which has dtype `from`; nothing if it isn't defined for that.
pub(super) fn unary(op: Unary, step: &Step, from: DType, a: &str) -> Option<String> {
    use Family::{Bool, Complex, Float, Whole};
    let ty = computed(step.dtype);
    let call = |name: &str| format!("kf_{name}({a})");
    Some(match (op, family(from)) {
        (Unary::Neg, Whole) => format!("kf_sub(({ty})0, {a})"),
        (Unary::Neg, Float | Complex) => format!("-{a}"),
        (Unary::Not, Bool) => format!("!{a}"),
        (Unary::Not, Whole) => format!("({ty})~{a}"),
        (Unary::Abs, Whole) => format!("({ty})({a} < 0 ? kf_sub(({ty})0, {a}) : {a})"),
        (Unary::Abs, Complex) => call("length"),
        (Unary::Abs, Float) => call("fabs"),
        (Unary::Sign, Float | Complex) => call("signum"),
        (Unary::Sign, Whole) => call("sign"),
        (Unary::Conj, Complex) => call("conj"),
        (Unary::Real, Complex) => format!("{a}.re"),
        (Unary::Imag, Complex) => format!("{a}.im"),
        (Unary::IsNan, Float) => format!("{a} != {a}"),
        (Unary::IsNan, Complex) => call("isnan"),
        (Unary::IsFinite, Float | Complex) => call("isfinite"),
        (Unary::Exp, Float | Complex) => call("exp"),
        (Unary::Log, Float | Complex) => call("log"),
        (Unary::Sqrt, Float | Complex) => call("sqrt"),
        (Unary::Rsqrt, Float | Complex) => call("rsqrt"),
        (Unary::Sin, Float | Complex) => call("sin"),
        (Unary::Cos, Float | Complex) => call("cos"),
        (Unary::Tanh, Float | Complex) => call("tanh"),
        (Unary::Expm1, Float) => call("expm1"),
        (Unary::Log2, Float) => call("log2"),
        (Unary::Log10, Float) => call("log10"),
        (Unary::Log1p, Float) => call("log1p"),
        (Unary::Sigmoid, Float) => call("sigmoid"),
        (Unary::Erf, Float) => call("erf"),
        (Unary::Erfc, Float) => call("erfc"),
        (Unary::Floor, Float) => call("floor"),
        (Unary::Ceil, Float) => call("ceil"),
        (Unary::Round, Float) => call("rint"),
        (Unary::Trunc, Float) => call("trunc"),
        _ => return None,
    })
}

/// A function of two operands of dtype `from`; nothing if it isn't defined for that.
pub(super) fn binary(op: Binary, step: &Step, from: DType, a: &str, b: &str) -> Option<String> {
    use Family::{Bool, Complex, Float, Whole};
    let ty = computed(step.dtype);
    let call = |name: &str| format!("kf_{name}({a}, {b})");
    let infix = |sign: &str| format!("{a} {sign} {b}");
    Some(match (op, family(from)) {
        (Binary::Add | Binary::Max | Binary::Or, Bool) => infix("||"),
        (Binary::Mul | Binary::Min | Binary::And, Bool) => infix("&&"),
        (Binary::Xor, Bool) => infix("!="),
        (Binary::Lt, Bool) => format!("!{a} && {b}"),
        (Binary::Le, Bool) => format!("!{a} || {b}"),
        (Binary::Gt, Bool) => format!("{a} && !{b}"),
        (Binary::Ge, Bool) => format!("{a} || !{b}"),
        (Binary::Add, Whole) => call("add"),
        (Binary::Sub, Whole) => call("sub"),
        (Binary::Mul, Whole) => call("mul"),
        (Binary::FloorDiv, Whole) => call("floordiv"),
        (Binary::Mod, Whole) => call("mod"),
        (Binary::Pow, Whole) => format!("kf_power({a}, {b}, FAULT)"),
        (Binary::Min, Whole) => format!("{a} < {b} ? {a} : {b}"),
        (Binary::Max, Whole) => format!("{a} > {b} ? {a} : {b}"),
        (Binary::And, Whole) => format!("({ty})({})", infix("&")),
        (Binary::Or, Whole) => format!("({ty})({})", infix("|")),
        (Binary::Xor, Whole) => format!("({ty})({})", infix("^")),
        (Binary::Shl, Whole) => call("shl"),
        (Binary::Shr, Whole) => call("shr"),
        (Binary::Add, Float | Complex) => infix("+"),
        (Binary::Sub, Float | Complex) => infix("-"),
        (Binary::Mul, Float | Complex) => infix("*"),
        (Binary::Div, Float | Complex) => infix("/"),
        (Binary::Pow, Float | Complex) => call("pow"),
        (Binary::FloorDiv, Float) => call("quotient"),
        (Binary::Mod, Float) => call("remainder"),
        (Binary::Min, Float) => call("least"),
        (Binary::Max, Float) => call("greatest"),
        (Binary::Eq | Binary::Ne, _) => infix(op.name()),
        (Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge, Whole | Float) => infix(op.name()),
        _ => return None,
    })
}

/// The operand, of dtype `from`, converted.
pub(super) fn cast(from: DType, to: DType, a: &str) -> String {
    let ty = computed(to);
    match (family(from), family(to)) {
        (Family::Complex, Family::Bool) => format!("kf_nonzero({a})"),
        (_, Family::Bool) => format!("{a} != 0"),
        (Family::Float, Family::Whole) => format!("kf_saturate<{}>({a})", stored(to)),
        (Family::Complex, Family::Complex) => {
            let part = computed(to.real());
            format!("{ty}{{({part}){a}.re, ({part}){a}.im}}")
        }
        (_, Family::Complex) => {
            let part = computed(to.real());
            format!("{ty}{{({part}){a}, ({part})0}}")
        }
        _ => format!("({ty}){a}"),
    }
}

/// How much text, and how many registers, about: what vectors multiply.
pub(super) fn cost(step: &Step) -> u32 {
    use crate::lower::StepOp;
    let complex = if step.dtype.is_complex() { 4 } else { 1 };
    match &step.op {
        StepOp::Constant(_) | StepOp::Input(_) | StepOp::Param { .. } | StepOp::Index => 0,
        _ if step.uniform => 0,
        StepOp::Coordinate(_) | StepOp::At { .. } => 12,
        StepOp::Unary(op, _) => match op {
            Unary::Neg
            | Unary::Not
            | Unary::Abs
            | Unary::Conj
            | Unary::Real
            | Unary::Imag
            | Unary::IsNan
            | Unary::IsFinite => 1,
            Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => 2,
            Unary::Sin | Unary::Cos => 80,
            _ => 24 * complex,
        },
        StepOp::Binary(op, ..) => match op {
            Binary::Pow => 60 * complex,
            Binary::FloorDiv | Binary::Mod => 40,
            Binary::Div => 12 * complex,
            _ => complex,
        },
        StepOp::Where(..) | StepOp::Cast(_) => 2,
        StepOp::Round(..) => 12,
    }
}
