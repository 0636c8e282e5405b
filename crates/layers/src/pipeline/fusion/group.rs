//! Operations that are computed in one pass.

use std::fmt;
use std::sync::{Arc, PoisonError};

use keyfold_backend::{GpuBackend, GroupKernel, compute_group};
use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use crate::pipeline::operation::{Operation, Slot, Stopped, guarded};

/// Operations with the kernel that computes them.
pub(in crate::pipeline) struct Group {
    backend: Arc<dyn GpuBackend>,
    kernel: Arc<dyn GroupKernel>,
    /// The numbers of the operations, ascending.
    pub(in crate::pipeline) members: Vec<usize>,
    /// For each input, an operation that reads it, and the position among its tensors.
    pub(in crate::pipeline) inputs: Vec<(usize, usize)>,
    /// The operations whose results are stored.
    pub(in crate::pipeline) stored: Vec<usize>,
}

/// The inputs and numbers of a group.
pub(in crate::pipeline) struct GroupArgs {
    pub(in crate::pipeline) inputs: Vec<Tensor>,
    pub(in crate::pipeline) params: SmallVec<[Scalar; 8]>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({:?})", self.members)
    }
}

impl Group {
    pub(super) fn new(
        backend: Arc<dyn GpuBackend>,
        kernel: Arc<dyn GroupKernel>,
        members: Vec<usize>,
        inputs: Vec<(usize, usize)>,
        stored: Vec<usize>,
    ) -> Group {
        Group { backend, kernel, members, inputs, stored }
    }

    pub(super) fn kernel(&self) -> &Arc<dyn GroupKernel> {
        &self.kernel
    }

    /// Computes the stored results, and stages them.
    pub(in crate::pipeline) fn compute(
        &self,
        operations: &[Arc<Operation>],
    ) -> Result<(), Stopped> {
        let args = self.gather(operations)?;
        let results = self.compute_of(operations, &args).map_err(Stopped::Itself)?;
        self.stage(operations, results).map_err(Stopped::Itself)
    }

    /// Computes the stored results.
    pub(in crate::pipeline) fn compute_of(
        &self,
        operations: &[Arc<Operation>],
        args: &GroupArgs,
    ) -> Result<Vec<Tensor>> {
        let inputs: SmallVec<[&Tensor; 8]> = args.inputs.iter().collect();
        self.results(operations, &inputs, &args.params)
    }

    /// Returns the inputs, which operations before have computed, and the numbers.
    pub(in crate::pipeline) fn gather(
        &self,
        operations: &[Arc<Operation>],
    ) -> Result<GroupArgs, Stopped> {
        let mut params: SmallVec<[Scalar; 8]> = SmallVec::new();
        for member in &self.members {
            let operation = &operations[*member];
            let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
            operation.check_versions(&args).map_err(Stopped::Itself)?;
            params.extend(operation.evaluates.iter().flat_map(|own| own.params.iter().copied()));
        }
        let inputs = self.inputs.iter().map(|(op, at)| operations[*op].ready_tensor(*at));
        Ok(GroupArgs { inputs: inputs.collect::<Result<_, Stopped>>()?, params })
    }

    /// Stages the stored results.
    pub(in crate::pipeline) fn stage(
        &self,
        operations: &[Arc<Operation>],
        results: Vec<Tensor>,
    ) -> Result<()> {
        let mut stored = self.stored.iter().zip(results);
        stored.try_for_each(|(op, result)| operations[*op].stage(0, result))
    }

    /// Computes the stored results of these inputs and numbers.
    pub(in crate::pipeline) fn results(
        &self,
        operations: &[Arc<Operation>],
        inputs: &[&Tensor],
        params: &[Scalar],
    ) -> Result<Vec<Tensor>> {
        let first = &operations[self.members[0]];
        self.check_memory(first, inputs)?;
        let slots: SmallVec<[&Slot; 4]> =
            self.stored.iter().filter_map(|op| operations[*op].results[0].as_ref()).collect();
        let Some(slot) = slots.first() else { return Ok(Vec::new()) };
        let dtypes: SmallVec<[DType; 4]> = slots.iter().map(|slot| slot.dtype).collect();
        let form = (first.device, &slot.shape, &dtypes[..]);
        let run = || compute_group(&*self.kernel, inputs, params, form);
        guarded(|| first.on_stream(run))
    }

    /// Refuses memory of a backend that had the device before.
    fn check_memory(&self, first: &Operation, inputs: &[&Tensor]) -> Result<()> {
        if first.device.kind().is_host() {
            return Ok(());
        }
        let memory = self.backend.memory().identity();
        match inputs.iter().all(|input| input.is_of(memory)) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Device, "an input is of another backend")),
        }
    }
}
