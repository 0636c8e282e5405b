//! Expressions, run by the kit's evaluator.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// The bytes of [`HostBackend::set_tile_cache`]: less than half of most processors' last cache.
static TILE_CACHE: AtomicUsize = AtomicUsize::new(16 << 20);

/// The fewest and the most bytes of a tile. With fewer, the calls for each tile take longer than memory would; with
/// more, rows that are still to be read leave the cache.
const TILE_BYTES: [usize; 2] = [1 << 19, 1 << 21];

impl HostBackend {
    /// Sets the bytes that the last cache holds while a few operations run: those on rows that take no more are
    /// computed one by one, and larger ones tile by tile. The tiles of all threads share these bytes: each takes
    /// half a MiB to 2 MiB. Returns the number before, 16 MiB at the start. For processors with another cache, and
    /// for tests with small tensors.
    pub fn set_tile_cache(bytes: usize) -> usize {
        TILE_CACHE.swap(bytes, Ordering::Relaxed)
    }
}

impl Tiles for HostBackend {
    fn bytes(&self) -> usize {
        let [least, most] = TILE_BYTES;
        (self.cache() / num_threads().unwrap_or(1)).clamp(least, most)
    }

    fn cache(&self) -> usize {
        TILE_CACHE.load(Ordering::Relaxed)
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
