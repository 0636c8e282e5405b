//! Groups of helper functions that a text may include, written once for all targets and dtypes.

use keyfold_core::{DType, DTypeKind, Scalar};

use super::numbers::literal;
use super::target::{Target, Words, spell};
use crate::lower::{Lowered, StepOp};

/// A group of functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Helper {
    /// Alignment, quotients, faults.
    Launch,
    /// The sizes and strides of an input of this rank.
    Ranked(u32),
    /// Integers.
    Integer(DType),
    /// Halves.
    Half,
    /// float64 rounded to halves.
    HalfOfDouble,
    /// Floats.
    Float(DType),
    /// Floats, the second, converted to integers, the first.
    Saturate(DType, DType),
    /// Complex numbers.
    Complex(DType),
}

/// Returns the groups that a kernel needs, dependencies first.
pub(super) fn needed(lowered: &Lowered) -> Vec<Helper> {
    let mut all = vec![Helper::Launch];
    let mut need = |helper| {
        if !all.contains(&helper) {
            all.push(helper);
        }
    };
    lowered
        .ranks()
        .iter()
        .flatten()
        .filter(|rank| **rank > 0)
        .for_each(|r| need(Helper::Ranked(*r)));
    let steps = lowered.steps();
    let stored = lowered.inputs().iter().copied().chain([lowered.result()]);
    for dtype in steps.iter().map(|step| step.dtype).chain(stored) {
        match (dtype, dtype.kind()) {
            (DType::F16 | DType::BF16, _) => need(Helper::Half),
            (_, DTypeKind::UInt | DTypeKind::Int) => need(Helper::Integer(dtype)),
            (_, DTypeKind::Float) => need(Helper::Float(dtype)),
            (_, DTypeKind::Complex) => {
                need(Helper::Float(dtype.real()));
                need(Helper::Complex(dtype));
            }
            (_, DTypeKind::Bool) => {}
        }
    }
    for step in steps {
        match step.op {
            StepOp::Cast(a) if step.dtype.is_integral() => {
                let from = steps[a.index()].dtype;
                if from.is_floating() {
                    need(Helper::Saturate(step.dtype, from));
                }
            }
            StepOp::Round(_, a) => {
                need(Helper::Half);
                if steps[a.index()].dtype == DType::F64 {
                    need(Helper::HalfOfDouble);
                }
            }
            _ => {}
        }
    }
    all
}

/// Returns the numbers between which the functions of complex numbers don't scale, and the scales,
/// for parts of this dtype.
fn complex_limits(part: DType) -> Vec<(&'static str, String)> {
    let (greatest, normal, digits, exp_limit): (f64, f64, i32, f64) = match part {
        DType::F32 => (f32::MAX.into(), f32::MIN_POSITIVE.into(), 24, 80.0),
        _ => (f64::MAX, f64::MIN_POSITIVE, 53, 700.0),
    };
    let up = 4_f64.powi(digits);
    let limits = [
        ("INFINITE", f64::INFINITY),
        // A quarter of the greatest number, and the least normal one.
        ("QUARTER", greatest / 4.0),
        ("NORMAL", normal),
        // Products with smaller numbers may have few digits, and those with UP times them have all.
        ("FEW", normal * up),
        ("UP", up),
        ("LOGUP", up.ln()),
        ("DOWN", 0.5_f64.powi(digits)),
        ("LOG4", 4_f64.ln()),
        // Above it, exponentials are computed as two factors.
        ("EXPLIMIT", exp_limit),
    ];
    limits.map(|(name, value)| (name, literal(Scalar::Float(value), part))).into()
}

impl Helper {
    /// Returns the group's text, with an include guard.
    pub(super) fn text(self, target: Target) -> String {
        let mut words = Words::default();
        let (guard, text) = match self {
            Helper::Launch => ("LAUNCH".into(), include_str!("launch.c").into()),
            Helper::Ranked(rank) => {
                words.constants = vec![("RANK", rank.to_string())];
                (format!("RANKED_{rank}"), include_str!("ranked.c").into())
            }
            Helper::Integer(dtype) => {
                let wide = if dtype.size() == 8 { DType::U64 } else { DType::U32 };
                words.dtypes = vec![("T", dtype), ("U", wide)];
                words.constants = vec![("BITS", format!("{}u", 8 * dtype.size()))];
                let signs = match dtype.kind() {
                    DTypeKind::Int => include_str!("signed.c"),
                    _ => include_str!("unsigned.c"),
                };
                let text = [signs, "\n", include_str!("integer.c")].concat();
                (format!("INTEGER_{dtype}"), text)
            }
            Helper::Half => ("HALF".into(), include_str!("half.c").into()),
            Helper::HalfOfDouble => {
                ("HALF_OF_DOUBLE".into(), include_str!("half_of_double.c").into())
            }
            Helper::Float(dtype) => {
                words.dtypes = vec![("F", dtype)];
                let greatest = if dtype == DType::F32 { f32::MAX.into() } else { f64::MAX };
                words.constants = vec![("FINITE", literal(Scalar::Float(greatest), dtype))];
                (format!("FLOAT_{dtype}"), include_str!("float.c").into())
            }
            Helper::Saturate(to, from) => {
                words.dtypes = vec![("T", to), ("F", from)];
                let (least, greatest) = to.int_range().unwrap_or_default();
                let float = |value: i128| literal(Scalar::Float(value as f64), from);
                let integer = |value: i128| match to.kind() {
                    DTypeKind::Int => literal(Scalar::Int(value as i64), to),
                    _ => literal(Scalar::UInt(value as u64), to),
                };
                words.constants = vec![
                    ("START", float(least)),
                    ("END", float(greatest + 1)),
                    ("LEAST", integer(least)),
                    ("GREATEST", integer(greatest)),
                ];
                (format!("SATURATE_{to}_{from}"), include_str!("saturate.c").into())
            }
            Helper::Complex(dtype) => {
                words.dtypes = vec![("C", dtype), ("F", dtype.real())];
                words.constants = complex_limits(dtype.real());
                (format!("COMPLEX_{dtype}"), include_str!("complex.c").into())
            }
        };
        let text: String = text;
        format!(
            "#ifndef KF_{guard}\n#define KF_{guard}\n{}#endif\n\n",
            spell(&text, target, &words)
        )
    }
}
