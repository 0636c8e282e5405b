//! Lowering of an expression's steps to the graph of primitives.

use keyfold_core::{DType, DTypeKind, Element, Result, Scalar};
use keyfold_expr::{Binary, Lowered, Step, StepId, StepOp, Unary, computed, undefined};

use super::OUT_OF_RANGE;
use super::complex::{Pair, pair};
use super::graph::{CallNumber, ComplexPart, Graph, Node};
use super::value::Value;

/// The value of a step.
#[derive(Clone, Copy)]
pub(super) enum StepValue<'g> {
    Real(Value<'g>),
    Complex(Pair<'g>),
}
use StepValue::{Complex as C, Real as R};

/// The lowering in progress.
struct PrimitiveLowering<'g, 'l> {
    graph: &'g Graph,
    lowered: &'l Lowered,
    /// Whether functions of complex64 are computed in float64.
    wide: bool,
    lanes: Vec<StepValue<'g>>,
}

/// Adds the nodes of an expression. Returns the result in the dtype in which it is stored.
///
/// # Errors
/// [`ErrorKind::DType`](keyfold_core::ErrorKind) for a step without a formula.
pub(super) fn lower<'g>(graph: &'g Graph, lowered: &Lowered, wide: bool) -> Result<StepValue<'g>> {
    let mut to = PrimitiveLowering { graph, lowered, wide, lanes: Vec::new() };
    for step in lowered.steps() {
        let value = to.step(step)?;
        to.lanes.push(value);
    }
    let last = to.lanes.last().copied();
    let result = lowered.result();
    match last {
        Some(C(value)) => Ok(C(value)),
        Some(R(value)) => Ok(R(stored(value, result))),
        None => Err(undefined("an expression without steps", result, "it has no result")),
    }
}

