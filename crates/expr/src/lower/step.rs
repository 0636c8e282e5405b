//! Steps: what one does, and the dtype in which it does it.

use keyfold_core::{DType, Scalar};
use smallvec::SmallVec;

use crate::graph::{Binary, Unary};

/// A step's place among the steps of a [`Lowered`](super::Lowered).
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

/// The steps that the result needs, renumbered; the result is the last.
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
