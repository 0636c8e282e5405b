//! The memory of devices whose backend is written in Python: blocks of the host that no tensor gives
//! the address of. The backend's methods are given arrays over them.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result, Shape, Strides};
use keyfold_tensor::device::{
    Content, Event, HostMemory, Memory, Part, Statistics, StreamId, check_stream,
};
use keyfold_tensor::{BufferHandle, DeviceBuffer, HostBuffer, Tensor};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::object::Object;
use crate::marshal::arrays::numpy_array;
use crate::marshal::errors::IntoPyResult;
use crate::marshal::tensor::wrap;

/// One device in numbers.
#[derive(Default)]
struct Counts {
    in_use: AtomicU64,
    peak: AtomicU64,
    allocations: AtomicU64,
    limit: AtomicU64,
}

struct Inner {
    kind: DeviceType,
    object: Arc<Object>,
    counts: Vec<Counts>,
}

/// The memory of a backend's devices. Each has one stream, and every operation waits for what the
/// backend's methods queued: its method `synchronize`, where it has one.
#[derive(Clone)]
pub(super) struct PyMemory(Arc<Inner>);

impl fmt::Debug for PyMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of backend '{}'", self.0.object.name)
    }
}

/// A block with its device.
pub(super) struct PyBlock {
    memory: PyMemory,
    device: Device,
    bytes: u64,
    block: Arc<HostBuffer>,
    version: AtomicU32,
}

impl PyBlock {
    /// The host's block, which arrays over it keep; none for a block of another backend.
    pub(super) fn of(&self, backend: &Object) -> Option<Arc<HostBuffer>> {
        let own = std::ptr::eq(&*self.memory.0.object, backend);
        own.then(|| Arc::clone(&self.block))
    }
}

impl Drop for PyBlock {
    fn drop(&mut self) {
        if let Ok(counts) = self.memory.counts(self.device) {
            counts.in_use.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for PyBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PyBlock(device={}, {} bytes)", self.device, self.bytes)
    }
}

// SAFETY: the fields never change, and the host is given no address.
unsafe impl DeviceBuffer for PyBlock {
    fn device(&self) -> Device {
        self.device
    }

    fn byte_len(&self) -> usize {
        self.block.byte_len()
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(&self.memory)
    }

    fn version(&self) -> Option<&AtomicU32> {
        Some(&self.version)
    }
}

impl PyMemory {
    pub(super) fn new(kind: DeviceType, object: Arc<Object>) -> Self {
        let counts = (0..object.device_count).map(|_| Counts::default()).collect();
        PyMemory(Arc::new(Inner { kind, object, counts }))
    }

    fn counts(&self, device: Device) -> Result<&Counts> {
        let counts = self.0.counts.get(usize::from(device.index()));
        counts
            .filter(|_| device.kind() == self.0.kind)
            .ok_or_else(|| Error::new(ErrorKind::Device, format!("{self:?} has no {device}")))
    }

    /// Waits for what the backend queued, and checks where the operation is to run.
    fn begin(&self, device: Device, stream: StreamId) -> Result<()> {
        self.counts(device)?;
        check_stream(self, device, stream)?;
        self.0.object.synchronize(device)
    }

    /// Runs an operation on the host's block of a part.
    fn on_host<R>(&self, part: &Part<'_>, f: impl FnOnce(&Part<'_>) -> Result<R>) -> Result<R> {
        let own = part.buffer().downcast_ref::<PyBlock>();
        let own = own.filter(|own| Arc::ptr_eq(&own.memory.0, &self.0)).ok_or_else(|| {
            Error::new(ErrorKind::Device, format!("{self:?} can't reach {:?}", part.buffer()))
        })?;
        let (offset, size) = (part.offset(), part.element_size());
        f(&Part::new(&*own.block, offset, part.shape(), part.strides(), size)?)
    }
}

impl Memory for PyMemory {
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn is_asynchronous(&self) -> bool {
        false
    }

    fn device_count(&self) -> usize {
        self.0.counts.len()
    }

    fn stream_count(&self, _device: Device) -> usize {
        1
    }

    fn allocate(
        &self,
        device: Device,
        bytes: usize,
        content: Content,
    ) -> Result<Arc<dyn DeviceBuffer>> {
        let counts = self.counts(device)?;
        let size = bytes as u64;
        let in_use = counts.in_use.fetch_add(size, Ordering::Relaxed) + size;
        let made = match self.0.object.memory_bytes {
            Some(all) if in_use > all => Err(Error::new(
                ErrorKind::Memory,
                format!(
                    "{device} has {all} bytes of memory, of which {} are in use: {bytes} more can't \
                     be had",
                    in_use - size
                ),
            )),
            _ if content == Content::Zeros => HostBuffer::zeroed(bytes),
            _ => HostBuffer::recycled(bytes),
        };
        let block = match made {
            Ok(block) => Arc::new(block),
            Err(error) => {
                counts.in_use.fetch_sub(size, Ordering::Relaxed);
                return Err(error);
            }
        };
        counts.peak.fetch_max(in_use, Ordering::Relaxed);
        counts.allocations.fetch_add(1, Ordering::Relaxed);
        let (memory, version) = (self.clone(), AtomicU32::new(0));
        Ok(Arc::new(PyBlock { memory, device, bytes: size, block, version }))
    }

