//! The program of a group.

use keyfold_core::DType;

use crate::graph::Binary;
use crate::lower::{Lowered, Signature, Step, StepId, StepOp, needed_of};

/// A result of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stored {
    /// The step whose value is stored.
    pub step: StepId,
    /// The dtype that it is stored as. The step has it, or float32 if it is a half: then storing
    /// rounds.
    pub dtype: DType,
}

/// The steps of a group, with one result or several. Steps are deduplicated, operands first.
#[derive(Clone, PartialEq, Debug)]
pub struct Fused {
    pub(super) steps: Vec<Step>,
    /// Its result is the first one.
    pub(super) signature: Signature,
    pub(super) results: Vec<Stored>,
}

impl Fused {
    /// Returns the steps that the results need.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the results, in the order of [`Group::results`](super::Group::results).
    pub fn results(&self) -> &[Stored] {
        &self.results
    }

    /// Returns the dtypes, ranks and names of the inputs; [`Signature::result`] is the dtype of the
    /// first result.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Returns the program of one result: its steps only, with all inputs.
    pub fn program(&self, result: usize) -> Lowered {
        let Stored { step, dtype } = self.results[result];
        let steps = needed_of(&self.steps, &mut [step]);
        let params = Signature::params_of(&steps);
        Lowered { signature: Signature { params, result: dtype, ..self.signature.clone() }, steps }
    }

    /// Returns whether an element can be at fault: an integer raised to a negative power, or an index
    /// out of range. The results are then unspecified, so none of them may replace an input that is
    /// needed to tell which member failed.
    pub fn can_fail(&self) -> bool {
        self.steps.iter().any(|step| match step.op {
            StepOp::At { .. } => true,
            StepOp::Binary(Binary::Pow, _, exponent) => {
                let constant = matches!(self.steps[exponent.index()].op, StepOp::Constant(_));
                step.dtype.is_integral() && !constant
            }
            _ => false,
        })
    }
}
