//! Steps that are computed tile by tile: some rows by all of them, then the next rows; or the elements of a
//! [part](super::parts) of a lane.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_backend::{Cut, GpuBackend, GroupKernel, Part, RowCut, Whole, compute_parts, tiles_of};
use keyfold_core::{Error, ErrorKind, Result, Scalar};
use keyfold_tensor::{Tensor, Value};
use smallvec::SmallVec;

use super::parts::Parts;
use super::plan::Step;
use super::tiles::By;
use crate::pipeline::host::{self, Watch};
use crate::pipeline::operation::{Operation, Slot, Stopped, guarded};

/// Where a stage reads a tensor.
pub(super) enum Source {
    /// An input of the tiles.
    Input(usize),
    /// A result of an earlier stage.
    Result(usize),
}

/// The computation of a stage.
pub(super) enum StageKernel {
    /// A group, with its operations.
    Group(Arc<dyn GroupKernel>, Vec<usize>),
    /// A call of an operation of one tensor.
    Call(usize),
}

/// A part of a tile's computation.
pub(super) struct Stage {
    pub(super) kernel: StageKernel,
    pub(super) sources: Vec<Source>,
    /// The numbers of its results.
    pub(super) results: Range<usize>,
}

/// Steps that are computed tile by tile.
pub(in crate::pipeline) struct Tiled {
    pub(super) by: By,
    pub(super) backend: Arc<dyn GpuBackend>,
    /// The operations, ascending.
    pub(in crate::pipeline) members: Vec<usize>,
    /// The steps, for tensors that aren't cut.
    pub(in crate::pipeline) steps: Vec<Step>,
    pub(super) stages: Vec<Stage>,
    /// For each input, an operation that reads it, and the position among its tensors.
    pub(in crate::pipeline) inputs: Vec<(usize, usize)>,
    /// For each result, its operation, and the position among its results.
    pub(super) results: Vec<(usize, usize)>,
    /// For each result, whether somebody reads it behind the tiles.
    pub(super) kept: Vec<bool>,
}

impl fmt::Debug for Tiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tiled({:?})", self.steps)
    }
}

/// The arguments of a call, `None` for its tensor.
pub(in crate::pipeline) type CallArgs = SmallVec<[Option<Value>; 4]>;

/// The inputs, numbers and results of all tiles.
pub(super) struct Job<'a> {
    pub(super) tiled: &'a Tiled,
    pub(super) operations: &'a [Arc<Operation>],
    pub(super) cut: Arc<Cut>,
    /// For each stage, the numbers of a group, or the arguments of a call.
    given: Vec<(SmallVec<[Scalar; 4]>, CallArgs)>,
    /// The results that are kept and written by groups.
    kept: Vec<Option<Whole>>,
}

/// How the inputs of tiles are read.
enum Inputs<'a> {
    /// As rows: each input, and whether it has the rows that are cut.
    Rows(Vec<(Tensor, bool)>),
    /// As ranges of elements.
    Parts(Box<Parts<'a>>),
}

impl Tiled {
    /// Computes the results that are kept, in the order of [`Tiled::kept_results`]; `None` if the
    /// tensors aren't cut. Looks for an interrupt between tiles, which [`Watch::take_stop`] returns.
    ///
    /// # Errors
    /// The first of an operation, or of the memory; one that stands for an interrupt. Nothing but new memory was written then.
    pub(in crate::pipeline) fn compute(
        &self,
        operations: &[Arc<Operation>],
        inputs: &[Tensor],
        args: impl Fn(usize) -> CallArgs,
        watch: &Watch,
    ) -> Result<Option<Vec<Tensor>>> {
        let Some(tiles) = tiles_of(&*self.backend) else { return Ok(None) };
        let (cut, inputs) = match self.by {
            By::Rows => match self.cut_rows(operations, inputs) {
                Some((cut, have_rows)) => {
                    let inputs = inputs.iter().cloned().zip(have_rows).collect();
                    (Cut::Rows(cut), Inputs::Rows(inputs))
                }
                None => return Ok(None),
            },
            By::Parts => match self.cut_parts(operations, inputs) {
                Some(cut) => {
                    let parts = Parts::new(self, operations, cut.clone(), inputs)?;
                    (Cut::Parts(cut), Inputs::Parts(Box::new(parts)))
                }
                None => return Ok(None),
            },
        };
        let given = self.stages.iter().map(|stage| match &stage.kernel {
            StageKernel::Group(_, members) => {
                let own = members.iter().filter_map(|op| operations[*op].evaluates.as_ref());
                let numbers = own.flat_map(|own| own.params.iter().copied());
                (numbers.collect(), CallArgs::new())
            }
            StageKernel::Call(op) => (SmallVec::new(), args(*op)),
        });
        let (given, cut) = (given.collect(), Arc::new(cut));
        let whole = |(result, kept): (usize, &bool)| {
            let operation = &operations[self.results[result].0];
            let is_here = *kept && !(self.by == By::Parts && operation.reduces().is_some());
            let slot = self.slot(operations, result).filter(|_| is_here);
            slot.map(|slot| Whole::new(slot.shape.clone(), slot.dtype, operation.device, &cut))
                .transpose()
        };
        let kept = self.kept.iter().enumerate().map(whole).collect::<Result<_>>()?;
        let job = Job { tiled: self, operations, cut, given, kept };
        let scratch = Mutex::new(Vec::new());
        let all = job.cut.tiles();
        let compute = || {
            tiles.for_each(all, &|tiles| {
                let known = scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let mut own = known.unwrap_or_else(|| vec![None; self.results.len()]);
                for tile in tiles {
                    watch.look_inside()?;
                    match &inputs {
                        Inputs::Rows(inputs) => job.rows(inputs, tile, &mut own)?,
                        Inputs::Parts(parts) => parts.compute(&job, tile, &mut own)?,
                    }
                }
                scratch.lock().unwrap_or_else(PoisonError::into_inner).push(own);
                Ok(())
            })
        };
        // Without the lock, since tiles count references to memory of the host language on threads that this
        // one waits for.
        host::without_lock(|| guarded(compute))?;
        let mut results: Vec<Option<Tensor>> = match &inputs {
            Inputs::Rows(_) => vec![None; self.results.len()],
            Inputs::Parts(parts) => parts.join(&job)?,
        };
        for (result, whole) in results.iter_mut().zip(job.kept) {
            if let Some(whole) = whole {
                *result = Some(whole.into_tensor()?);
            }
        }
        Ok(Some(results.into_iter().flatten().collect()))
    }

