//! A backend on delayed memory: it runs another backend's operations asynchronously.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::layout::contiguous_strides;
use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar, Shape, Strides};
use keyfold_expr::Lowered;
use keyfold_expr::fuse::{Fused, Limits};
use keyfold_tensor::device::{Content, Memory, StreamId, current_stream};
use keyfold_tensor::{BufferHandle, Tensor};

use super::block::{DelayedBuffer, Lease, while_held};
use super::calls::Call;
use super::memory::{DelayedMemory, Mistake};
use crate::primitives::{Primitive, PrimitiveParams, Primitives};
use crate::{
    Execute, Expressions, GpuBackend, Group, GroupKernel, Groups, Index, IndexParams, Kernels,
    Launch, Linalg, Offer, Operation, Params, Pointwise, PointwiseKernel, Positions, Random,
    RandomParams, Reason, Reduce, ReduceParams, RowParams, Rows, Scan, ScanParams, Tiles,
    fusion_limits, prepare, prepare_group,
};

/// A backend that runs the kernels of a host backend asynchronously, on hidden memory.
pub struct Delayed {
    below: Arc<dyn GpuBackend>,
    memory: DelayedMemory,
    withheld: Vec<Group>,
}

impl fmt::Debug for Delayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delayed(over={:?}, memory={:?})", self.below, self.memory)
    }
}

impl Delayed {
    /// Returns a backend with all groups of a host backend, on delayed memory.
    pub fn over(below: Arc<dyn GpuBackend>, memory: DelayedMemory) -> Delayed {
        Delayed { below, memory, withheld: Vec::new() }
    }

    /// Removes a group.
    #[must_use]
    pub fn without(mut self, group: Group) -> Delayed {
        self.withheld.push(group);
        self
    }

    /// Returns the memory, to plant mistakes and faults.
    pub fn delayed_memory(&self) -> &DelayedMemory {
        &self.memory
    }

    /// Returns the backend, unless a group is withheld.
    fn with(&self, group: Group) -> Option<&Self> {
        (!self.withheld.contains(&group)).then_some(self)
    }
}

/// A tensor of the device, to be used when an operation runs.
struct DeferredTensor {
    lease: Arc<Lease>,
    dtype: DType,
    shape: Shape,
    strides: Strides,
    offset: usize,
}

impl DeferredTensor {
    /// # Errors
    /// [`ErrorKind::Device`] for a tensor on another device than `device`.
    fn new(memory: &DelayedMemory, tensor: &Tensor, device: Device) -> Result<DeferredTensor> {
        if tensor.device() != device {
            let message = format!("a kernel on {device} was given a tensor on {}", tensor.device());
            return Err(Error::new(ErrorKind::Device, message));
        }
        Ok(DeferredTensor {
            lease: memory
                .lease(tensor.buffer().downcast_ref::<DelayedBuffer>(), tensor.buffer())?,
            dtype: tensor.dtype(),
            shape: tensor.shape().clone(),
            strides: tensor.strides().clone(),
            offset: tensor.offset(),
        })
    }

    /// Returns the elements as a tensor of the host. The block's lock is held while it is used.
    fn tensor(&self) -> Result<Tensor> {
        let buffer = BufferHandle::new(self.lease.alias(), self.dtype)?;
        Tensor::from_parts(buffer, self.shape.clone(), self.strides.clone(), self.offset)
    }
}

/// Queues a kernel with one output, see [`execute`].
fn launch(
    memory: &DelayedMemory,
    inputs: &[&Tensor],
    out: &Tensor,
    run: impl FnOnce(&[&Tensor], &Tensor) -> Result<()> + Send + 'static,
) -> Result<()> {
    execute(memory, inputs, &[out], Box::new(move |inputs, outputs| run(inputs, outputs[0])))
}

/// A kernel's work on tensors of the host. Boxed, so that `execute` is compiled once.
type Deferred = Box<dyn FnOnce(&[&Tensor], &[&Tensor]) -> Result<()> + Send>;

