//! Groups that end in reductions of long lanes: a part of a lane is computed, and reduced, then the next one.

use std::sync::{Arc, OnceLock};

use keyfold_backend::{
    Broadcast, PartCut, Partial, RangeInput, ReduceParams, ReduceParts, compute_range, join_parts,
    tiles_of,
};
use keyfold_core::{DType, Error, ErrorKind, Result, Shape};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use super::tiled::{Job, Source, Stage, StageKernel, Tiled};
use crate::pipeline::operation::Operation;

/// The inputs of parts, and the results of reductions.
pub(super) struct Parts<'a> {
    cut: PartCut,
    inputs: &'a [Tensor],
    /// The inputs, as groups read them.
    broadcast: Broadcast,
    /// For each stage, the reduction that it is.
    reductions: Vec<Option<Reduction<'a>>>,
}

/// A reduction, and its results for the parts that were computed.
struct Reduction<'a> {
    kernel: &'a dyn ReduceParts,
    params: ReduceParams,
    input: DType,
    partials: Vec<OnceLock<Partial>>,
}

impl Tiled {
    /// Returns the kernel of a stage that is a reduction, its parameters, and the dtype that it reduces.
    fn reduction(
        &self,
        stage: &Stage,
        operations: &[Arc<Operation>],
        inputs: &[Tensor],
    ) -> Option<(&dyn ReduceParts, ReduceParams, DType)> {
        let StageKernel::Call(op) = stage.kernel else { return None };
        let input: DType = match stage.sources[0] {
            Source::Input(input) => inputs[input].dtype(),
            Source::Result(result) => self.slot(operations, result)?.dtype,
        };
        let params = operations[op].reduces()?;
        let output = self.slot(operations, stage.results.start)?.dtype;
        let kernel = tiles_of(&*self.backend)?.reduce_parts(params.op, input, output)?;
        Some((kernel, params, input))
    }

    /// Returns the shape of the elements that are computed.
    fn elements<'o>(&self, operations: &'o [Arc<Operation>]) -> Option<&'o Shape> {
        let is_group = |stage: &&Stage| matches!(stage.kernel, StageKernel::Group(..));
        let group = self.stages.iter().find(is_group)?;
        Some(&self.slot(operations, group.results.start)?.shape)
    }

    /// Chooses the parts; `None` if a lane would be one part, or if the reductions differ in them.
    pub(super) fn cut_parts(
        &self,
        operations: &[Arc<Operation>],
        inputs: &[Tensor],
    ) -> Option<PartCut> {
        let shape = self.elements(operations)?;
        let mut cut = None;
        for stage in &self.stages {
            if matches!(stage.kernel, StageKernel::Group(..)) {
                continue;
            }
            if let Source::Input(input) = stage.sources[0]
                && !inputs[input].is_contiguous()
            {
                // Its elements are reduced in the order of memory.
                return None;
            }
            let (kernel, params, _) = self.reduction(stage, operations, inputs)?;
            let (lead, rest) = shape.split_at_checked(params.dims.trailing_zeros() as usize)?;
            let own = PartCut::new(lead.iter().product(), rest.iter().product(), kernel.part())?;
            if *cut.get_or_insert_with(|| own.clone()) != own {
                return None;
            }
        }
        cut
    }
}

impl<'a> Parts<'a> {
    /// Prepares the computation.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for an input that doesn't broadcast to the shape of the elements.
    pub(super) fn new(
        tiled: &'a Tiled,
        operations: &[Arc<Operation>],
        cut: PartCut,
        inputs: &'a [Tensor],
    ) -> Result<Parts<'a>> {
        let no_group = || Error::new(ErrorKind::Pipeline, "no group is reduced part by part");
        let shape = tiled.elements(operations).ok_or_else(no_group)?;
        let broadcast = Broadcast::new(shape, inputs)?;
        let reductions = tiled.stages.iter().map(|stage| {
            let (kernel, params, input) = tiled.reduction(stage, operations, inputs)?;
            let partials = (0..cut.tiles()).map(|_| OnceLock::new()).collect();
            Some(Reduction { kernel, params, input, partials })
        });
        let reductions = reductions.collect();
        Ok(Parts { cut, inputs, broadcast, reductions })
    }

    /// Computes a part. `scratch` holds the memory of results that aren't kept.
    pub(super) fn compute(
        &self,
        job: &Job<'_>,
        tile: usize,
        scratch: &mut [Option<Tensor>],
    ) -> Result<()> {
        let missing = || Error::new(ErrorKind::Pipeline, "a part of a lane isn't there");
        let mut made: SmallVec<[Option<Tensor>; 8]> = SmallVec::new();
        let stages = job.tiled.stages.iter().zip(&self.reductions).enumerate();
        for (at, (stage, reduction)) in stages {
            match (&stage.kernel, reduction) {
                (StageKernel::Group(kernel, _), _) => {
                    let read = |source: &Source| match source {
                        Source::Input(input) => Ok(RangeInput::Broadcast(*input)),
                        Source::Result(result) => {
                            made[*result].as_ref().map(RangeInput::Range).ok_or_else(missing)
                        }
                    };
                    let inputs = stage.sources.iter().map(read);
                    let inputs = inputs.collect::<Result<SmallVec<[RangeInput<'_>; 8]>>>()?;
                    let parts = stage.results.clone();
                    let parts = parts.map(|result| job.part(result, tile, scratch));
                    let parts = parts.collect::<Result<_>>()?;
                    let range = (&self.broadcast, self.cut.range(tile));
                    let results = compute_range(&**kernel, range, &inputs, job.params(at), parts)?;
                    drop(inputs);
                    made.extend(results.into_iter().map(Some));
                }
                (StageKernel::Call(_), Some(reduction)) => {
                    let own;
                    let part = match stage.sources[0] {
                        Source::Input(input) => {
                            own = job.cut.tile(&self.inputs[input], tile)?;
                            &own
                        }
                        Source::Result(result) => made[result].as_ref().ok_or_else(missing)?,
                    };
                    let partial = reduction.kernel.reduce(&reduction.params, part)?;
                    // Each part is computed once.
                    let _ = reduction.partials[tile].set(partial);
                    made.push(None);
                }
                (StageKernel::Call(_), None) => return Err(missing()),
            }
        }
        job.keep(made.into_iter(), scratch);
        Ok(())
    }

    /// Joins the parts of each reduction whose result is kept; returns a place for each result.
    pub(super) fn join(&self, job: &Job<'_>) -> Result<Vec<Option<Tensor>>> {
        let Job { tiled, operations, .. } = job;
        let missing = || Error::new(ErrorKind::Pipeline, "a part of a lane isn't there");
        let tiles = tiles_of(&*tiled.backend).ok_or_else(missing)?;
        let mut results = vec![None; tiled.results.len()];
        for (stage, reduction) in tiled.stages.iter().zip(&self.reductions) {
            let (Some(reduction), result) = (reduction, stage.results.start) else { continue };
            let Some(slot) = tiled.slot(operations, result).filter(|_| tiled.kept[result]) else {
                continue;
            };
            let partials = reduction.partials.iter().map(|partial| partial.get().copied());
            let partials = partials.collect::<Option<Vec<_>>>().ok_or_else(missing)?;
            let form = (operations[tiled.results[result].0].device, &slot.shape, slot.dtype);
            let lanes = (self.cut.lane(), &partials[..]);
            let kind = (&reduction.params, reduction.input);
            results[result] = Some(join_parts(tiles, kind, lanes, form)?);
        }
        Ok(results)
    }
}