    /// Computes and stages the results that are kept; false if their tensors aren't cut.
    pub(in crate::pipeline) fn run(
        &self,
        operations: &[Arc<Operation>],
        watch: &Watch,
    ) -> Result<bool, Stopped> {
        for at in &self.members {
            let args = operations[*at].args.lock().unwrap_or_else(PoisonError::into_inner);
            operations[*at].check_versions(&args).map_err(Stopped::Itself)?;
        }
        let inputs = self.inputs.iter().map(|(op, at)| operations[*op].ready_tensor(*at));
        let inputs = inputs.collect::<Result<Vec<_>, Stopped>>()?;
        let args = |op: usize| -> CallArgs {
            let args = operations[op].args.lock().unwrap_or_else(PoisonError::into_inner);
            let other = |arg: &Value| match arg {
                Value::Tensor(_) => None,
                other => Some(other.clone()),
            };
            args.iter().map(other).collect()
        };
        let results = self.compute(operations, &inputs, args, watch).map_err(Stopped::Itself)?;
        let Some(results) = results else { return Ok(false) };
        for ((op, at), result) in self.kept_results().zip(results) {
            operations[op].stage(at, result).map_err(Stopped::Itself)?;
        }
        Ok(true)
    }

    /// Returns whether the recorded tensors are cut.
    pub(in crate::pipeline) fn is_cut(&self, operations: &[Arc<Operation>]) -> bool {
        let inputs = self.inputs.iter().map(|(op, at)| operations[*op].tensor(*at));
        let inputs = inputs.collect::<Option<Vec<_>>>();
        inputs.is_some_and(|inputs| match self.by {
            By::Rows => self.cut_rows(operations, &inputs).is_some(),
            By::Parts => self.cut_parts(operations, &inputs).is_some(),
        })
    }

    /// Returns the results that [`Tiled::compute`] returns: an operation, and the position among its
    /// results.
    pub(in crate::pipeline) fn kept_results(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let all = self.results.iter().zip(&self.kept);
        all.filter(|(_, kept)| **kept).map(|(result, _)| *result)
    }

    pub(super) fn slot<'o>(
        &self,
        operations: &'o [Arc<Operation>],
        result: usize,
    ) -> Option<&'o Slot> {
        let (op, at) = self.results[result];
        operations[op].wanted(at).map(|(_, slot)| slot)
    }

    /// Chooses the rows of a tile, and tells for each input whether it has the rows; `None` if there would
    /// be one tile, if rows stay in the cache or are too long, or if an input has other rows.
    fn cut_rows(
        &self,
        operations: &[Arc<Operation>],
        inputs: &[Tensor],
    ) -> Option<(RowCut, Vec<bool>)> {
        let slots = (0..self.results.len()).map(|result| self.slot(operations, result));
        let slots = slots.collect::<Option<Vec<&Slot>>>()?;
        let calls = self.stages.iter().filter_map(|stage| match stage.kernel {
            StageKernel::Call(op) => Some(operations[op].rows()),
            StageKernel::Group(..) => None,
        });
        let most = calls.min().unwrap_or(usize::MAX);
        let results: SmallVec<[_; 8]> =
            slots.iter().map(|slot| (&slot.shape, slot.dtype.size())).collect();
        let read: SmallVec<[_; 8]> =
            inputs.iter().map(|input| (input.shape(), input.dtype().size())).collect();
        let cut = RowCut::new(&results, &read, most, tiles_of(&*self.backend)?.row_bytes())?;
        let mut have_rows = vec![None; inputs.len()];
        for stage in &self.stages {
            let ndim = slots[stage.results.start].shape.len();
            for source in &stage.sources {
                let Source::Input(at) = source else { continue };
                let shape = inputs[*at].shape();
                let (has_rows, is_shared) = match stage.kernel {
                    // Kernels go through the lanes of other layouts several at a time.
                    StageKernel::Call(_) if !inputs[*at].is_contiguous() => return None,
                    StageKernel::Call(_) => (cut.has_rows(shape), false),
                    StageKernel::Group(..) => {
                        // Dimensions are counted from the last one, where missing ones broadcast.
                        let lead = shape.len().saturating_sub(ndim - cut.dims());
                        let is_shared = shape[..lead].iter().all(|size| *size == 1);
                        (shape.len() == ndim && cut.has_rows(shape), is_shared)
                    }
                };
                if has_rows == is_shared || have_rows[*at].is_some_and(|known| known != has_rows) {
                    return None;
                }
                have_rows[*at] = Some(has_rows);
            }
        }
        Some((cut, have_rows.into_iter().collect::<Option<_>>()?))
    }
}