/// Queues a kernel on the current stream of the outputs' device.
fn execute(
    memory: &DelayedMemory,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    run: Deferred,
) -> Result<()> {
    memory.call(Call::Launch)?;
    let Some(device) = outputs.first().map(|out| out.device()) else { return Ok(()) };
    let deferred = |tensors: &[&Tensor]| -> Result<Vec<DeferredTensor>> {
        tensors.iter().map(|tensor| DeferredTensor::new(memory, tensor, device)).collect()
    };
    let (inputs, outputs) = (deferred(inputs)?, deferred(outputs)?);
    let leases =
        |views: &[DeferredTensor]| views.iter().map(|view| Arc::clone(&view.lease)).collect();
    let (reads, writes) = (leases(&inputs), leases(&outputs));
    memory.queue((device, current_stream(device)), reads, writes, move || {
        let on_host = |views: &[DeferredTensor]| -> Result<Vec<Tensor>> {
            views.iter().map(DeferredTensor::tensor).collect()
        };
        let (inputs, outputs) = (on_host(&inputs)?, on_host(&outputs)?);
        run(&inputs.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>())
    })
}

/// A backend's kernel; `None` if the backend lacks the group.
type Selected<'a, P> = Option<Offer<&'a dyn Launch<P>>>;

/// Parameters that select a kernel of a backend.
trait SelectsKernel: Copy + Send + Sync + 'static {
    /// Returns the kernel for inputs and an output of those dtypes.
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Selected<'a, Self>;
}

impl SelectsKernel for ReduceParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Selected<'a, Self> {
        Some(on.reduce()?.reduce(self.op, *from.first()?, to))
    }
}

impl SelectsKernel for PrimitiveParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Selected<'a, Self> {
        let Pointwise::Primitives(primitives) = on.pointwise()? else { return None };
        Some(primitives.primitive(self.primitive, from, to))
    }
}

impl SelectsKernel for RowParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Selected<'a, Self> {
        Some(on.rows()?.rows(self.op, *from.first()?, to))
    }
}

impl SelectsKernel for ScanParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Selected<'a, Self> {
        Some(on.scan()?.scan(self.op, *from.first()?, to))
    }
}

/// A matrix product.
impl SelectsKernel for () {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Selected<'a, Self> {
        Some(on.linalg()?.matmul(*from.first()?, to))
    }
}

impl SelectsKernel for IndexParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, _: &[DType], to: DType) -> Selected<'a, Self> {
        Some(on.index()?.index(self.op, to))
    }
}

impl SelectsKernel for RandomParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, _: &[DType], to: DType) -> Selected<'a, Self> {
        Some(on.random()?.random(self.op, to))
    }
}

/// Returns a kernel that was offered before.
fn reselected<K>(offer: Option<Offer<K>>) -> Result<K> {
    offer.unwrap_or_else(no_group).kernel().map_err(|Reason(reason)| {
        let message =
            format!("the backend below a delayed one offered a kernel before; now {reason}");
        Error::new(ErrorKind::NotSupported, message)
    })
}

fn no_group<K>() -> Offer<K> {
    Offer::No("it doesn't have this group of operations".into())
}

// Kernels are selected again when they run, since the inner backend's can't be stored.
impl<P: SelectsKernel> Launch<P> for Delayed {
    unsafe fn launch(&self, params: &P, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let (below, params) = (Arc::clone(&self.below), *params);
        launch(&self.memory, inputs, out, move |inputs, out| {
            let dtypes: Vec<DType> = inputs.iter().map(|input| input.dtype()).collect();
            let kernel = reselected(params.choose(&*below, &dtypes, out.dtype()))?;
            // SAFETY: the caller's contract, which covers the time when the kernel runs.
            unsafe { kernel.launch(&params, inputs, out) }
        })
    }
}

