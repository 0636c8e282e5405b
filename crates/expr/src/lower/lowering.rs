//! Lowering of nodes to steps, whose operands are converted to the dtype of the computation.

use std::f64::consts::{LOG2_E, LOG10_E};

use keyfold_core::{DType, DTypeKind, Element, Error, ErrorKind, Result, Scalar, bf16, f16};
use smallvec::SmallVec;

use super::step::{Step, StepId, StepOp, StepTable};
use super::type_rules::{TypeRule, binary_rule, small_power, unary_rule};
use super::types::{Type, computed, placeholder};
use crate::graph::{Binary, Id, Node, Unary};

/// A step and its type.
#[derive(Clone, Copy)]
pub(super) struct TypedStep {
    pub(super) step: StepId,
    pub(super) ty: Type,
}

/// Steps under construction.
#[derive(Default)]
pub(super) struct Lowering(pub(super) StepTable);

impl Lowering {
    pub(super) fn add(&mut self, op: StepOp, dtype: DType) -> StepId {
        self.0.add(op, dtype)
    }

    fn step(&self, id: StepId) -> &Step {
        &self.0.steps()[id.index()]
    }

    fn dtype(&self, id: StepId) -> DType {
        self.step(id).dtype
    }

    /// Returns the value as an operand of a computation for dtype `to`.
    ///
    /// A literal has the precision of the computation, float32 for halves. In a comparison with a
    /// half it is rounded to one first (`rounded`), so that it equals an element made of it. A
    /// parameter is always rounded, as in NumPy.
    pub(super) fn convert(&mut self, value: TypedStep, to: DType, rounded: bool) -> Result<StepId> {
        let step = self.step(value.step);
        let dtype = computed(to);
        let exact = matches!(step.op, StepOp::Constant(_)) && !rounded;
        let to = if exact { dtype } else { to };
        match step.op {
            StepOp::Constant(number) if value.ty.is_weak() => {
                number.check(to)?;
                Ok(self.add(StepOp::Constant(constant(number, to)), dtype))
            }
            StepOp::Param { index, .. } if value.ty.is_weak() => {
                Ok(self.add(StepOp::Param { index, to }, dtype))
            }
            _ if step.dtype == dtype => Ok(value.step),
            _ => Ok(self.add(StepOp::Cast(value.step), dtype)),
        }
    }

    /// Returns the value after an explicit conversion, rounded if to a half.
    pub(super) fn cast(&mut self, value: TypedStep, to: DType) -> Result<StepId> {
        let from = value.ty.dtype();
        if from.is_complex() && !to.is_complex() && to != DType::Bool {
            return Err(Error::new(
                ErrorKind::DType,
                format!("{from} to {to} would drop the imaginary parts; take abs() first"),
            ));
        }
        if to == computed(to) || from == to {
            let dtype = computed(to);
            return match self.dtype(value.step) == dtype {
                true => Ok(value.step),
                false => Ok(self.add(StepOp::Cast(value.step), dtype)),
            };
        }
        let mut step = value.step;
        if !self.dtype(step).is_floating() {
            step = self.add(StepOp::Cast(step), DType::F64);
        }
        Ok(self.add(StepOp::Round(to, step), DType::F32))
    }

    /// Returns an element of a ranked input.
    fn read(&mut self, input: u32, dtype: DType, indices: &[TypedStep]) -> Result<TypedStep> {
        let mut places = SmallVec::new();
        for index in indices {
            if !matches!(index.ty.dtype().kind(), DTypeKind::UInt | DTypeKind::Int) {
                return Err(Error::new(
                    ErrorKind::DType,
                    format!("an index has dtype {}; it has to be whole", index.ty.dtype()),
                ));
            }
            let mut index = *index;
            if index.ty == Type::Strong(DType::U64) {
                // Indices beyond int64 are out of range and stay so.
                let most = self.add(StepOp::Constant(Scalar::Int(i64::MAX)), DType::U64);
                let least = StepOp::Binary(Binary::Min, index.step, most);
                index.step = self.add(least, DType::U64);
            }
            places.push(self.convert(index, DType::I64, false)?);
        }
        let step = self.add(StepOp::At { input, indices: places }, computed(dtype));
        Ok(TypedStep { step, ty: Type::Strong(dtype) })
    }

    fn unary(&mut self, op: Unary, a: TypedStep) -> Result<TypedStep> {
        Ok(match unary_rule(op, a.ty)? {
            TypeRule::Same => a,
            TypeRule::Known(known) => {
                let step = self.add(StepOp::Constant(Scalar::Bool(known)), DType::Bool);
                TypedStep { step, ty: Type::Strong(DType::Bool) }
            }
            TypeRule::Zero => {
                let (zero, dtype) = (Scalar::Bool(false), a.ty.dtype());
                let zero = match dtype.kind() {
                    DTypeKind::Bool => zero,
                    DTypeKind::Float => Scalar::Float(0.0),
                    _ => Scalar::Int(0),
                };
                let step = self.add(StepOp::Constant(zero), computed(dtype));
                TypedStep { step, ty: a.ty }
            }
            TypeRule::Compute(from, ty) => {
                let operand = self.convert(a, from.dtype(), false)?;
                let dtype = computed(ty.dtype());
                let factor = match op {
                    Unary::Log2 => LOG2_E,
                    Unary::Log10 => LOG10_E,
                    _ => 0.0,
                };
                if factor != 0.0 && dtype.is_complex() {
                    // Complex numbers have only the natural logarithm.
                    let log = self.add(StepOp::Unary(Unary::Log, operand), dtype);
                    let factor = constant(Scalar::Float(factor), dtype);
                    let factor = self.add(StepOp::Constant(factor), dtype);
                    let step = self.add(StepOp::Binary(Binary::Mul, factor, log), dtype);
                    return Ok(TypedStep { step, ty });
                }
                TypedStep { step: self.add(StepOp::Unary(op, operand), dtype), ty }
            }
        })
    }