    unsafe fn upload(&self, bytes: &[u8], target: &Part<'_>, stream: StreamId) -> Result<()> {
        self.begin(target.device(), stream)?;
        // SAFETY: the caller's promise.
        self.on_host(target, |to| unsafe { HostMemory.upload(bytes, to, StreamId::DEFAULT) })
    }

    fn download(&self, source: &Part<'_>, bytes: &mut [u8], stream: StreamId) -> Result<()> {
        self.begin(source.device(), stream)?;
        self.on_host(source, |from| HostMemory.download(from, bytes, StreamId::DEFAULT))
    }

    unsafe fn copy_strided(
        &self,
        source: &Part<'_>,
        target: &Part<'_>,
        stream: StreamId,
    ) -> Result<()> {
        self.begin(target.device(), stream)?;
        if source.device() != target.device() {
            self.begin(source.device(), StreamId::DEFAULT)?;
        }
        self.on_host(source, |from| {
            // SAFETY: the caller's promise.
            self.on_host(target, |to| unsafe {
                HostMemory.copy_strided(from, to, StreamId::DEFAULT)
            })
        })
    }

    unsafe fn fill(&self, target: &Part<'_>, element: &[u8], stream: StreamId) -> Result<()> {
        self.begin(target.device(), stream)?;
        // SAFETY: the caller's promise.
        self.on_host(target, |to| unsafe { HostMemory.fill(to, element, StreamId::DEFAULT) })
    }

    fn record(&self, device: Device, stream: StreamId) -> Result<Event> {
        self.begin(device, stream)?;
        Ok(Event::new(device, Instant::now()))
    }

    fn wait(&self, device: Device, stream: StreamId, event: &Event) -> Result<()> {
        self.counts(device)?;
        check_stream(self, device, stream)?;
        event.downcast_ref::<Instant>().map(|_| ())
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        event.downcast_ref::<Instant>().map(|_| true)
    }

    fn elapsed(&self, start: &Event, end: &Event) -> Result<i64> {
        HostMemory.elapsed(start, end)
    }

    fn synchronize(&self, device: Device) -> Result<()> {
        self.begin(device, StreamId::DEFAULT)
    }

    fn statistics(&self, device: Device) -> Result<Statistics> {
        let counts = self.counts(device)?;
        Ok(Statistics {
            in_use: counts.in_use.load(Ordering::Relaxed),
            cached: 0,
            peak: counts.peak.load(Ordering::Relaxed),
            allocations: counts.allocations.load(Ordering::Relaxed),
            limit: counts.limit.load(Ordering::Relaxed),
        })
    }

    /// Nothing is kept here, so every limit is observed.
    fn set_limit(&self, device: Device, limit: Option<u64>) -> Result<()> {
        self.counts(device)?.limit.store(limit.unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }
}

impl Object {
    /// An array over a tensor's block, which the array keeps; read-only unless it is an output.
    ///
    /// # Errors
    /// Memory that isn't of this backend.
    pub(super) fn array<'py>(
        &self,
        py: Python<'py>,
        tensor: &Tensor,
        writable: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = || {
            let Some(block) = tensor.buffer().downcast_ref::<PyBlock>() else {
                return Err(Error::new(
                    ErrorKind::Device,
                    format!("{:?} isn't the memory of a backend in Python", tensor.buffer()),
                ));
            };
            let Some(own) = block.of(self) else { return Err(tensor.backend_removed()) };
            let buffer = BufferHandle::new(own, tensor.dtype())?;
            let (shape, strides) = (Shape::new(tensor.shape())?, Strides::new(tensor.strides())?);
            Tensor::from_parts(buffer, shape, strides, tensor.offset())
        };
        let view = place().py(py)?;
        numpy_array::from_tensor(wrap(py, if writable { view } else { view.into_read_only() })?)
    }

    /// Arrays over the blocks of a kernel's inputs.
    pub(super) fn arrays<'py>(
        &self,
        py: Python<'py>,
        tensors: &[&Tensor],
    ) -> PyResult<Bound<'py, PyList>> {
        let arrays = tensors.iter().map(|tensor| self.array(py, tensor, false));
        PyList::new(py, arrays.collect::<PyResult<Vec<_>>>()?)
    }
}
