//! Steps: an operation and the dtype in which it is computed.

use std::hash::{Hash, Hasher};

use keyfold_core::{DType, Scalar};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::graph::{Binary, Unary};

/// The index of a step in a [`Lowered`](super::Lowered).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepId(pub u32);

impl StepId {
    /// Returns the index as a `usize`.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The operation of a step. Operands are earlier steps, of the step's own dtype unless stated
/// otherwise. Constants are compared by their bits.
#[derive(Clone, Debug)]
pub enum StepOp {
    /// A number that the dtype represents exactly (for halves: the half).
    Constant(Scalar),
    /// The element of an input. Halves are widened to float32; bools are 0 or 1.
    Input(u32),
    /// A parameter, converted to `to` (after [`Scalar::check`]) and then to the step's dtype: they
    /// differ for halves.
    Param {
        /// The index of the parameter.
        index: u32,
        /// The dtype of the first conversion.
        to: DType,
    },
    /// The element's index in row-major order, int64.
    Index,
    /// Its index along a dimension counted from the last, int64.
    Coordinate(u32),
    /// The element of a ranked input at int64 indices; negative ones count from the end, others out
    /// of range are a fault.
    At {
        /// The input.
        input: u32,
        /// One per dimension of the input.
        indices: SmallVec<[StepId; 2]>,
    },
    /// A unary function. `Abs` of complex numbers has the real dtype; `IsNan` and `IsFinite` have
    /// bool, with an operand of another dtype.
    Unary(Unary, StepId),
    /// A binary function. Comparisons have bool, with operands of another dtype. `Pow` of integers
    /// with a negative exponent is a fault.
    Binary(Binary, StepId, StepId),
    /// The second operand where the first, a bool, is true, else the third.
    Where(StepId, StepId, StepId),
    /// The operand, of another dtype, converted: floats to integers truncate and saturate (NaN
    /// becomes 0), integers to narrower ones wrap, anything but 0 is true.
    Cast(StepId),
    /// A float32 or float64 operand rounded once to the half dtype, as float32.
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

    /// Replaces each operand.
    pub(crate) fn map_operands(&mut self, mut f: impl FnMut(StepId) -> StepId) {
        match self {
            StepOp::At { indices, .. } => indices.iter_mut().for_each(|id| *id = f(*id)),
            StepOp::Unary(_, a) | StepOp::Cast(a) | StepOp::Round(_, a) => *a = f(*a),
            StepOp::Binary(_, a, b) => {
                *a = f(*a);
                *b = f(*b);
            }
            StepOp::Where(c, a, b) => {
                for id in [c, a, b] {
                    *id = f(*id);
                }
            }
            _ => {}
        }
    }

    /// Returns the operation as numbers: equal ones are the same operation on the same operands.
    fn key(&self) -> (u8, [u64; 3], &[StepId]) {
        let number = |id: &StepId| u64::from(id.0);
        match self {
            StepOp::Constant(Scalar::Bool(value)) => (0, [u64::from(*value), 0, 0], &[]),
            StepOp::Constant(Scalar::Int(value)) => (1, [*value as u64, 0, 0], &[]),
            StepOp::Constant(Scalar::UInt(value)) => (2, [*value, 0, 0], &[]),
            StepOp::Constant(Scalar::Float(value)) => (3, [value.to_bits(), 0, 0], &[]),
            StepOp::Constant(Scalar::Complex(value)) => {
                (4, [value.re.to_bits(), value.im.to_bits(), 0], &[])
            }
            StepOp::Input(input) => (5, [u64::from(*input), 0, 0], &[]),
            StepOp::Param { index, to } => (6, [u64::from(*index), *to as u64, 0], &[]),
            StepOp::Index => (7, [0; 3], &[]),
            StepOp::Coordinate(dim) => (8, [u64::from(*dim), 0, 0], &[]),
            StepOp::At { input, indices } => (9, [u64::from(*input), 0, 0], indices),
            StepOp::Unary(op, a) => (10, [*op as u64, number(a), 0], &[]),
            StepOp::Binary(op, a, b) => (11, [*op as u64, number(a), number(b)], &[]),
            StepOp::Where(c, a, b) => (12, [number(c), number(a), number(b)], &[]),
            StepOp::Cast(a) => (13, [number(a), 0, 0], &[]),
            StepOp::Round(to, a) => (14, [*to as u64, number(a), 0], &[]),
        }
    }
}

impl PartialEq for StepOp {
    fn eq(&self, other: &StepOp) -> bool {
        self.key() == other.key()
    }
}

impl Eq for StepOp {}

impl Hash for StepOp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// An operation and the dtype in which it is computed, never a half.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// The operation.
    pub op: StepOp,
    /// The dtype of its result.
    pub dtype: DType,
    /// Whether it is the same for all elements, since it depends on numbers only.
    pub uniform: bool,
}

/// Deduplicated steps under construction.
#[derive(Default)]
pub(crate) struct StepTable {
    steps: Vec<Step>,
    known: FxHashMap<(StepOp, DType), StepId>,
}

impl StepTable {
    /// Adds a step and returns its index, or that of an equal step.
    pub(crate) fn add(&mut self, op: StepOp, dtype: DType) -> StepId {
        let id = StepId(self.steps.len() as u32);
        let key = (op, dtype);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let mut uniform = !matches!(
            key.0,
            StepOp::Input(_) | StepOp::Index | StepOp::Coordinate(_) | StepOp::At { .. }
        );
        key.0.operands(|id| uniform &= self.steps[id.index()].uniform);
        self.steps.push(Step { op: key.0.clone(), dtype, uniform });
        self.known.insert(key, id);
        id
    }

    /// Returns the steps, operands first.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }
}

/// Returns the steps that the results need, renumbered; so are the results. One of them is the last
/// step.
pub(crate) fn needed_of(steps: &[Step], results: &mut [StepId]) -> Vec<Step> {
    let mut needed = vec![false; steps.len()];
    results.iter().for_each(|result| needed[result.index()] = true);
    for (at, step) in steps.iter().enumerate().rev() {
        if needed[at] {
            step.op.operands(|id| needed[id.index()] = true);
        }
    }
    let mut places = vec![StepId(0); steps.len()];
    let mut kept = Vec::new();
    for (at, step) in steps.iter().enumerate().filter(|(at, _)| needed[*at]) {
        places[at] = StepId(kept.len() as u32);
        let mut step = step.clone();
        step.op.map_operands(|id| places[id.index()]);
        kept.push(step);
    }
    results.iter_mut().for_each(|result| *result = places[result.index()]);
    kept
}
