//! All groups of operations on the delayed memory: those of another backend, later.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::layout::contiguous_strides;
use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar, Shape, Strides};
use keyfold_expr::Lowered;
use keyfold_tensor::device::{Content, Memory, StreamId, current_stream};
use keyfold_tensor::{BufferHandle, Tensor};

use super::block::{DelayedBuffer, Lease, while_held};
use super::calls::Call;
use super::memory::{DelayedMemory, Mistake};
use crate::primitives::{Primitive, PrimitiveParams, Primitives};
use crate::{
    Expressions, GpuBackend, Index, IndexOp, IndexParams, Launch, Linalg, Offer, Pointwise,
    PointwiseKernel, Positions, Random, RandomOp, RandomParams, Reason, Reduce, ReduceOp,
    ReduceParams, RowOp, RowParams, Rows, prepare,
};

/// A group of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// [`GpuBackend::pointwise`]
    Pointwise,
    /// [`GpuBackend::reduce`]
    Reduce,
    /// [`GpuBackend::rows`]
    Rows,
    /// [`GpuBackend::linalg`]
    Linalg,
    /// [`GpuBackend::index`]
    Index,
    /// [`GpuBackend::random`]
    Random,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 6] =
        [Group::Pointwise, Group::Reduce, Group::Rows, Group::Linalg, Group::Index, Group::Random];

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Group::Pointwise => "pointwise",
            Group::Reduce => "reduce",
            Group::Rows => "rows",
            Group::Linalg => "linalg",
            Group::Index => "index",
            Group::Random => "random",
        }
    }
}

/// A backend whose kernels are those of a backend of the host, run late on hidden memory.
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
    /// The groups of a backend whose memory is the host's, on delayed memory.
    pub fn over(below: Arc<dyn GpuBackend>, memory: DelayedMemory) -> Delayed {
        Delayed { below, memory, withheld: Vec::new() }
    }

    /// Without a group.
    #[must_use]
    pub fn without(mut self, group: Group) -> Delayed {
        self.withheld.push(group);
        self
    }

    /// The memory, to plant mistakes and faults in.
    pub fn delayed_memory(&self) -> &DelayedMemory {
        &self.memory
    }

    /// The backend, unless a group is withheld.
    fn with(&self, group: Group) -> Option<&Self> {
        (!self.withheld.contains(&group)).then_some(self)
    }
}

/// A tensor of the device, for later.
struct View {
    lease: Arc<Lease>,
    dtype: DType,
    shape: Shape,
    strides: Strides,
    offset: usize,
}

impl View {
    /// # Errors
    /// [`ErrorKind::Device`] for a tensor on another device than `device`.
    fn new(memory: &DelayedMemory, tensor: &Tensor, device: Device) -> Result<View> {
        if tensor.device() != device {
            let message = format!("a kernel on {device} was given a tensor on {}", tensor.device());
            return Err(Error::new(ErrorKind::Device, message));
        }
        Ok(View {
            lease: memory
                .lease(tensor.buffer().downcast_ref::<DelayedBuffer>(), tensor.buffer())?,
            dtype: tensor.dtype(),
            shape: tensor.shape().clone(),
            strides: tensor.strides().clone(),
            offset: tensor.offset(),
        })
    }

    /// The same elements as a tensor of the host. The lock of the block is held while it is used.
    fn tensor(&self) -> Result<Tensor> {
        let buffer = BufferHandle::new(self.lease.alias(), self.dtype)?;
        Tensor::from_parts(buffer, self.shape.clone(), self.strides.clone(), self.offset)
    }
}

/// Queues a kernel on the current stream of the output's device: `run` gets tensors of the host.
fn launch(
    memory: &DelayedMemory,
    inputs: &[&Tensor],
    out: &Tensor,
    run: impl FnOnce(&[&Tensor], &Tensor) -> Result<()> + Send + 'static,
) -> Result<()> {
    memory.call(Call::Launch)?;
    let device = out.device();
    let views = inputs.iter().map(|tensor| View::new(memory, tensor, device));
    let views = views.collect::<Result<Vec<_>>>()?;
    let reads = views.iter().map(|view| Arc::clone(&view.lease)).collect();
    let out = View::new(memory, out, device)?;
    let target = Arc::clone(&out.lease);
    memory.queue((device, current_stream(device)), reads, Some(target), move || {
        let inputs = views.iter().map(View::tensor).collect::<Result<Vec<_>>>()?;
        run(&inputs.iter().collect::<Vec<_>>(), &out.tensor()?)
    })
}

/// A kernel of a backend's; none where the backend doesn't have the group.
type Chosen<'a, P> = Option<Offer<&'a dyn Launch<P>>>;

/// Parameters that say which kernel of a backend they are for.
trait Chooses: Copy + Send + Sync + 'static {
    /// That kernel, for inputs and an output of those dtypes.
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Chosen<'a, Self>;
}

impl Chooses for ReduceParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Chosen<'a, Self> {
        Some(on.reduce()?.reduce(self.op, *from.first()?, to))
    }
}

impl Chooses for PrimitiveParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Chosen<'a, Self> {
        let Pointwise::Primitives(primitives) = on.pointwise()? else { return None };
        Some(primitives.primitive(self.primitive, from, to))
    }
}

impl Chooses for RowParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Chosen<'a, Self> {
        Some(on.rows()?.rows(self.op, *from.first()?, to))
    }
}

/// A matrix product.
impl Chooses for () {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, from: &[DType], to: DType) -> Chosen<'a, Self> {
        Some(on.linalg()?.matmul(*from.first()?, to))
    }
}

impl Chooses for IndexParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, _: &[DType], to: DType) -> Chosen<'a, Self> {
        Some(on.index()?.index(self.op, to))
    }
}

