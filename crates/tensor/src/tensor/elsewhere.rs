//! Tensors without a fixed host address: on devices, in other libraries' movable memory, and
//! without memory.

use keyfold_core::{DType, Device, Error, ErrorKind, Result, layout};

use super::Tensor;
use crate::device::{self, Content, Part, current_stream, transfer};

impl Tensor {
    /// Returns the tensor as a part of its buffer.
    fn part<'a>(&'a self, buffer: &'a dyn crate::DeviceBuffer) -> Part<'a> {
        let size = self.dtype().size();
        Part::inside(buffer, self.offset * size, &self.shape, &self.strides, size)
    }

    /// Returns a tensor filled with one element, on a device other than the CPU.
    pub(super) fn filled_on(
        shape: &[usize],
        element: &[u8],
        dtype: DType,
        device: Device,
    ) -> Result<Self> {
        if device == Device::META || element.iter().all(|byte| *byte == 0) {
            return Tensor::zeros(shape, dtype, device);
        }
        let tensor = Tensor::empty(shape, dtype, device)?;
        if tensor.numel > 0 {
            let (memory, buffer) = (tensor.buffer.memory_to_copy()?, tensor.buffer.buffer());
            // SAFETY: the tensor isn't shared yet.
            unsafe { memory.fill(&tensor.part(&*buffer), element, current_stream(device))? };
        }
        Ok(tensor)
    }

    /// As [`Tensor::copy`]. The memory that allocated this tensor copies it, also after its removal
    /// from the registry.
    #[cold]
    pub(super) fn copy_unpinned(&self) -> Result<Tensor> {
        if let Some(pinned) = self.pinned()? {
            return pinned.copy();
        }
        let memory = self.buffer.memory_to_copy()?;
        let bytes = self.nbytes();
        let buffer = device::allocate_in(&*memory, self.device(), bytes, Content::Arbitrary)?;
        let copy = Tensor::whole(buffer, self.shape.clone(), self.numel, self.dtype());
        // SAFETY: the copy isn't shared yet.
        unsafe { copy.receive(self)? };
        Ok(copy)
    }

    /// As [`Tensor::copy_from`], for a source that was broadcast and checked. At least one of the
    /// two has no fixed host address.
    ///
    /// # Safety
    /// As [`Tensor::copy_from`].
    #[cold]
    pub(super) unsafe fn copy_from_unpinned(&self, source: &Tensor) -> Result<()> {
        if self.device() != source.device() {
            let without = [self, source].into_iter().find(|t| t.device() == Device::META);
            return Err(match without {
                Some(tensor) => tensor.no_memory(),
                None => Error::new(
                    ErrorKind::Device,
                    format!(
                        "can't copy elements on {} into a tensor on {}; copy them there before, with \
                         .to({:?})",
                        source.device(),
                        self.device(),
                        self.device().to_string()
                    ),
                ),
            });
        }
        if let Some(without) = [self, source].into_iter().find(|t| t.has_no_memory()) {
            return Err(without.no_memory());
        }
        // The memory reads and writes in any order, so an overlapping source is copied first.
        let copy = if source.touches(self) { Some(source.copy()?) } else { None };
        // SAFETY: the caller's contract; the source doesn't overlap.
        unsafe { self.receive(copy.as_ref().unwrap_or(source))? };
        self.note_write();
        Ok(())
    }

    /// Writes the elements of a tensor of the same shape and dtype, on a device of the same type,
    /// without shared memory.
    ///
    /// # Safety
    /// As [`Tensor::copy_from`].
    unsafe fn receive(&self, source: &Tensor) -> Result<()> {
        if self.numel == 0 {
            return Ok(());
        }
        let memory = self.buffer.memory_to_copy()?;
        source.buffer.complete()?;
        if !source.is_of(memory.identity()) {
            self.check_backend()?;
            return Err(source.backend_removed());
        }
        let (from, to) = (source.buffer.buffer(), self.buffer.buffer());
        // SAFETY: the caller's contract.
        unsafe { device::copy_within(&*memory, &source.part(&*from), &self.part(&*to)) }
    }

