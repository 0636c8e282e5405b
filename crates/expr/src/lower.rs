//! From an expression and the dtypes of its inputs to steps that each have one dtype.
//!
//! Plain numbers, parameters and indices are weak, as Python's numbers are: they take the dtype of
//! what they meet where that can hold their kind, else the default dtype of their kind comes in.
//! Dtypes mix as [`DType::promote`] says. Half floats are computed in float32 and rounded once, at
//! the end. What functions ask of their operands is told at [`Lowered::new`].

use keyfold_core::{DType, DTypeKind, Element, Error, ErrorKind, Result, Scalar, bf16, f16};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::graph::{Binary, Expr, Node, Unary};

/// A step's place among the steps of a [`Lowered`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepId(pub u32);

impl StepId {
    /// The place as a number.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a step does. Operands are earlier steps, and of the step's own dtype unless said otherwise.
#[derive(Clone, PartialEq, Debug)]
pub enum StepOp {
    /// A number that the dtype holds exactly (for halves: that the half holds).
    Constant(Scalar),
    /// The element of an input. Halves come widened to float32; bools are 0 or 1.
    Input(u32),
    /// A number given with the call, converted to `to` (after a check, [`Scalar::check`]) and from
    /// there to the step's dtype: they differ for halves.
    Param {
        /// Which.
        index: u32,
        /// The dtype that the number becomes part of.
        to: DType,
    },
    /// The element's place in row-major order, int64.
    Index,
    /// Its place along a dimension counted from the last, int64.
    Coordinate(u32),
    /// The element of a ranked input at indices that are int64 steps; negative ones count from the
    /// end, others out of range are a fault.
    At {
        /// The input.
        input: u32,
        /// One per dimension of the input.
        indices: SmallVec<[StepId; 2]>,
    },
    /// The function; `Abs` of complex numbers gives the real dtype, `IsNan` and `IsFinite` give bool,
    /// of an operand that has another dtype.
    Unary(Unary, StepId),
    /// The function; comparisons give bool, of operands of one other dtype. `Pow` of whole numbers
    /// with a negative exponent is a fault.
    Binary(Binary, StepId, StepId),
    /// The second where the first, a bool, holds, else the third.
    Where(StepId, StepId, StepId),
    /// The operand, of another dtype, converted: floats to whole numbers truncate and saturate (NaN
    /// is 0), whole numbers to narrower ones wrap, anything but 0 is true.
    Cast(StepId),
    /// A float32 or float64 operand rounded, once, to the half dtype, as float32.
    Round(DType, StepId),
}

impl StepOp {
    /// Calls `f` with each operand.
    #[inline]
    pub fn operands(&self, mut f: impl FnMut(StepId)) {
        match self {
            StepOp::At { indices, .. } => indices.iter().copied().for_each(f),
            StepOp::Unary(_, a) | StepOp::Cast(a) | StepOp::Round(_, a) => f(*a),
            StepOp::Binary(_, a, b) => [*a, *b].into_iter().for_each(f),
            StepOp::Where(c, a, b) => [*c, *a, *b].into_iter().for_each(f),
            _ => {}
        }
    }
}

/// One step: what it does, and the dtype in which it does it, never a half.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// What it does.
    pub op: StepOp,
    /// The dtype of its result.
    pub dtype: DType,
    /// Whether it is the same for all elements: it depends on numbers only.
    pub uniform: bool,
}

/// An expression for inputs of certain dtypes, as steps of one dtype each: what the evaluator and
/// the CUDA emitter work from. Equal steps are there once; operands come first, the result last.
#[derive(Clone, PartialEq, Debug)]
pub struct Lowered {
    steps: Vec<Step>,
    inputs: Vec<DType>,
    ranks: Vec<Option<u32>>,
    result: DType,
}

/// A dtype that is settled, or a number's kind that isn't yet.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Type {
    Strong(DType),
    /// A stand-in of the kind.
    Weak(Scalar),
}

impl Type {
    /// The dtype that it is, or becomes where nothing else is said.
    fn dtype(self) -> DType {
        match self {
            Type::Strong(dtype) => dtype,
            Type::Weak(number) => number.dtype(),
        }
    }