// As above, for each of the groups with several outputs.
impl<P: Params> Execute<P> for Delayed {
    unsafe fn execute(&self, params: &P, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
        let (below, params) = (Arc::clone(&self.below), *params);
        let run: Deferred = Box::new(move |inputs, outputs| {
            let dtypes =
                |tensors: &[&Tensor]| tensors.iter().map(|t| t.dtype()).collect::<Vec<DType>>();
            let offer = P::group(&below.groups())
                .map(|group| group.kernel(params.operation(), &dtypes(inputs), &dtypes(outputs)));
            let kernel = reselected(offer)?;
            // SAFETY: the caller's contract, which covers the time when the kernel runs.
            unsafe { kernel.execute(&params, inputs, outputs) }
        });
        execute(&self.memory, inputs, outputs, run)
    }
}

impl<P: Params> Kernels<P> for Delayed {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<P>> {
        let group = P::group(&self.below.groups());
        with_own_kernel(group.map(|group| group.kernel(op, inputs, outputs)), self)
    }
}

/// Returns the inner backend's offer with the delayed kernel.
fn with_own_kernel<K, T>(offer: Option<Offer<K>>, own: T) -> Offer<T> {
    offer.unwrap_or_else(no_group).map(|_| own)
}

impl Reduce for Delayed {
    fn reduce(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>> {
        with_own_kernel(self.below.reduce().map(|group| group.reduce(op, input, output)), self)
    }
}

impl Primitives for Delayed {
    fn primitive(
        &self,
        primitive: Primitive,
        inputs: &[DType],
        output: DType,
    ) -> Offer<&dyn Launch<PrimitiveParams>> {
        let below = match self.below.pointwise() {
            Some(Pointwise::Primitives(below)) => below.primitive(primitive, inputs, output),
            _ => no_group(),
        };
        below.map(|_| self as _)
    }
}

impl Rows for Delayed {
    fn rows(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<RowParams>> {
        with_own_kernel(self.below.rows().map(|group| group.rows(op, input, output)), self)
    }
}

impl Scan for Delayed {
    fn scan(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ScanParams>> {
        with_own_kernel(self.below.scan().map(|group| group.scan(op, input, output)), self)
    }
}

impl Linalg for Delayed {
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>> {
        with_own_kernel(self.below.linalg().map(|group| group.matmul(input, output)), self)
    }
}

impl Random for Delayed {
    fn random(&self, op: &'static Operation, output: DType) -> Offer<&dyn Launch<RandomParams>> {
        with_own_kernel(self.below.random().map(|group| group.random(op, output)), self)
    }
}

impl Index for Delayed {
    fn index(&self, op: &'static Operation, elements: DType) -> Offer<&dyn Launch<IndexParams>> {
        with_own_kernel(self.below.index().map(|group| group.index(op, elements)), self)
    }