/// Returns the value as stored: halves are rounded, unless they are already.
fn stored(value: Value<'_>, dtype: DType) -> Value<'_> {
    if let Node::Apply { primitive: super::Primitive::Cast, operands, .. } = value.graph.node(value)
    {
        let before = value.graph.value(operands[0]);
        if before.dtype == dtype && dtype != value.dtype {
            return before;
        }
    }
    value.cast(dtype)
}

/// Returns the bits of a number as an element of a real dtype; for a complex one, of a part.
pub(super) fn number_bits(number: Scalar, dtype: DType, part: ComplexPart) -> u64 {
    let number = match part {
        ComplexPart::Whole => number,
        ComplexPart::Real => Scalar::Float(number.as_complex().re),
        ComplexPart::Imaginary => Scalar::Float(number.as_complex().im),
    };
    match dtype {
        DType::Bool => u64::from(number.is_nonzero()),
        DType::U8 => u64::from(number.to::<u8>()),
        DType::U16 => u64::from(number.to::<u16>()),
        DType::U32 => u64::from(number.to::<u32>()),
        DType::U64 => number.to::<u64>(),
        DType::I8 => u64::from(number.to::<i8>().cast_unsigned()),
        DType::I16 => u64::from(number.to::<i16>().cast_unsigned()),
        DType::I32 => u64::from(number.to::<i32>().cast_unsigned()),
        DType::I64 => number.to::<i64>().cast_unsigned(),
        DType::F32 => u64::from(number.to::<f32>().to_bits()),
        _ => number.as_f64().to_bits(),
    }
}

/// Converts a parameter to an element of `to`.
pub(super) fn rounded(number: Scalar, to: DType) -> Scalar {
    match to {
        DType::F16 => number.to::<keyfold_core::f16>().to_scalar(),
        DType::BF16 => number.to::<keyfold_core::bf16>().to_scalar(),
        _ => number,
    }
}

impl<'g> PrimitiveLowering<'g, '_> {
    fn value(&self, id: StepId) -> StepValue<'g> {
        self.lanes[id.index()]
    }

    /// Returns a value of both parts for a complex dtype, else of the whole.
    fn parts(&self, dtype: DType, f: impl Fn(ComplexPart, DType) -> Value<'g>) -> StepValue<'g> {
        match dtype.is_complex() {
            true => {
                C(pair(f(ComplexPart::Real, dtype.real()), f(ComplexPart::Imaginary, dtype.real())))
            }
            false => R(f(ComplexPart::Whole, dtype)),
        }
    }

    fn step(&self, step: &Step) -> Result<StepValue<'g>> {
        let graph = self.graph;
        Ok(match &step.op {
            StepOp::Constant(number) => self.parts(step.dtype, |part, dtype| {
                graph.constant(number_bits(*number, dtype, part), dtype)
            }),
            StepOp::Input(input) => {
                let dtype = self.lowered.inputs()[*input as usize];
                widened(self.parts(dtype, |part, dtype| graph.input(*input, part, dtype)))
            }
            StepOp::Param { index, to } => self.parts(step.dtype, |part, dtype| {
                graph.number(CallNumber::Param { index: *index, to: *to, part }, dtype)
            }),
            StepOp::Index => R(graph.iota(None)),
            StepOp::Coordinate(dim) => R(graph.iota(Some(*dim))),
            StepOp::At { input, indices } => {
                let place = self.place(*input, indices);
                let dtype = self.lowered.inputs()[*input as usize];
                widened(
                    self.parts(dtype, |part, dtype| graph.gather(*input, part, dtype, place.id)),
                )
            }
            StepOp::Unary(op, a) => match self.value(*a) {
                R(a) => R(unary(*op, a)?),
                C(a) => self.complex_unary(*op, a)?,
            },
            StepOp::Binary(op, a, b) => match (self.value(*a), self.value(*b)) {
                (R(a), R(b)) => R(binary(*op, a, b)?),
                (C(a), C(b)) => self.complex_binary(*op, a, b)?,
                _ => return Err(mixed_operands_error(op.name(), step.dtype)),
            },
            StepOp::Where(c, a, b) => match (self.value(*c), self.value(*a), self.value(*b)) {
                (R(c), R(a), R(b)) => R(c.choose(a, b)),
                (R(c), C(a), C(b)) => C(Pair::choose(c, a, b)),
                _ => return Err(mixed_operands_error("where", step.dtype)),
            },
            StepOp::Cast(a) => match (self.value(*a), step.dtype) {
                (R(a), DType::C64 | DType::C128) => {
                    let re = a.cast(step.dtype.real());
                    C(pair(re, re.num(0.0)))
                }
                (R(a), dtype) => R(a.cast(dtype)),
                (C(a), DType::Bool) => R(!a.is_zero()),
                (C(a), dtype) => C(a.cast(dtype.real())),
            },
            StepOp::Round(to, a) => match self.value(*a) {
                R(a) => R(a.cast(*to).cast(DType::F32)),
                C(_) => return Err(mixed_operands_error("rounding", *to)),
            },
        })
    }

    /// Returns the position of a ranked input's element in the row of its memory.
    fn place(&self, input: u32, indices: &[StepId]) -> Value<'g> {
        let graph = self.graph;
        let number = |number| graph.number(number, DType::I64);
        let start = number(CallNumber::Start { input });
        let (mut place, mut inside) = (start, None);
        for (dim, index) in indices.iter().enumerate() {
            let R(index) = self.value(*index) else { continue };
            let (zero, dim) = (index.int(0), dim as u32);
            let size = number(CallNumber::Size { input, dim });
            let index = index.below(zero).choose(index + size, index);
            let fits = !index.below(zero) & index.below(size);
            inside = Some(inside.map_or(fits, |inside| inside & fits));
            place = place + index * number(CallNumber::Stride { input, dim });
        }
        match inside {
            Some(inside) => inside.checked(OUT_OF_RANGE).choose(place, start),
            None => place,
        }
    }

    /// Applies a function of complex numbers, in float64 if [`PrimitiveLowering::wide`].
    fn in_compute_precision(&self, a: Pair<'g>, f: impl Fn(Pair<'g>) -> Pair<'g>) -> Pair<'g> {
        match self.wide {
            true => f(a.cast(DType::F64)).cast(a.re.dtype),
            false => f(a),
        }
    }

    fn complex_unary(&self, op: Unary, a: Pair<'g>) -> Result<StepValue<'g>> {
        let real =
            |f: fn(Pair<'g>) -> Value<'g>| self.in_compute_precision(a, |a| pair(f(a), a.im)).re;
        Ok(match op {
            Unary::Neg => C(-a),
            Unary::Conj => C(a.conj()),
            Unary::Real => R(a.re),
            Unary::Imag => R(a.im),
            Unary::IsNan => R(a.is_nan()),
            Unary::IsFinite => R(a.is_finite()),
            Unary::Abs => R(real(Pair::abs)),
            Unary::Sign => C(self.in_compute_precision(a, Pair::sign)),
            Unary::Exp => C(self.in_compute_precision(a, Pair::exp)),
            Unary::Log => C(self.in_compute_precision(a, Pair::log)),
            Unary::Sqrt => C(self.in_compute_precision(a, Pair::sqrt)),
            // Rounded to a half in between, as `sqrt` is.
            Unary::Rsqrt => {
                let root = self.in_compute_precision(a, Pair::sqrt);
                C(self.in_compute_precision(root, |root| root.num(1.0, 0.0).quotient(root)))
            }
            Unary::Sin => C(self.in_compute_precision(a, Pair::sin)),
            Unary::Cos => C(self.in_compute_precision(a, Pair::cos)),
            Unary::Tanh => C(self.in_compute_precision(a, Pair::tanh)),
            _ => return Err(unsupported_error(op.name(), a.re.dtype)),
        })
    }

    fn complex_binary(&self, op: Binary, a: Pair<'g>, b: Pair<'g>) -> Result<StepValue<'g>> {
        let both = |f: fn(Pair<'g>, Pair<'g>) -> Pair<'g>| {
            let wide = if self.wide { b.cast(DType::F64) } else { b };
            C(self.in_compute_precision(a, |a| f(a, wide)))
        };
        Ok(match op {
            Binary::Add => C(a + b),
            Binary::Sub => C(a - b),
            Binary::Mul => C(a * b),
            Binary::Div => both(Pair::quotient),
            Binary::Pow => both(Pair::pow),
            Binary::Eq => R(a.equals(b)),
            Binary::Ne => R(!a.equals(b)),
            _ => return Err(unsupported_error(op.name(), a.re.dtype)),
        })
    }
}

