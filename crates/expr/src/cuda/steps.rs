//! One step as a C expression.

use keyfold_core::{DType, DTypeKind};

use super::numbers::{computed, stored};
use crate::graph::{Binary, Unary};
use crate::lower::Step;

/// Groups of helper functions that a text may include.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Helper {
    /// Vectors, quotients, faults: always included.
    Launch,
    /// Integers.
    Integer,
    /// Halves.
    Half,
    /// Floats.
    Float,
    /// Complex numbers; includes floats.
    Complex,
}

impl Helper {
    /// All groups, dependencies first.
    pub(super) const ALL: [Helper; 5] =
        [Helper::Launch, Helper::Integer, Helper::Half, Helper::Float, Helper::Complex];

    /// Returns the name of the group's include guard, and its text.
    pub(super) fn text(self) -> (&'static str, &'static str) {
        match self {
            Helper::Launch => ("KF_LAUNCH", include_str!("helpers/launch.cuh")),
            Helper::Integer => ("KF_INTEGER", include_str!("helpers/integer.cuh")),
            Helper::Half => ("KF_HALF", include_str!("helpers/half.cuh")),
            Helper::Float => ("KF_FLOAT", include_str!("helpers/float.cuh")),
            Helper::Complex => ("KF_COMPLEX", include_str!("helpers/complex.cuh")),
        }
    }
}

/// The families of dtypes with functions of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Bool,
    Integer,
    Float,
    Complex,
}

fn family(dtype: DType) -> Family {
    match dtype.kind() {
        DTypeKind::Bool => Family::Bool,
        DTypeKind::UInt | DTypeKind::Int => Family::Integer,
        DTypeKind::Float => Family::Float,
        DTypeKind::Complex => Family::Complex,
    }
}

/// Returns `(type)value`, with the value converted to an element in memory.
pub(super) fn store(value: &str, dtype: DType) -> String {
    match dtype {
        DType::Bool => format!("(unsigned char)({value})"),
        DType::F16 => format!("kf_to_f16({value})"),
        DType::BF16 => format!("kf_to_bf16({value})"),
        _ => value.into(),
    }
}

/// Returns an element in memory, converted to a value.
pub(super) fn load(element: &str, dtype: DType) -> String {
    match dtype {
        DType::Bool => format!("({element} != 0)"),
        DType::F16 => format!("kf_from_f16({element})"),
        DType::BF16 => format!("kf_from_bf16({element})"),
        _ => element.into(),
    }
}

/// Calls `need` with the helpers that elements of the dtype use.
pub(super) fn helpers(dtype: DType, mut need: impl FnMut(Helper)) {
    match (dtype, dtype.kind()) {
        (DType::F16 | DType::BF16, _) => need(Helper::Half),
        (_, DTypeKind::UInt | DTypeKind::Int) => need(Helper::Integer),
        (_, DTypeKind::Float) => need(Helper::Float),
        (_, DTypeKind::Complex) => {
            need(Helper::Float);
            need(Helper::Complex);
        }
        _ => {}
    }
}

/// Returns the C expression of a function of one operand, `a`, of dtype `from`; `None` if it isn't
/// defined for that dtype.
pub(super) fn unary(op: Unary, step: &Step, from: DType, a: &str) -> Option<String> {
    use Family::{Bool, Complex, Float, Integer};
    let ty = computed(step.dtype);
    let call = |name: &str| format!("kf_{name}({a})");
    Some(match (op, family(from)) {
        (Unary::Neg, Integer) => format!("kf_sub(({ty})0, {a})"),
        (Unary::Neg, Float | Complex) => format!("-{a}"),
        (Unary::Not, Bool) => format!("!{a}"),
        (Unary::Not, Integer) => format!("({ty})~{a}"),
        (Unary::Abs, Integer) => format!("({ty})({a} < 0 ? kf_sub(({ty})0, {a}) : {a})"),
        (Unary::Abs, Complex) => call("length"),
        (Unary::Abs, Float) => call("fabs"),
        (Unary::Sign, Float | Complex) => call("signum"),
        (Unary::Sign, Integer) => call("sign"),
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

/// Returns the C expression of a function of two operands of dtype `from`; `None` if it isn't
/// defined for that dtype.
pub(super) fn binary(op: Binary, step: &Step, from: DType, a: &str, b: &str) -> Option<String> {
    use Family::{Bool, Complex, Float, Integer};
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
        (Binary::Add, Integer) => call("add"),
        (Binary::Sub, Integer) => call("sub"),
        (Binary::Mul, Integer) => call("mul"),
        (Binary::FloorDiv, Integer) => call("floordiv"),
        (Binary::Mod, Integer) => call("mod"),
        (Binary::Pow, Integer) => format!("kf_power({a}, {b}, FAULT)"),
        (Binary::Min, Integer) => format!("{a} < {b} ? {a} : {b}"),
        (Binary::Max, Integer) => format!("{a} > {b} ? {a} : {b}"),
        (Binary::And, Integer) => format!("({ty})({})", infix("&")),
        (Binary::Or, Integer) => format!("({ty})({})", infix("|")),
        (Binary::Xor, Integer) => format!("({ty})({})", infix("^")),
        (Binary::Shl, Integer) => call("shl"),
        (Binary::Shr, Integer) => call("shr"),
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
        (Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge, Integer | Float) => infix(op.name()),
        _ => return None,
    })
}

/// Returns the converted operand, of dtype `from`.
pub(super) fn cast(from: DType, to: DType, a: &str) -> String {
    let ty = computed(to);
    match (family(from), family(to)) {
        (Family::Complex, Family::Bool) => format!("kf_nonzero({a})"),
        (_, Family::Bool) => format!("{a} != 0"),
        (Family::Float, Family::Integer) => format!("kf_saturate<{}>({a})", stored(to)),
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

/// Returns an estimate of a step's text and registers, which vectors multiply.
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