    fn binary(&mut self, op: Binary, a: TypedStep, b: TypedStep) -> Result<TypedStep> {
        let (from, ty) = binary_rule(op, a.ty, b.ty)?;
        if let Some(step) = self.compare_mixed_signs(op, a, b)? {
            return Ok(TypedStep { step, ty });
        }
        let rounded = ty.dtype() == DType::Bool;
        let left = self.convert(a, from.dtype(), rounded)?;
        let right = self.convert(b, from.dtype(), rounded)?;
        let dtype = computed(ty.dtype());
        if op == Binary::Pow
            && let StepOp::Constant(exponent) = self.step(right).op
        {
            if !ty.dtype().is_floating() && exponent.as_i64().is_some_and(|e| e < 0) {
                return Err(Error::new(
                    ErrorKind::Value,
                    format!(
                        "{exponent} is a negative exponent, which gives fractions that {} \
                         can't hold; make the base a float",
                        ty.dtype()
                    ),
                ));
            }
            if let Some(power) = small_power(exponent) {
                let mut step = left;
                for _ in 1..power {
                    step = self.add(StepOp::Binary(Binary::Mul, step, left), dtype);
                }
                return Ok(TypedStep { step, ty });
            }
        }
        Ok(TypedStep { step: self.add(StepOp::Binary(op, left, right), dtype), ty })
    }

    /// Returns one of two values, selected by a condition.
    fn choice(&mut self, c: TypedStep, a: TypedStep, b: TypedStep) -> Result<TypedStep> {
        if c.ty.dtype() != DType::Bool {
            return Err(Error::new(
                ErrorKind::DType,
                format!(
                    "the condition of where() has dtype {}; it has to be bool: compare it first",
                    c.ty.dtype()
                ),
            ));
        }
        let ty = a.ty.promote_with(b.ty);
        let (left, right) =
            (self.convert(a, ty.dtype(), false)?, self.convert(b, ty.dtype(), false)?);
        let condition = self.convert(c, DType::Bool, false)?;
        let step = self.add(StepOp::Where(condition, left, right), computed(ty.dtype()));
        Ok(TypedStep { step, ty })
    }
}

/// Converts the number to an element of `to`, which rounds or wraps it.
fn constant(number: Scalar, to: DType) -> Scalar {
    match to {
        DType::Bool => Scalar::Bool(number.is_nonzero()),
        DType::F16 => number.to::<f16>().to_scalar(),
        DType::BF16 => number.to::<bf16>().to_scalar(),
        DType::F32 => number.to::<f32>().to_scalar(),
        DType::F64 => Scalar::Float(number.as_f64()),
        DType::C64 | DType::C128 => Scalar::Complex(number.as_complex()),
        _ => number,
    }
}

/// Adds the steps of a node, whose operands are in `values`; returns its value.
pub(super) fn lower(
    to: &mut Lowering,
    node: &Node,
    values: &[TypedStep],
    inputs: &[DType],
    params: &[DTypeKind],
) -> Result<TypedStep> {
    let value = |id: Id| values[id.index()];
    let weak = |kind| Type::Weak(placeholder(kind));
    Ok(match node {
        Node::Literal(literal) => {
            let number = Scalar::from(*literal);
            let ty = weak(number.kind());
            TypedStep { step: to.add(StepOp::Constant(number), ty.dtype()), ty }
        }
        Node::Input(input) => {
            let dtype = inputs[*input as usize];
            let step = to.add(StepOp::Input(*input), computed(dtype));
            TypedStep { step, ty: Type::Strong(dtype) }
        }
        Node::Param(index) => {
            let ty = weak(params[*index as usize]);
            let param = StepOp::Param { index: *index, to: ty.dtype() };
            TypedStep { step: to.add(param, ty.dtype()), ty }
        }
        Node::Index => {
            TypedStep { step: to.add(StepOp::Index, DType::I64), ty: weak(DTypeKind::Int) }
        }
        Node::Coordinate(dim) => {
            let step = to.add(StepOp::Coordinate(*dim), DType::I64);
            TypedStep { step, ty: weak(DTypeKind::Int) }
        }
        Node::At { input, indices } => {
            let dtype = inputs[*input as usize];
            let indices: SmallVec<[TypedStep; 2]> = indices.iter().map(|id| value(*id)).collect();
            to.read(*input, dtype, &indices)?
        }
        Node::Unary(op, a) => to.unary(*op, value(*a))?,
        Node::Binary(op, a, b) => to.binary(*op, value(*a), value(*b))?,
        Node::Where(c, a, b) => to.choice(value(*c), value(*a), value(*b))?,
        Node::Cast(dtype, a) => {
            let a = value(*a);
            TypedStep { step: to.cast(a, *dtype)?, ty: Type::Strong(*dtype) }
        }
    })
}