    fn is_weak(self) -> bool {
        matches!(self, Type::Weak(_))
    }

    /// The same strength with another dtype.
    fn with(self, dtype: DType) -> Type {
        match self {
            Type::Strong(_) => Type::Strong(dtype),
            Type::Weak(_) => Type::Weak(stand_in(dtype.kind())),
        }
    }

    /// What a mixture is.
    fn mix(self, other: Type) -> Type {
        match (self, other) {
            (Type::Strong(a), Type::Strong(b)) => Type::Strong(a.promote(b)),
            (Type::Strong(a), Type::Weak(b)) | (Type::Weak(b), Type::Strong(a)) => {
                Type::Strong(a.promote_scalar(b))
            }
            (Type::Weak(a), Type::Weak(b)) => {
                Type::Weak(stand_in(a.dtype().promote_scalar(b).kind()))
            }
        }
    }
}

/// A number of that kind; its value means nothing.
fn stand_in(kind: DTypeKind) -> Scalar {
    match kind {
        DTypeKind::Bool => Scalar::Bool(false),
        DTypeKind::UInt | DTypeKind::Int => Scalar::Int(0),
        DTypeKind::Float => Scalar::Float(0.0),
        DTypeKind::Complex => Scalar::Complex(Default::default()),
    }
}

/// The dtype that elements of `dtype` are computed in: float32 for the halves.
pub fn computed(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// A step and what is known of its type.
#[derive(Clone, Copy)]
struct Typed {
    step: StepId,
    ty: Type,
}

/// Steps under construction.
#[derive(Default)]
struct Lowering {
    steps: Vec<Step>,
    /// By operation and dtype: steps that are there. Constants are found by their bits.
    known: FxHashMap<String, StepId>,
}

impl Lowering {
    fn add(&mut self, op: StepOp, dtype: DType) -> StepId {
        let mut uniform = !matches!(
            op,
            StepOp::Input(_) | StepOp::Index | StepOp::Coordinate(_) | StepOp::At { .. }
        );
        op.operands(|id| uniform &= self.steps[id.index()].uniform);
        let id = StepId(self.steps.len() as u32);
        let found = *self.known.entry(format!("{op:?}{dtype:?}")).or_insert(id);
        if found == id {
            self.steps.push(Step { op, dtype, uniform });
        }
        found
    }

    fn dtype(&self, id: StepId) -> DType {
        self.steps[id.index()].dtype
    }

    /// The value as an operand of something that is computed for dtype `to`.
    ///
    /// A number that the expression has is as exact as the computation, for halves a float32;
    /// compared with a half it is rounded to one first (`rounded`), so that it equals an element
    /// that it made. One that comes with the call always is, as NumPy does it.
    fn convert(&mut self, value: Typed, to: DType, rounded: bool) -> Result<StepId> {
        let step = &self.steps[value.step.index()];
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

    /// The value converted because the expression, or the result, says so: rounded if to a half.
    fn cast(&mut self, value: Typed, to: DType) -> Result<StepId> {
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
}

/// The number as an element of `to`, which is where it gets rounded or wrapped.
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

#[cold]
fn refuse(name: &str, dtype: DType, why: &str) -> Error {
    Error::new(ErrorKind::DType, format!("{name} isn't defined for {dtype}: {why}"))
}

/// The dtype of functions that are floating whatever they are given.
fn floating(ty: Type) -> Type {
    match ty.dtype().kind() {
        DTypeKind::Bool | DTypeKind::UInt | DTypeKind::Int => ty.with(DType::DEFAULT_FLOAT),
        _ => ty,
    }
}

/// How a function treats its operand.
enum Way {
    /// Nothing changes: whole numbers rounded to whole numbers.
    Same,
    /// A bool, known beforehand.
    Known(bool),
    /// Computed in this type, giving that one.
    Compute(Type, Type),
}

fn unary_way(op: Unary, ty: Type) -> Result<Way> {
    let (dtype, kind) = (ty.dtype(), ty.dtype().kind());
    let name = op.name();
    let no = |why: &str| Err(refuse(name, dtype, why));
    let plain = Ok(Way::Compute(ty, ty));
    let whole = matches!(kind, DTypeKind::Bool | DTypeKind::UInt | DTypeKind::Int);
    match op {
        Unary::Neg if kind == DTypeKind::Bool => no("write ~x for \"not\", or convert it"),
        Unary::Neg => plain,
        Unary::Not if whole => plain,
        Unary::Not => no("it takes bools and whole numbers"),
        Unary::Abs => match kind {
            DTypeKind::Bool | DTypeKind::UInt => Ok(Way::Same),
            _ => Ok(Way::Compute(ty, ty.with(dtype.real()))),
        },
        Unary::Sign if kind == DTypeKind::Complex => no("complex numbers have no order"),
        Unary::Sign if kind == DTypeKind::Bool => Ok(Way::Same),
        Unary::Sign => plain,
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => match kind {
            DTypeKind::Complex => no("complex numbers have no order"),
            DTypeKind::Float => plain,
            _ => Ok(Way::Same),
        },
        Unary::IsNan if whole => Ok(Way::Known(false)),
        Unary::IsFinite if whole => Ok(Way::Known(true)),
        Unary::IsNan | Unary::IsFinite => Ok(Way::Compute(ty, ty.with(DType::Bool))),
        Unary::Expm1 | Unary::Log1p | Unary::Sigmoid | Unary::Erf if kind == DTypeKind::Complex => {
            no("it takes real numbers")
        }
        _ => Ok(Way::Compute(floating(ty), floating(ty))),
    }
}

fn binary_way(op: Binary, a: Type, b: Type) -> Result<(Type, Type)> {
    let ty = a.mix(b);
    let (dtype, kind) = (ty.dtype(), ty.dtype().kind());
    let no = |why: &str| Err(refuse(op.name(), dtype, why));
    match op {
        Binary::Add | Binary::Mul => Ok((ty, ty)),
        Binary::Sub if kind == DTypeKind::Bool => {
            no("write a ^ b for \"exclusive or\", or convert")
        }
        Binary::Sub => Ok((ty, ty)),
        Binary::Div => Ok((floating(ty), floating(ty))),
        Binary::FloorDiv | Binary::Mod | Binary::Pow if kind == DTypeKind::Bool => {
            no("convert the operands to whole numbers or floats")
        }
        Binary::FloorDiv | Binary::Mod | Binary::Min | Binary::Max
            if kind == DTypeKind::Complex =>
        {
            no("complex numbers have no order")
        }
        Binary::FloorDiv | Binary::Mod | Binary::Pow | Binary::Min | Binary::Max => Ok((ty, ty)),
        Binary::Eq | Binary::Ne => Ok((ty, ty.with(DType::Bool))),
        Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => match kind {
            DTypeKind::Complex => no("complex numbers have no order"),
            _ => Ok((ty, ty.with(DType::Bool))),
        },
        Binary::And | Binary::Or | Binary::Xor => match kind {
            DTypeKind::Float | DTypeKind::Complex => no("it takes bools and whole numbers"),
            _ => Ok((ty, ty)),
        },
        Binary::Shl | Binary::Shr => match kind {
            DTypeKind::UInt | DTypeKind::Int => Ok((ty, ty)),
            _ => no("it takes whole numbers"),
        },
    }
}

/// A whole exponent that few products do for.
fn small_power(number: Scalar) -> Option<u32> {
    let value = number.as_f64();
    [1, 2, 3]
        .into_iter()
        .find(|&power| f64::from(power) == value && !matches!(number, Scalar::Complex(_)))
}

impl Lowered {
    /// The steps of an expression for inputs of these dtypes, and parameters of these kinds (bool,
    /// whole, float, complex). The result has dtype `out`, or the one that follows:
    ///
    /// - arithmetic: the operands' common dtype; of bools `+` is "or" and `*` is "and", while `-`,
    ///   `//`, `%` and `**` are refused;
    /// - `/` and the functions of floats: floating, float64 for whole numbers and bools;
    /// - comparisons, `isnan`, `isfinite`: bool; `where`: the common dtype of its two branches;
    /// - rounding to whole numbers keeps the dtype.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] for dtypes that a function doesn't take, or a cast that would drop
    /// imaginary parts; [`ErrorKind::Value`] for a whole number that a dtype can't hold, or a
    /// negative exponent of whole numbers; [`ErrorKind::Binding`] for the wrong number of inputs or
    /// parameters.
    pub fn new(
        expr: &Expr,
        inputs: &[DType],
        params: &[DTypeKind],
        out: Option<DType>,
    ) -> Result<Lowered> {
        for (what, wanted, given) in [
            ("inputs", expr.inputs().len(), inputs.len()),
            ("parameters", expr.params().len(), params.len()),
        ] {
            if wanted != given {
                return Err(Error::new(
                    ErrorKind::Binding,
                    format!("the expression has {wanted} {what}, but {given} were given"),
                ));
            }
        }
        let expr = expr.simplified_for(inputs);
        let mut to = Lowering::default();
        let mut values: Vec<Typed> = Vec::with_capacity(expr.nodes().len());
        for node in expr.nodes() {
            values.push(lower(&mut to, node, &values, inputs, params)?);
        }
        let Some(&root) = values.last() else {
            return Err(Error::new(ErrorKind::Value, "the expression is empty"));
        };
        let result = out.unwrap_or(root.ty.dtype());
        let step = match root.ty {
            Type::Weak(_) => {
                let step = to.convert(root, root.ty.dtype(), false)?;
                to.cast(Typed { step, ty: Type::Strong(root.ty.dtype()) }, result)?
            }
            Type::Strong(_) => to.cast(root, result)?,
        };
        Ok(Lowered {
            steps: keep_needed(to.steps, step),
            inputs: inputs.to_vec(),
            ranks: expr.inputs().iter().map(|input| input.rank).collect(),
            result,
        })
    }

    /// The steps; the last one is the result, to be stored as [`Lowered::result`].
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The dtypes of the inputs.
    pub fn inputs(&self) -> &[DType] {
        &self.inputs
    }

    /// Each input's rank if it is read at computed indices, `None` if element by element.
    pub fn ranks(&self) -> &[Option<u32>] {
        &self.ranks
    }

    /// The dtype of the result's elements. The last step is of this dtype, or of float32 if this is
    /// a half: then storing rounds.
    pub fn result(&self) -> DType {
        self.result
    }
}

fn lower(
    to: &mut Lowering,
    node: &Node,
    values: &[Typed],
    inputs: &[DType],
    params: &[DTypeKind],
) -> Result<Typed> {
    let value = |id: crate::graph::Id| values[id.index()];
    let weak = |kind| Type::Weak(stand_in(kind));
    Ok(match node {
        Node::Literal(literal) => {
            let number = Scalar::from(*literal);
            let ty = weak(number.kind());
            Typed { step: to.add(StepOp::Constant(number), ty.dtype()), ty }
        }
        Node::Input(input) => {
            let dtype = inputs[*input as usize];
            let step = to.add(StepOp::Input(*input), computed(dtype));
            Typed { step, ty: Type::Strong(dtype) }
        }
        Node::Param(index) => {
            let ty = weak(params[*index as usize]);
            let param = StepOp::Param { index: *index, to: ty.dtype() };
            Typed { step: to.add(param, ty.dtype()), ty }
        }
        Node::Index => Typed { step: to.add(StepOp::Index, DType::I64), ty: weak(DTypeKind::Int) },
        Node::Coordinate(dim) => {
            let step = to.add(StepOp::Coordinate(*dim), DType::I64);
            Typed { step, ty: weak(DTypeKind::Int) }
        }
        Node::At { input, indices } => {
            let mut places = SmallVec::new();
            for id in indices {
                let index = value(*id);
                if !matches!(index.ty.dtype().kind(), DTypeKind::UInt | DTypeKind::Int) {
                    return Err(Error::new(
                        ErrorKind::DType,
                        format!("an index has dtype {}; it has to be whole", index.ty.dtype()),
                    ));
                }
                places.push(to.convert(index, DType::I64, false)?);
            }
            let dtype = inputs[*input as usize];
            let step = to.add(StepOp::At { input: *input, indices: places }, computed(dtype));
            Typed { step, ty: Type::Strong(dtype) }
        }
        Node::Unary(op, a) => {
            let a = value(*a);
            match unary_way(*op, a.ty)? {
                Way::Same => a,
                Way::Known(known) => {
                    let step = to.add(StepOp::Constant(Scalar::Bool(known)), DType::Bool);
                    Typed { step, ty: Type::Strong(DType::Bool) }
                }
                Way::Compute(from, ty) => {
                    let operand = to.convert(a, from.dtype(), false)?;
                    let step = to.add(StepOp::Unary(*op, operand), computed(ty.dtype()));
                    Typed { step, ty }
                }
            }
        }
        Node::Binary(op, a, b) => {
            let (a, b) = (value(*a), value(*b));
            let (from, ty) = binary_way(*op, a.ty, b.ty)?;
            let rounded = ty.dtype() == DType::Bool;
            let left = to.convert(a, from.dtype(), rounded)?;
            let right = to.convert(b, from.dtype(), rounded)?;
            let dtype = computed(ty.dtype());
            if *op == Binary::Pow
                && let StepOp::Constant(exponent) = to.steps[right.index()].op
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
                        step = to.add(StepOp::Binary(Binary::Mul, step, left), dtype);
                    }
                    return Ok(Typed { step, ty });
                }
            }
            Typed { step: to.add(StepOp::Binary(*op, left, right), dtype), ty }
        }
        Node::Where(c, a, b) => {
            let (c, a, b) = (value(*c), value(*a), value(*b));
            if c.ty.dtype() != DType::Bool {
                return Err(Error::new(
                    ErrorKind::DType,
                    format!(
                        "the condition of where() has dtype {}; it has to be bool: compare it first",
                        c.ty.dtype()
                    ),
                ));
            }
            let ty = a.ty.mix(b.ty);
            let (left, right) =
                (to.convert(a, ty.dtype(), false)?, to.convert(b, ty.dtype(), false)?);
            let condition = to.convert(c, DType::Bool, false)?;
            let step = to.add(StepOp::Where(condition, left, right), computed(ty.dtype()));
            Typed { step, ty }
        }
        Node::Cast(dtype, a) => {
            let a = value(*a);
            Typed { step: to.cast(a, *dtype)?, ty: Type::Strong(*dtype) }
        }
    })
}