    fn positions(&self) -> Offer<&dyn Positions> {
        with_own_kernel(self.below.index().map(Index::positions), self)
    }
}

impl Positions for Delayed {
    fn positions(&self, mask: &Tensor) -> Result<Vec<Tensor>> {
        self.memory.call(Call::Launch)?;
        let device = mask.device();
        let on = (device, current_stream(device));
        let view = DeferredTensor::new(&self.memory, mask, device)?;
        let (leases, below) = ([Arc::clone(&view.lease)], Arc::clone(&self.below));
        let found = Arc::new(Mutex::new(Vec::new()));
        let result = Arc::clone(&found);
        let work = move || {
            let kernel = reselected(below.index().map(Index::positions))?;
            let positions = kernel.positions(&view.tensor()?)?;
            let positions = positions.iter().map(Tensor::to_vec::<i64>);
            *result.lock().unwrap_or_else(PoisonError::into_inner) =
                positions.collect::<Result<Vec<_>>>()?;
            Ok(())
        };
        if self.memory.has_mistake(Mistake::ReadsEarly) {
            while_held(&leases, work)?;
        } else {
            self.memory.queue(on, leases.to_vec(), Vec::new(), work)?;
            self.memory.finish(on, &leases)?;
        }
        let found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        found.iter().map(|positions| self.written(on, positions)).collect()
    }
}

impl Delayed {
    /// Returns a tensor of the device with these elements, written by its stream.
    fn written(&self, on: (Device, StreamId), items: &[i64]) -> Result<Tensor> {
        let bytes: Vec<u8> = items.iter().flat_map(|item| item.to_ne_bytes()).collect();
        let buffer = self.memory.allocate(on.0, bytes.len(), Content::Arbitrary)?;
        self.memory.write(on, self.memory.lease(buffer.downcast_ref(), &buffer)?, 0, bytes)?;
        let (buffer, shape) = (BufferHandle::new(buffer, DType::I64)?, [items.len()]);
        Tensor::from_parts(buffer, Shape::new(&shape)?, contiguous_strides(&shape), 0)
    }
}

/// A kernel of an expression that runs asynchronously.
struct DelayedKernel {
    memory: DelayedMemory,
    below: Arc<dyn PointwiseKernel>,
}

impl PointwiseKernel for DelayedKernel {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) -> Result<()> {
        let (below, params) = (Arc::clone(&self.below), params.to_vec());
        launch(&self.memory, inputs, out, move |inputs, out| {
            // SAFETY: the caller's contract, which covers the time when the kernel runs.
            unsafe { below.run(inputs, &params, out) }
        })
    }
}

/// A kernel of a group that runs asynchronously.
struct DelayedGroup {
    memory: DelayedMemory,
    below: Arc<dyn GroupKernel>,
}

impl GroupKernel for DelayedGroup {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], outs: &[&Tensor]) -> Result<()> {
        let (below, params) = (Arc::clone(&self.below), params.to_vec());
        let run: Deferred = Box::new(move |inputs, outs| {
            // SAFETY: the caller's contract, which covers the time when the kernel runs.
            unsafe { below.run(inputs, &params, outs) }
        });
        execute(&self.memory, inputs, outs, run)
    }
}

impl Expressions for Delayed {
    fn prepare(&self, lowered: &Lowered) -> Offer<Arc<dyn PointwiseKernel>> {
        prepare(&self.below, lowered)
            .map(|below| Arc::new(DelayedKernel { memory: self.memory.clone(), below }) as _)
    }

    fn prepare_group(&self, fused: &Fused) -> Offer<Arc<dyn GroupKernel>> {
        prepare_group(&self.below, fused)
            .map(|below| Arc::new(DelayedGroup { memory: self.memory.clone(), below }) as _)
    }

    fn limits(&self) -> Limits {
        fusion_limits(&*self.below)
    }

    fn tiles(&self) -> Option<&dyn Tiles> {
        // Its kernels run after they were launched.
        None
    }
}

impl GpuBackend for Delayed {
    fn name(&self) -> &str {
        "delayed"
    }

    fn memory(&self) -> Arc<dyn Memory> {
        Arc::new(self.memory.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        self.with(Group::Pointwise).map(|own| match self.below.pointwise() {
            Some(Pointwise::Primitives(_)) => Pointwise::Primitives(own),
            _ => Pointwise::Expressions(own),
        })
    }

    fn reduce(&self) -> Option<&dyn Reduce> {
        self.with(Group::Reduce).map(|own| own as _)
    }

    fn rows(&self) -> Option<&dyn Rows> {
        self.with(Group::Rows).map(|own| own as _)
    }

    fn scan(&self) -> Option<&dyn Scan> {
        self.with(Group::Scan).map(|own| own as _)
    }

    fn linalg(&self) -> Option<&dyn Linalg> {
        self.with(Group::Linalg).map(|own| own as _)
    }

    fn index(&self) -> Option<&dyn Index> {
        self.with(Group::Index).map(|own| own as _)
    }

    fn random(&self) -> Option<&dyn Random> {
        self.with(Group::Random).map(|own| own as _)
    }

    fn groups(&self) -> Groups<'_> {
        self.below.groups().offered_by(self, |group| !self.withheld.contains(&group))
    }
}
