//! Expressions, run by the kit's evaluator.

use std::ops::Range;
use std::sync::Arc;

use keyfold_backend::{
    Expressions, GroupKernel, Offer, Operation, PointwiseKernel, ReduceParts, Tiles,
};
use keyfold_core::{DType, Result, Scalar};
use keyfold_expr::Lowered;
use keyfold_expr::fuse::{Fused, Limits};
use keyfold_kit::evaluate::{MAX_INPUTS, evaluate, evaluate_all};
use keyfold_kit::interpreter::Program;
use keyfold_kit::pool::{Schedule, num_threads, parallel_for};
use keyfold_tensor::Tensor;

use crate::HostBackend;
use crate::reduce::parts_of;

/// A compiled expression.
struct EvaluatorKernel(Program);

impl PointwiseKernel for EvaluatorKernel {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { evaluate(&self.0, inputs, params, out) }
    }
}

/// A compiled group.
struct EvaluatorGroup(Program);

impl GroupKernel for EvaluatorGroup {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], outs: &[&Tensor]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { evaluate_all(&self.0, inputs, params, outs) }
    }
}

/// Makes a kernel of a program, unless it has too many inputs.
fn offer<K>(
    inputs: usize,
    compile: impl FnOnce() -> Result<Program>,
    kernel: impl FnOnce(Program) -> Arc<K>,
) -> Offer<Arc<K>> {
    if inputs > MAX_INPUTS {
        let reason = format!("it evaluates {MAX_INPUTS} inputs at most, and {inputs} are given");
        return Offer::No(reason.into());
    }
    match compile() {
        Ok(program) => Offer::Native(kernel(program)),
        Err(error) => Offer::No(error.message().to_owned().into()),
    }
}

impl Expressions for HostBackend {
    fn prepare(&self, lowered: &Lowered) -> Offer<Arc<dyn PointwiseKernel>> {
        let kernel = |program| Arc::new(EvaluatorKernel(program));
        offer(lowered.inputs().len(), || Program::new(lowered), kernel).map(|kernel| kernel as _)
    }

    fn prepare_group(&self, fused: &Fused) -> Offer<Arc<dyn GroupKernel>> {
        let inputs = fused.signature().inputs().len();
        let kernel = |program| Arc::new(EvaluatorGroup(program));
        offer(inputs, || Program::fused(fused), kernel).map(|kernel| kernel as _)
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn tiles(&self) -> Option<&dyn Tiles> {
        Some(self)
    }
}

impl Tiles for HostBackend {
    fn bytes(&self) -> usize {
        // Half of an L2 cache of 1 MiB.
        1 << 19
    }

    fn threads(&self) -> Result<usize> {
        num_threads()
    }

    fn for_each(
        &self,
        tiles: usize,
        f: &(dyn Fn(Range<usize>) -> Result<()> + Sync),
    ) -> Result<()> {
        parallel_for(Schedule::Adaptive, 0..tiles, 1, f)
    }

    fn reduce_parts(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Option<&dyn ReduceParts> {
        parts_of(op, input, output)
    }
}
