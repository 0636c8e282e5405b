//! Steps: an operation and the dtype in which it is computed.

use keyfold_core::{DType, Scalar};
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
/// otherwise.
#[derive(Clone, PartialEq, Debug)]
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

/// Returns the steps that the result needs, renumbered; the result is the last.
pub(super) fn keep_needed(steps: Vec<Step>, result: StepId) -> Vec<Step> {
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
