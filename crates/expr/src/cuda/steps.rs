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

/// A function of one operand, `a`, which has dtype `from`.
pub(super) fn unary(op: Unary, step: &Step, from: DType, a: &str) -> String {
    let ty = computed(step.dtype);
    let (bool_, whole, float, complex) = {
        let family = family(from);
        (
            family == Family::Bool,
            family == Family::Whole,
            family == Family::Float,
            family == Family::Complex,
        )
    };
    let call = |name: &str| format!("kf_{name}({a})");
    match op {
        Unary::Neg if whole => format!("kf_sub(({ty})0, {a})"),
        Unary::Neg => format!("-{a}"),
        Unary::Not if bool_ => format!("!{a}"),
        Unary::Not => format!("({ty})~{a}"),
        Unary::Abs if whole => format!("({ty})({a} < 0 ? kf_sub(({ty})0, {a}) : {a})"),
        Unary::Abs if complex => call("length"),
        Unary::Abs => call("fabs"),
        Unary::Sign if float => call("signum"),
        Unary::Sign => call("sign"),
        Unary::Round => call("rint"),
        Unary::IsNan if complex => call("isnan"),
        Unary::IsNan => format!("{a} != {a}"),
        Unary::IsFinite => call("isfinite"),
        Unary::Exp => call("exp"),
        Unary::Expm1 => call("expm1"),
        Unary::Log => call("log"),
        Unary::Log2 => call("log2"),
        Unary::Log10 => call("log10"),
        Unary::Log1p => call("log1p"),
        Unary::Sqrt => call("sqrt"),
        Unary::Rsqrt => call("rsqrt"),
        Unary::Sin => call("sin"),
        Unary::Cos => call("cos"),
        Unary::Tanh => call("tanh"),
        Unary::Sigmoid => call("sigmoid"),
        Unary::Erf => call("erf"),
        Unary::Erfc => call("erfc"),
        Unary::Floor => call("floor"),
        Unary::Ceil => call("ceil"),
        Unary::Trunc => call("trunc"),
    }
}

/// A function of two operands of dtype `from`.
pub(super) fn binary(op: Binary, step: &Step, from: DType, a: &str, b: &str) -> String {
    let ty = computed(step.dtype);
    let family = family(from);
    let (bool_, whole) = (family == Family::Bool, family == Family::Whole);
    let call = |name: &str| format!("kf_{name}({a}, {b})");
    let infix = |sign: &str| format!("{a} {sign} {b}");
    match op {
        Binary::Add | Binary::Max if bool_ => infix("||"),
        Binary::Mul | Binary::Min if bool_ => infix("&&"),
        Binary::Add if whole => call("add"),
        Binary::Sub if whole => call("sub"),
        Binary::Mul if whole => call("mul"),
        Binary::FloorDiv if whole => call("floordiv"),
        Binary::Mod if whole => call("mod"),
        Binary::Pow if whole => format!("kf_power({a}, {b}, FAULT)"),
        Binary::Min if whole => format!("{a} < {b} ? {a} : {b}"),
        Binary::Max if whole => format!("{a} > {b} ? {a} : {b}"),
        Binary::Shl => call("shl"),
        Binary::Shr => call("shr"),
        Binary::Add => infix("+"),
        Binary::Sub => infix("-"),
        Binary::Mul => infix("*"),
        Binary::Div => infix("/"),
        Binary::FloorDiv => call("quotient"),
        Binary::Mod => call("remainder"),
        Binary::Pow => call("pow"),
        Binary::Min => call("least"),
        Binary::Max => call("greatest"),
        Binary::And if bool_ => infix("&&"),
        Binary::Or if bool_ => infix("||"),
        Binary::Xor if bool_ => infix("!="),
        Binary::And => format!("({ty})({})", infix("&")),
        Binary::Or => format!("({ty})({})", infix("|")),
        Binary::Xor => format!("({ty})({})", infix("^")),
        Binary::Lt if bool_ => format!("!{a} && {b}"),
        Binary::Le if bool_ => format!("!{a} || {b}"),
        Binary::Gt if bool_ => format!("{a} && !{b}"),
        Binary::Ge if bool_ => format!("{a} || !{b}"),
        Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => {
            infix(op.name())
        }
    }
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
            Unary::Neg | Unary::Not | Unary::Abs | Unary::IsNan | Unary::IsFinite => 1,
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