    /// Returns the tensor on another device: a contiguous copy with the backend's key alone, or the
    /// tensor itself if it is on that device. On meta only shape and dtype are kept.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] for a device without memory, an index out of range, and for a tensor
    /// on meta, which has no elements to copy; as [`Tensor::copy`].
    ///
    /// # Examples
    /// ```
    /// use keyfold_core::{Device, Result};
    /// use keyfold_tensor::Tensor;
    ///
    /// /// The sum of a tensor's elements, wherever they are.
    /// fn total(x: &Tensor) -> Result<f64> {
    ///     Ok(x.to_device(Device::CPU)?.to_vec::<f64>()?.iter().sum())
    /// }
    ///
    /// let x = Tensor::from_slice(&[1.0, 2.0, 3.5], &[3])?;
    /// assert_eq!(total(&x)?, 6.5);
    /// assert!(total(&x.to_device(Device::META)?).is_err());
    /// # Ok::<(), keyfold_core::Error>(())
    /// ```
    pub fn to_device(&self, device: Device) -> Result<Tensor> {
        let own = self.device();
        if device == own {
            return self.check_backend().map(|()| self.clone());
        }
        if device == Device::META {
            return Tensor::meta(&self.shape, self.dtype());
        }
        if self.has_no_memory() {
            return Err(Error::new(
                ErrorKind::Device,
                format!(
                    "a tensor on {own} has no data to bring to {device}; make one with zeros()"
                ),
            ));
        }
        let target = device::memory_of(device)?;
        if device.kind() == own.kind() {
            let copy = Tensor::empty(&self.shape, self.dtype(), device)?;
            // SAFETY: the copy isn't shared yet.
            unsafe { copy.receive(self)? };
            return Ok(copy);
        }
        let source = self.contiguous()?;
        let bytes = source.nbytes();
        let buffer = device::allocate_in(&*target, device, bytes, Content::Arbitrary)?;
        let copy = Tensor::whole(buffer, self.shape.clone(), self.numel, self.dtype());
        if bytes > 0 {
            let memory = source.buffer.memory_to_copy()?;
            let (from, to) = (source.buffer.buffer(), copy.buffer.buffer());
            // SAFETY: the copy isn't shared yet, and the source is only read.
            unsafe {
                transfer((&*memory, &source.part(&*from)), (&*target, &copy.part(&*to)))?;
            }
        }
        Ok(copy)
    }

    /// Checks that the tensor isn't of a removed backend whose device has another one now.
    ///
    /// # Errors
    /// [`ErrorKind::Device`], with a correction.
    #[inline]
    pub fn check_backend(&self) -> Result<()> {
        if self.device().kind().is_host() { Ok(()) } else { self.check_memory() }
    }

    #[cold]
    fn check_memory(&self) -> Result<()> {
        let now = device::memory(self.device().kind());
        let stays = now.is_none_or(|memory| self.is_of(memory.identity()));
        if stays { Ok(()) } else { Err(self.backend_removed()) }
    }

    /// Returns whether its memory has that [identity](device::Memory::identity), or is another
    /// library's.
    pub fn is_of(&self, memory: usize) -> bool {
        let own = self.buffer.memory();
        own.is_none_or(|own| own.identity() == memory) || self.has_no_memory()
    }

    /// Returns the error for a tensor that the backend of its device can't access.
    #[cold]
    pub fn backend_removed(&self) -> Error {
        let device = self.device();
        let message = format!(
            "the tensor is of a backend of {device} that was removed, and not of the one that is there; \
             copy it to the CPU with .cpu(), and from there with .to(\"{device}\")"
        );
        Error::new(ErrorKind::Device, message)
    }

    /// As [`Tensor::touches`], if one of the two has no address: memory without an address is
    /// shared only by tensors of one buffer.
    #[cold]
    pub(super) fn touches_unlocated(&self, other: &Tensor) -> bool {
        let span = |t: &Tensor| {
            let (first, last) = layout::bounds(&t.shape, &t.strides, t.offset).ok()??;
            Some((first * t.dtype().size(), (last + 1) * t.dtype().size()))
        };
        match (span(self), span(other)) {
            (Some(a), Some(b)) if self.buffer.identity() == other.buffer.identity() => {
                a.0 < b.1 && b.0 < a.1
            }
            _ => false,
        }
    }

    /// Returns whether the elements can be copied to the host: not from meta, which has none, nor
    /// from other libraries' memory on a device without a registered memory.
    pub fn can_download(&self) -> bool {
        !self.has_no_memory() && self.buffer.memory().is_some()
    }

    /// Returns the tensor on the host, to read it.
    ///
    /// # Errors
    /// As [`Tensor::to_device`]; for memory that can't be read, the error of reading by address.
    #[cold]
    pub(super) fn on_host(&self) -> Result<Tensor> {
        self.buffer.complete()?;
        if !self.can_download() {
            return Err(self.no_memory());
        }
        self.to_device(Device::CPU)
    }

    /// Downloads the bytes of the element at an offset in elements from the buffer's start.
    ///
    /// # Errors
    /// As [`device::Memory::download`]; for memory that can't be read, the error of reading by
    /// address.
    #[cold]
    pub(super) fn download_at(&self, place: usize, bytes: &mut [u8]) -> Result<()> {
        if self.has_no_memory() {
            return Err(self.no_memory());
        }
        self.buffer.complete()?;
        let Some(memory) = self.buffer.memory() else { return Err(self.no_memory()) };
        let buffer = self.buffer.buffer();
        let part = Part::new(&*buffer, place * bytes.len(), &[], &[], bytes.len())?;
        memory.download(&part, bytes, current_stream(self.device()))
    }
}