impl Chooses for RandomParams {
    fn choose<'a>(&self, on: &'a dyn GpuBackend, _: &[DType], to: DType) -> Chosen<'a, Self> {
        Some(on.random()?.random(self.op, to))
    }
}

/// The kernel that was offered when it was asked for.
fn again<K>(offer: Option<Offer<K>>) -> Result<K> {
    offer.unwrap_or_else(no_group).kernel().map_err(|Reason(reason)| {
        let message =
            format!("the backend below a delayed one offered a kernel before; now {reason}");
        Error::new(ErrorKind::NotSupported, message)
    })
}

fn no_group<K>() -> Offer<K> {
    Offer::No("it doesn't have this group of operations".into())
}

// Kernels are chosen again when they run: those of the backend below can't be kept.
impl<P: Chooses> Launch<P> for Delayed {
    unsafe fn launch(&self, params: &P, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let (below, params) = (Arc::clone(&self.below), *params);
        launch(&self.memory, inputs, out, move |inputs, out| {
            let dtypes: Vec<DType> = inputs.iter().map(|input| input.dtype()).collect();
            let kernel = again(params.choose(&*below, &dtypes, out.dtype()))?;
            // SAFETY: the caller's promise, which is about the time when the kernel runs.
            unsafe { kernel.launch(&params, inputs, out) }
        })
    }
}

/// The offer of the backend below, with the delayed kernel in place of its own.
fn as_own<K, T>(offer: Option<Offer<K>>, own: T) -> Offer<T> {
    offer.unwrap_or_else(no_group).map(|_| own)
}

impl Reduce for Delayed {
    fn reduce(
        &self,
        op: ReduceOp,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>> {
        as_own(self.below.reduce().map(|group| group.reduce(op, input, output)), self)
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
    fn rows(&self, op: RowOp, input: DType, output: DType) -> Offer<&dyn Launch<RowParams>> {
        as_own(self.below.rows().map(|group| group.rows(op, input, output)), self)
    }
}

impl Linalg for Delayed {
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>> {
        as_own(self.below.linalg().map(|group| group.matmul(input, output)), self)
    }
}

impl Random for Delayed {
    fn random(&self, op: RandomOp, output: DType) -> Offer<&dyn Launch<RandomParams>> {
        as_own(self.below.random().map(|group| group.random(op, output)), self)
    }
}

impl Index for Delayed {
    fn index(&self, op: IndexOp, elements: DType) -> Offer<&dyn Launch<IndexParams>> {
        as_own(self.below.index().map(|group| group.index(op, elements)), self)
    }

    fn positions(&self) -> Offer<&dyn Positions> {
        as_own(self.below.index().map(Index::positions), self)
    }
}

impl Positions for Delayed {
    fn positions(&self, mask: &Tensor) -> Result<Vec<Tensor>> {
        self.memory.call(Call::Launch)?;
        let device = mask.device();
        let on = (device, current_stream(device));
        let view = View::new(&self.memory, mask, device)?;
        let (leases, below) = ([Arc::clone(&view.lease)], Arc::clone(&self.below));
        let found = Arc::new(Mutex::new(Vec::new()));
        let result = Arc::clone(&found);
        let work = move || {
            let kernel = again(below.index().map(Index::positions))?;
            let positions = kernel.positions(&view.tensor()?)?;
            let positions = positions.iter().map(Tensor::to_vec::<i64>);
            *result.lock().unwrap_or_else(PoisonError::into_inner) =
                positions.collect::<Result<Vec<_>>>()?;
            Ok(())
        };
        if self.memory.makes(Mistake::ReadsEarly) {
            while_held(&leases, work)?;
        } else {
            self.memory.queue(on, leases.to_vec(), None, work)?;
            self.memory.finish(on, &leases)?;
        }
        let found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        found.iter().map(|positions| self.written(on, positions)).collect()
    }
}

impl Delayed {
    /// A tensor of the device with these elements, which were computed there.
    fn written(&self, on: (Device, StreamId), items: &[i64]) -> Result<Tensor> {
        let bytes: Vec<u8> = items.iter().flat_map(|item| item.to_ne_bytes()).collect();
        let buffer = self.memory.allocate(on.0, bytes.len(), Content::Arbitrary)?;
        self.memory.write(on, self.memory.lease(buffer.downcast_ref(), &buffer)?, 0, bytes)?;
        let (buffer, shape) = (BufferHandle::new(buffer, DType::I64)?, [items.len()]);
        Tensor::from_parts(buffer, Shape::new(&shape)?, contiguous_strides(&shape), 0)
    }
}

/// A kernel of an expression, later.
struct DelayedKernel {
    memory: DelayedMemory,
    below: Arc<dyn PointwiseKernel>,
}

impl PointwiseKernel for DelayedKernel {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) -> Result<()> {
        let (below, params) = (Arc::clone(&self.below), params.to_vec());
        launch(&self.memory, inputs, out, move |inputs, out| {
            // SAFETY: the caller's promise, which is about the time when the kernel runs.
            unsafe { below.run(inputs, &params, out) }
        })
    }
}

impl Expressions for Delayed {
    fn prepare(&self, lowered: &Lowered) -> Offer<Arc<dyn PointwiseKernel>> {
        prepare(&self.below, lowered)
            .map(|below| Arc::new(DelayedKernel { memory: self.memory.clone(), below }) as _)
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

    fn linalg(&self) -> Option<&dyn Linalg> {
        self.with(Group::Linalg).map(|own| own as _)
    }

    fn index(&self) -> Option<&dyn Index> {
        self.with(Group::Index).map(|own| own as _)
    }

    fn random(&self) -> Option<&dyn Random> {
        self.with(Group::Random).map(|own| own as _)
    }
}
