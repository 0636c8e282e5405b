//! Expressions, run by the kit's evaluator.

use std::sync::Arc;

use keyfold_backend::{Expressions, Offer, PointwiseKernel};
use keyfold_core::{Result, Scalar};
use keyfold_expr::Lowered;
use keyfold_kit::evaluate::{MAX_INPUTS, evaluate};
use keyfold_kit::interpreter::Program;
use keyfold_tensor::Tensor;

use crate::HostBackend;

/// A compiled expression.
struct EvaluatorKernel(Program);

impl PointwiseKernel for EvaluatorKernel {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { evaluate(&self.0, inputs, params, out) }
    }
}

impl Expressions for HostBackend {
    fn prepare(&self, lowered: &Lowered) -> Offer<Arc<dyn PointwiseKernel>> {
        let given = lowered.inputs().len();
        if given > MAX_INPUTS {
            let reason = format!("it evaluates {MAX_INPUTS} inputs at most, and {given} are given");
            return Offer::No(reason.into());
        }
        match Program::new(lowered) {
            Ok(program) => Offer::Native(Arc::new(EvaluatorKernel(program))),
            Err(error) => Offer::No(error.message().to_owned().into()),
        }
    }
}
