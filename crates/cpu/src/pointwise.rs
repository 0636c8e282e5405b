//! Expressions, run by the kit's evaluator.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use keyfold_backend::{
    Expressions, GroupKernel, Offer, Operation, PointwiseKernel, ReduceParts, RowBytes, Tiles,
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

/// The bytes of [`HostBackend::set_tile_cache`].
static TILE_CACHE: LazyLock<AtomicUsize> = LazyLock::new(|| {
    let half = last_cache().map_or(usize::MAX, |bytes| bytes / 2);
    AtomicUsize::new(half.min(16 << 20))
});

/// The fewest and the most bytes of a tile. With fewer, the calls for each tile take longer than memory would; with
/// more, rows that are still to be read leave the cache.
const TILE_BYTES: [usize; 2] = [1 << 19, 1 << 21];

/// The tiles of each thread that are in the cache or on their way, so that threads end at about the same time.
const TILES_PER_THREAD: usize = 4;

/// Returns the bytes of the processor's last cache, where the system tells.
fn last_cache() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok()?;
    let kibibytes: usize = text.trim().strip_suffix('K')?.parse().ok()?;
    kibibytes.checked_mul(1024).filter(|bytes| *bytes > 0)
}

impl HostBackend {
    /// Sets the bytes that the last cache holds while a few operations run: those on rows that take no more are
    /// computed one by one, and larger ones tile by tile. The tiles of all threads share these bytes: each takes
    /// half a MiB to 2 MiB. Returns the number before: at the start half of the cache, and 16 MiB at most. For tests
    /// with small tensors, and where the cache is shared with other programs.
    pub fn set_tile_cache(bytes: usize) -> usize {
        TILE_CACHE.swap(bytes, Ordering::Relaxed)
    }
}

impl Tiles for HostBackend {
    fn row_bytes(&self) -> RowBytes {
        let cached = TILE_CACHE.load(Ordering::Relaxed);
        let tiles = num_threads().unwrap_or(1) * TILES_PER_THREAD;
        let [least, most] = TILE_BYTES;
        RowBytes { tile: (cached / tiles).clamp(least, most), longest: 8 * least, cached }
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