/// The steps that the result needs, renumbered; the result is the last.
fn keep_needed(steps: Vec<Step>, result: StepId) -> Vec<Step> {
    let mut needed = vec![false; steps.len()];
    needed[result.index()] = true;
    for at in (0..=result.index()).rev() {
        if needed[at] {
            steps[at].op.operands(|id| needed[id.index()] = true);
        }
    }
    let mut places = vec![StepId(0); steps.len()];
    let mut kept = Vec::new();
    for (at, mut step) in steps.into_iter().enumerate().take(result.index() + 1) {
        if !needed[at] {
            continue;
        }
        match &mut step.op {
            StepOp::At { indices, .. } => {
                indices.iter_mut().for_each(|id| *id = places[id.index()]);
            }
            StepOp::Unary(_, a) | StepOp::Cast(a) | StepOp::Round(_, a) => *a = places[a.index()],
            StepOp::Binary(_, a, b) => {
                *a = places[a.index()];
                *b = places[b.index()];
            }
            StepOp::Where(c, a, b) => {
                for id in [c, a, b] {
                    *id = places[id.index()];
                }
            }
            _ => {}
        }
        places[at] = StepId(kept.len() as u32);
        kept.push(step);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Input, Literal};

    fn inputs(names: &[&str]) -> Vec<Input> {
        names.iter().map(|name| Input { name: (*name).into(), rank: None }).collect()
    }

    fn apply(op: Binary, literal: Option<Literal>) -> Expr {
        let mut graph = Graph::default();
        let x = graph.add(Node::Input(0));
        let (other, names) = match literal {
            Some(literal) => (graph.add(Node::Literal(literal)), &["x"][..]),
            None => (graph.add(Node::Input(1)), &["x", "y"][..]),
        };
        let root = graph.add(Node::Binary(op, x, other));
        Expr::new(&graph, root, inputs(names), vec![])
    }

    fn result(expr: &Expr, dtypes: &[DType]) -> Result<DType> {
        Lowered::new(expr, dtypes, &[], None).map(|l| l.result())
    }

    #[test]
    fn dtypes_mix_as_operators_do() {
        let add = apply(Binary::Add, None);
        for a in DType::ALL {
            for b in DType::ALL {
                assert_eq!(result(&add, &[a, b]).unwrap(), a.promote(b));
            }
        }
        let half = Literal::Float(0.5_f64.to_bits());
        let scaled = apply(Binary::Mul, Some(half));
        assert_eq!(result(&scaled, &[DType::F16]).unwrap(), DType::F16);
        assert_eq!(result(&scaled, &[DType::I32]).unwrap(), DType::F64);
        assert_eq!(result(&apply(Binary::Div, None), &[DType::I8; 2]).unwrap(), DType::F64);
        assert_eq!(result(&apply(Binary::Lt, None), &[DType::F16; 2]).unwrap(), DType::Bool);
    }

    #[test]
    fn numbers_that_a_dtype_cannot_hold_are_refused() {
        let add = apply(Binary::Add, Some(Literal::Int(300)));
        assert_eq!(result(&add, &[DType::U8]).unwrap_err().kind(), ErrorKind::Value);
        assert_eq!(result(&add, &[DType::U16]).unwrap(), DType::U16);
        let power = apply(Binary::Pow, Some(Literal::Int(-1)));
        assert_eq!(result(&power, &[DType::I64]).unwrap_err().kind(), ErrorKind::Value);
        assert_eq!(result(&power, &[DType::F32]).unwrap(), DType::F32);
        for (op, dtype) in [
            (Binary::Sub, DType::Bool),
            (Binary::Lt, DType::C64),
            (Binary::And, DType::F32),
            (Binary::Shl, DType::Bool),
        ] {
            let error = result(&apply(op, None), &[dtype; 2]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DType);
            assert!(error.message().contains(dtype.name()), "{error}");
        }
        let wrong = Lowered::new(&add, &[], &[], None).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Binding);
    }

    #[test]
    fn halves_are_rounded_once() {
        let mul = apply(Binary::Mul, None);
        let lowered = Lowered::new(&mul, &[DType::F16; 2], &[], None).unwrap();
        assert_eq!(lowered.result(), DType::F16);
        assert!(lowered.steps().iter().all(|step| step.dtype == DType::F32));
        let wide = Lowered::new(&mul, &[DType::F64; 2], &[], Some(DType::BF16)).unwrap();
        let last = wide.steps().last().unwrap();
        assert!(matches!(last.op, StepOp::Round(DType::BF16, _)), "{last:?}");
    }

    #[test]
    fn a_constant_is_as_exact_as_the_computation_and_compared_as_an_element() {
        let tenth = Some(Literal::Float(0.1_f64.to_bits()));
        let has = |lowered: &Lowered, value: f64| {
            lowered.steps().iter().any(|s| s.op == StepOp::Constant(Scalar::Float(value)))
        };
        let equal = Lowered::new(&apply(Binary::Eq, tenth), &[DType::F16], &[], None).unwrap();
        assert!(has(&equal, f64::from(f16::from_f64(0.1))));
        let lowered = Lowered::new(&apply(Binary::Mul, tenth), &[DType::F16], &[], None).unwrap();
        assert!(has(&lowered, f64::from(0.1_f32)));
        assert_eq!(lowered.steps().len(), 3);
        assert_eq!(lowered.steps().iter().filter(|s| s.uniform).count(), 1);
    }

    #[test]
    fn squares_are_products() {
        let square = apply(Binary::Pow, Some(Literal::Int(2)));
        let lowered = Lowered::new(&square, &[DType::F32], &[], None).unwrap();
        let last = &lowered.steps().last().unwrap().op;
        assert_eq!(*last, StepOp::Binary(Binary::Mul, StepId(0), StepId(0)));
    }
}
