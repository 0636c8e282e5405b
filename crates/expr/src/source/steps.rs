//! One step as a C expression.

use keyfold_core::{DType, DTypeKind};

use super::numbers::computed;
use crate::graph::{Binary, Unary};
use crate::lower::Step;

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

/// Returns a value of dtype `from` (another one only beside halves), converted to an element in
/// memory.
pub(super) fn store(value: &str, from: DType, dtype: DType) -> String {
    match (dtype, from) {
        (DType::Bool, _) => format!("($U8)({value})"),
        (DType::F16 | DType::BF16, DType::F64) => format!("kf_to_{dtype}_{from}({value})"),
        (DType::F16 | DType::BF16, _) => format!("kf_to_{dtype}({value})"),
        _ => value.into(),
    }
}

/// Returns an element in memory, converted to a value.
pub(super) fn load(element: &str, dtype: DType) -> String {
    match dtype {
        DType::Bool => format!("({element} != 0)"),
        DType::F16 | DType::BF16 => format!("kf_from_{dtype}({element})"),
        _ => element.into(),
    }
}

/// Returns the C expression of a function of one operand, `a`, of dtype `from`; `None` if it isn't
/// defined for that dtype.
pub(super) fn unary(op: Unary, step: &Step, from: DType, a: &str) -> Option<String> {
    use Family::{Bool, Complex, Float, Integer};
    let ty = computed(step.dtype);
    // A helper of keyfold's, or a function that the target has for floats.
    let call = |name: &str| format!("kf_{name}_{from}({a})");
    let function = |name: &str| match from.is_complex() {
        true => call(name),
        false => format!("${name}{}({a})", 8 * from.size()),
    };
    Some(match (op, family(from)) {
        (Unary::Neg, Integer) => format!("kf_sub_{from}(({ty})0, {a})"),
        (Unary::Neg, Float) => format!("-{a}"),
        (Unary::Neg, Complex) => call("neg"),
        (Unary::Not, Bool) => format!("!{a}"),
        (Unary::Not, Integer) => format!("({ty})~{a}"),
        (Unary::Abs, Integer) => format!("{a} < 0 ? kf_sub_{from}(({ty})0, {a}) : {a}"),
        (Unary::Abs, Complex) => call("length"),
        (Unary::Abs, Float) => function("fabs"),
        (Unary::Sign, Float | Complex) => call("signum"),
        (Unary::Sign, Integer) => call("sign"),
        (Unary::Conj, Complex) => call("conj"),
        (Unary::Real, Complex) => format!("{a}.re"),
        (Unary::Imag, Complex) => format!("{a}.im"),
        (Unary::IsNan, Float) => format!("{a} != {a}"),
        (Unary::IsNan, Complex) => call("isnan"),
        (Unary::IsFinite, Float | Complex) => call("isfinite"),
        (Unary::Exp, Float | Complex) => function("exp"),
        (Unary::Log, Float | Complex) => function("log"),
        (Unary::Sqrt, Float | Complex) => function("sqrt"),
        (Unary::Rsqrt, Float | Complex) => function("rsqrt"),
        (Unary::Sin, Float | Complex) => function("sin"),
        (Unary::Cos, Float | Complex) => function("cos"),
        (Unary::Tanh, Float | Complex) => function("tanh"),
        (Unary::Expm1, Float) => function("expm1"),
        (Unary::Log2, Float) => function("log2"),
        (Unary::Log10, Float) => function("log10"),
        (Unary::Log1p, Float) => function("log1p"),
        (Unary::Sigmoid, Float) => call("sigmoid"),
        (Unary::Erf, Float) => function("erf"),
        (Unary::Erfc, Float) => function("erfc"),
        (Unary::Floor, Float) => function("floor"),
        (Unary::Ceil, Float) => function("ceil"),
        (Unary::Round, Float) => function("rint"),
        (Unary::Trunc, Float) => function("trunc"),
        _ => return None,
    })
}

/// Returns the C expression of a function of two operands of dtype `from`; `None` if it isn't
/// defined for that dtype.
pub(super) fn binary(op: Binary, step: &Step, from: DType, a: &str, b: &str) -> Option<String> {
    use Family::{Bool, Complex, Float, Integer};
    let ty = computed(step.dtype);
    let call = |name: &str| format!("kf_{name}_{from}({a}, {b})");
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
        (Binary::Pow, Integer) => format!("kf_power_{from}({a}, {b}, FAULT)"),
        (Binary::Min, Integer) => format!("{a} < {b} ? {a} : {b}"),
        (Binary::Max, Integer) => format!("{a} > {b} ? {a} : {b}"),
        (Binary::And, Integer) => format!("({ty})({})", infix("&")),
        (Binary::Or, Integer) => format!("({ty})({})", infix("|")),
        (Binary::Xor, Integer) => format!("({ty})({})", infix("^")),
        (Binary::Shl, Integer) => call("shl"),
        (Binary::Shr, Integer) => call("shr"),
        (Binary::Add, Float) => infix("+"),
        (Binary::Sub, Float) => infix("-"),
        (Binary::Mul, Float) => infix("*"),
        (Binary::Div, Float) => infix("/"),
        (Binary::Pow, Float) => format!("$pow{}({a}, {b})", 8 * from.size()),
        (Binary::Add, Complex) => call("add"),
        (Binary::Sub, Complex) => call("sub"),
        (Binary::Mul, Complex) => call("mul"),
        (Binary::Div, Complex) => call("div"),
        (Binary::Pow, Complex) => call("pow"),
        (Binary::Eq, Complex) => call("equal"),
        (Binary::Ne, Complex) => format!("!{}", call("equal")),
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
    let (ty, part) = (computed(to), computed(to.real()));
    match (family(from), family(to)) {
        (Family::Complex, Family::Bool) => format!("kf_nonzero_{from}({a})"),
        (_, Family::Bool) => format!("{a} != 0"),
        (Family::Float, Family::Integer) => format!("kf_saturate_{to}_{from}({a})"),
        (Family::Complex, Family::Complex) => {
            format!("kf_make_{to}(({part}){a}.re, ({part}){a}.im)")
        }
        (_, Family::Complex) => format!("kf_make_{to}(({part}){a}, ({part})0)"),
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