/// Returns the elements in the computing dtype: halves as float32.
fn widened(value: StepValue<'_>) -> StepValue<'_> {
    match value {
        R(value) => R(value.cast(computed(value.dtype))),
        complex => complex,
    }
}

#[cold]
fn unsupported_error(name: &str, dtype: DType) -> keyfold_core::Error {
    undefined(name, dtype, "no primitives compute it")
}

#[cold]
fn mixed_operands_error(name: &str, dtype: DType) -> keyfold_core::Error {
    undefined(name, dtype, "its operands are real and complex")
}

fn unary(op: Unary, a: Value<'_>) -> Result<Value<'_>> {
    use DTypeKind::{Bool, Float, Int, UInt};
    Ok(match (op, a.dtype.kind()) {
        (Unary::Not, Bool | Int | UInt) => !a,
        (Unary::Neg, Float | Int | UInt) => -a,
        (Unary::Abs, Int | UInt) => a.integer_abs(),
        (Unary::Sign, Int | UInt) => a.integer_sign(),
        (Unary::Abs, Float) => a.abs(),
        (Unary::Sign, Float) => a.sign(),
        (Unary::Exp, Float) => a.exp(),
        (Unary::Expm1, Float) => a.expm1(),
        (Unary::Log, Float) => a.log(),
        (Unary::Log2, Float) => a.log2(),
        (Unary::Log10, Float) => a.log10(),
        (Unary::Log1p, Float) => a.log1p(),
        (Unary::Sqrt, Float) => a.sqrt(),
        (Unary::Rsqrt, Float) => a.rsqrt(),
        (Unary::Sin, Float) => a.sin(),
        (Unary::Cos, Float) => a.cos(),
        (Unary::Tanh, Float) => a.tanh(),
        (Unary::Sigmoid, Float) => a.sigmoid(),
        (Unary::Erf, Float) => a.erf(),
        (Unary::Erfc, Float) => a.erfc(),
        (Unary::Floor, Float) => a.floor(),
        (Unary::Ceil, Float) => a.ceil(),
        (Unary::Round, Float) => a.round(),
        (Unary::Trunc, Float) => a.trunc(),
        (Unary::IsNan, Float) => a.is_nan(),
        (Unary::IsFinite, Float) => a.is_finite(),
        _ => return Err(unsupported_error(op.name(), a.dtype)),
    })
}

fn binary<'g>(op: Binary, a: Value<'g>, b: Value<'g>) -> Result<Value<'g>> {
    use DTypeKind::{Bool, Float, Int, UInt};
    Ok(match (op, a.dtype.kind()) {
        (Binary::Add | Binary::Or | Binary::Max, Bool) => a | b,
        (Binary::Mul | Binary::And | Binary::Min, Bool) => a & b,
        (Binary::Xor | Binary::Ne, Bool) => a ^ b,
        (Binary::Lt, Bool) => !a & b,
        (Binary::Le, Bool) => !a | b,
        (Binary::Gt, Bool) => a & !b,
        (Binary::Ge, Bool) => a | !b,
        (Binary::Add, _) => a + b,
        (Binary::Sub, Float | Int | UInt) => a - b,
        (Binary::Mul, _) => a * b,
        (Binary::Div, Float) => a / b,
        (Binary::FloorDiv, Float) => a.floor_divide(b),
        (Binary::FloorDiv, Int | UInt) => a.integer_floor_divide(b),
        (Binary::Mod, Float) => a.remainder(b),
        (Binary::Mod, Int | UInt) => a.integer_remainder(b),
        (Binary::Pow, Float) => a.pow(b),
        (Binary::Pow, Int | UInt) => a.integer_pow(b),
        (Binary::Min, Float) => a.min(b),
        (Binary::Max, Float) => a.max(b),
        (Binary::Min, Int | UInt) => a.below(b).choose(a, b),
        (Binary::Max, Int | UInt) => b.below(a).choose(a, b),
        (Binary::Eq, _) => a.equals(b),
        (Binary::Ne, _) => a.not_equal(b),
        (Binary::Lt, _) => a.below(b),
        (Binary::Le, _) => a.at_most(b),
        (Binary::Gt, _) => a.above(b),
        (Binary::Ge, _) => a.at_least(b),
        (Binary::And, Int | UInt) => a & b,
        (Binary::Or, Int | UInt) => a | b,
        (Binary::Xor, Int | UInt) => a ^ b,
        (Binary::Shl, Int | UInt) => a.shifted_left(b),
        (Binary::Shr, Int | UInt) => a.shifted_right(b),
        _ => return Err(unsupported_error(op.name(), a.dtype)),
    })
}
