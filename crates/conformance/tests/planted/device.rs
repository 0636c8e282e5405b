//! A device that works late, with a defect in what it claims or in its copies.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use keyfold_backend::delayed::{Delayed, DelayedMemory};
use keyfold_backend::{
    GpuBackend, Groups, Index, Launch, Linalg, Offer, Operation, Pointwise, Random, Reduce,
    ReduceParams, Rows, Scan,
};
use keyfold_core::{DType, Device, Result};
use keyfold_tensor::device::{
    Content, Event, Memory, Part, Statistics, StreamId, set_current_stream,
};
use keyfold_tensor::{DeviceBuffer, Tensor};

/// The device; it computes `any`, and says that it doesn't.
#[derive(Debug)]
pub(crate) struct Wrapped {
    pub(crate) inner: Delayed,
    pub(crate) hides_any: bool,
    /// Whether a copy within a buffer copies all bytes from its first to its last.
    pub(crate) copies_spans: bool,
    /// The defect of reductions.
    pub(crate) defect: Option<LaunchDefect>,
}

/// A defect of the calls that queue reductions.
#[derive(Debug)]
pub(crate) enum LaunchDefect {
    /// They are queued on the default stream.
    IgnoresStream,
    /// The input waits in one place for all threads.
    SharesScratch(Box<Mutex<Option<Tensor>>>),
}

impl Wrapped {
    /// Returns the device without a defect.
    pub(crate) fn new(inner: Delayed) -> Wrapped {
        Wrapped { inner, hides_any: false, copies_spans: false, defect: None }
    }
}

impl Launch<ReduceParams> for Wrapped {
    unsafe fn launch(&self, params: &ReduceParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let offer = Reduce::reduce(&self.inner, params.op, inputs[0].dtype(), out.dtype());
        let kernel = offer.kernel().expect("the device below offers it");
        match &self.defect {
            Some(LaunchDefect::IgnoresStream) => {
                let stream = set_current_stream(out.device(), StreamId::DEFAULT)?;
                // SAFETY: the caller's contract, but for the stream, which is the defect.
                let launched = unsafe { kernel.launch(params, inputs, out) };
                set_current_stream(out.device(), stream)?;
                launched
            }
            Some(LaunchDefect::SharesScratch(scratch)) => {
                let lock = || scratch.lock().unwrap_or_else(PoisonError::into_inner);
                *lock() = Some(inputs[0].detach());
                std::thread::sleep(Duration::from_millis(2));
                let input = lock().clone().unwrap_or_else(|| inputs[0].detach());
                // SAFETY: the caller's contract; the other thread's input has the same shape.
                unsafe { kernel.launch(params, &[&input], out) }
            }
            // SAFETY: the caller's contract.
            None => unsafe { kernel.launch(params, inputs, out) },
        }
    }
}

impl GpuBackend for Wrapped {
    fn name(&self) -> &str {
        "wrapped"
    }

    fn memory(&self) -> Arc<dyn Memory> {
        match self.copies_spans {
            true => Arc::new(SpanMemory(self.inner.delayed_memory().clone())),
            false => self.inner.memory(),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        GpuBackend::pointwise(&self.inner)
    }

    fn reduce(&self) -> Option<&dyn Reduce> {
        Some(self)
    }

    fn rows(&self) -> Option<&dyn Rows> {
        GpuBackend::rows(&self.inner)
    }

    fn scan(&self) -> Option<&dyn Scan> {
        GpuBackend::scan(&self.inner)
    }

    fn linalg(&self) -> Option<&dyn Linalg> {
        GpuBackend::linalg(&self.inner)
    }

    fn index(&self) -> Option<&dyn Index> {
        GpuBackend::index(&self.inner)
    }

    fn random(&self) -> Option<&dyn Random> {
        GpuBackend::random(&self.inner)
    }

    fn groups(&self) -> Groups<'_> {
        GpuBackend::groups(&self.inner)
    }
}

impl Reduce for Wrapped {
    fn reduce(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>> {
        match op.name() {
            "any" if self.hides_any => Offer::No("it never heard of any".into()),
            _ => Reduce::reduce(&self.inner, op, input, output).map(|_| self as _),
        }
    }
}

/// The device's memory; copies within a buffer copy whole spans.
#[derive(Debug)]
struct SpanMemory(DelayedMemory);

impl Memory for SpanMemory {
    fn identity(&self) -> usize {
        self.0.identity()
    }

    fn device_count(&self) -> usize {
        self.0.device_count()
    }

    fn stream_count(&self, device: Device) -> usize {
        self.0.stream_count(device)
    }

    fn allocate(
        &self,
        device: Device,
        bytes: usize,
        content: Content,
    ) -> Result<Arc<dyn DeviceBuffer>> {
        self.0.allocate(device, bytes, content)
    }

    unsafe fn upload(&self, bytes: &[u8], target: &Part<'_>, stream: StreamId) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.0.upload(bytes, target, stream) }
    }

    fn download(&self, source: &Part<'_>, bytes: &mut [u8], stream: StreamId) -> Result<()> {
        self.0.download(source, bytes, stream)
    }

    unsafe fn copy_strided(
        &self,
        source: &Part<'_>,
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()> {
        let within = std::ptr::addr_eq(source.buffer(), target.buffer());
        if !within || source.is_contiguous() || source.numel() == 0 || source.shape().len() != 1 {
            // SAFETY: the caller's contract.
            return unsafe { self.0.copy_strided(source, target, stream) };
        }
        let span = (source.shape()[0] - 1) * source.strides()[0].unsigned_abs() + 1;
        let (shape, size) = ([span], source.element_size());
        let from = Part::new(source.buffer(), source.offset(), &shape, &[1], size)?;
        let to = Part::new(target.buffer(), target.offset(), &shape, &[1], size)?;
        let mut bytes = vec![0; span * size];
        self.0.download(&from, &mut bytes, stream)?;
        // SAFETY: the caller's contract.
        unsafe { self.0.upload(&bytes, &to, stream) }
    }

    unsafe fn fill(&self, target: &Part<'_>, element: &[u8], stream: StreamId) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.0.fill(target, element, stream) }
    }

    fn record(&self, device: Device, stream: StreamId) -> Result<Event> {
        self.0.record(device, stream)
    }

    fn wait(&self, device: Device, stream: StreamId, event: &Event) -> Result<()> {
        self.0.wait(device, stream, event)
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        self.0.is_done(event)
    }

    fn elapsed(&self, start: &Event, end: &Event) -> Result<i64> {
        self.0.elapsed(start, end)
    }

    fn synchronize(&self, device: Device) -> Result<()> {
        self.0.synchronize(device)
    }

    fn statistics(&self, device: Device) -> Result<Statistics> {
        self.0.statistics(device)
    }

    fn set_limit(&self, device: Device, limit: Option<u64>) -> Result<()> {
        self.0.set_limit(device, limit)
    }
}