impl Job<'_> {
    /// Computes some rows. `scratch` holds the memory of results that aren't kept.
    fn rows(
        &self,
        inputs: &[(Tensor, bool)],
        tile: usize,
        scratch: &mut [Option<Tensor>],
    ) -> Result<()> {
        let mut made: SmallVec<[Tensor; 8]> = SmallVec::new();
        for (stage, (params, args)) in self.tiled.stages.iter().zip(&self.given) {
            let read = |source: &Source| match source {
                Source::Input(input) => match &inputs[*input] {
                    (tensor, true) => self.cut.tile(tensor, tile),
                    (tensor, false) => Ok(tensor.clone()),
                },
                Source::Result(result) => Ok(made[*result].clone()),
            };
            let inputs = stage.sources.iter().map(read);
            let inputs = inputs.collect::<Result<SmallVec<[Tensor; 8]>>>()?;
            match &stage.kernel {
                StageKernel::Group(kernel, _) => {
                    let parts = stage.results.clone();
                    let parts = parts.map(|result| self.part(result, tile, scratch));
                    let parts = parts.collect::<Result<_>>()?;
                    let inputs: SmallVec<[&Tensor; 8]> = inputs.iter().collect();
                    made.extend(compute_parts(&**kernel, &inputs, params, parts)?);
                }
                StageKernel::Call(op) => {
                    let results = self.call(*op, args, &inputs[0], tile)?;
                    for (number, result) in stage.results.clone().zip(results) {
                        if let Some(whole) = &self.kept[number] {
                            whole.part(tile)?.copy_from(&result)?;
                        }
                        made.push(result);
                    }
                }
            }
        }
        self.keep(made.into_iter().map(Some), scratch);
        Ok(())
    }

    /// Keeps the memory of a tile's results for the next tile.
    pub(super) fn keep(
        &self,
        made: impl Iterator<Item = Option<Tensor>>,
        scratch: &mut [Option<Tensor>],
    ) {
        for ((made, scratch), kept) in made.zip(scratch).zip(&self.kept) {
            *scratch = made.filter(|_| kept.is_none());
        }
    }

    /// Returns the numbers of a group.
    pub(super) fn params(&self, stage: usize) -> &[Scalar] {
        &self.given[stage].0
    }

    /// Returns the part of a result that a group writes.
    pub(super) fn part(
        &self,
        result: usize,
        tile: usize,
        scratch: &mut [Option<Tensor>],
    ) -> Result<Part> {
        if let Some(whole) = &self.kept[result] {
            return whole.part(tile);
        }
        let operation = &self.operations[self.tiled.results[result].0];
        let Some(slot) = self.tiled.slot(self.operations, result) else {
            return Err(Error::new(ErrorKind::Pipeline, "a group's result isn't wanted"));
        };
        let memory = match scratch[result].take() {
            Some(known) => known,
            None => {
                // No tile has more rows than the first one.
                let largest = self.cut.shape(&slot.shape, 0);
                Tensor::empty_of(largest, slot.dtype, operation.device)?
            }
        };
        Part::reused(memory, self.cut.shape(&slot.shape, tile))
    }

    /// Calls an operation with a tile of its tensor; returns its results.
    fn call(
        &self,
        op: usize,
        args: &CallArgs,
        tensor: &Tensor,
        tile: usize,
    ) -> Result<SmallVec<[Tensor; 1]>> {
        let operation = &self.operations[op];
        let own = |arg: &Option<Value>| match arg {
            Some(value) => value.clone(),
            None => Value::Tensor(tensor.clone()),
        };
        let args: SmallVec<[Value; 4]> = args.iter().map(own).collect();
        let mut wanted = SmallVec::new();
        operation.for_each_result(operation.call(&args)?, |at, item| {
            let Some(slot) = &operation.results[at] else { return Ok(()) };
            let result = item.into_tensor()?;
            let shape = self.cut.shape(&slot.shape, tile);
            if result.dtype() != slot.dtype || *result.shape() != shape {
                // The operation by itself is told of it.
                return Err(Error::new(ErrorKind::Return, "a tile has another form"));
            }
            wanted.push(result);
            Ok(())
        })?;
        Ok(wanted)
    }
}
