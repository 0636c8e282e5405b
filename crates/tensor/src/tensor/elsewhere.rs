//! Tensors whose memory the host doesn't find at a lasting address: on devices, in other libraries'
//! movable memory, and without memory.

use keyfold_core::{DType, Device, Error, ErrorKind, Result, layout};

use super::Tensor;
use crate::device::{self, Content, Part, current_stream, transfer};

impl Tensor {
    /// The tensor as a part of its buffer.
    fn part<'a>(&'a self, buffer: &'a dyn crate::DeviceBuffer) -> Part<'a> {
        let size = self.dtype().size();
        Part::inside(buffer, self.offset * size, &self.shape, &self.strides, size)
    }

    /// A tensor with the same element everywhere, on a device other than the CPU.
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
            // SAFETY: nobody else has the tensor yet.
            unsafe { memory.fill(&tensor.part(&*buffer), element, current_stream(device))? };
        }
        Ok(tensor)
    }

    /// As [`Tensor::copy`]. The copy is of the memory that allocated this tensor's, which may have been
    /// removed from the registry since.
    #[cold]
    pub(super) fn copy_unpinned(&self) -> Result<Tensor> {
        if let Some(pinned) = self.pinned()? {
            return pinned.copy();
        }
        let memory = self.buffer.memory_to_copy()?;
        let bytes = self.nbytes();
        let buffer = device::allocate_in(&*memory, self.device(), bytes, Content::Arbitrary)?;
        let copy = Tensor::whole(buffer, self.shape.clone(), self.numel, self.dtype());
        // SAFETY: nobody else has the copy yet.
        unsafe { copy.receive(self)? };
        Ok(copy)
    }

    /// As [`Tensor::copy_from`], of a source that was broadcast and checked. At least one of the two has
    /// no lasting address.
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
        // The memory reads and writes in any order.
        let copy = if source.touches(self) { Some(source.copy()?) } else { None };
        // SAFETY: the caller's promise; the source is elsewhere.
        unsafe { self.receive(copy.as_ref().unwrap_or(source))? };
        self.note_write();
        Ok(())
    }

    /// Writes the elements of a tensor of the same shape and dtype, on a device of the same type, which
    /// shares no memory with this one.
    ///
    /// # Safety
    /// As [`Tensor::copy_from`].
    unsafe fn receive(&self, source: &Tensor) -> Result<()> {
        if self.numel == 0 {
            return Ok(());
        }
        let memory = self.buffer.memory_to_copy()?;
        if !source.is_of(memory.identity()) {
            self.check_backend()?;
            return Err(source.backend_removed());
        }
        let (from, to) = (source.buffer.buffer(), self.buffer.buffer());
        // SAFETY: the caller's promise.
        unsafe { device::copy_within(&*memory, &source.part(&*from), &self.part(&*to)) }
    }

    /// The tensor on another device: a copy, row-major without gaps, with the backend's key alone; the
    /// tensor itself if it is there already. On meta it keeps its shape and dtype only.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] for a device without memory, an index that isn't there, and for a tensor
    /// on meta, which has nothing to copy; as [`Tensor::copy`].
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
            // SAFETY: nobody else has the copy yet.
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
            // SAFETY: nobody else has the copy yet, and the source is only read.
            unsafe {
                transfer((&*memory, &source.part(&*from)), (&*target, &copy.part(&*to)))?;
            }
        }
        Ok(copy)
    }

    /// That the tensor isn't of a backend that was removed and whose device has another one now.
    ///
    /// # Errors
    /// [`ErrorKind::Device`], with what to do.
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

    /// Whether its memory is the one of that [identity](device::Memory::identity), or another library's.
    pub fn is_of(&self, memory: usize) -> bool {
        let own = self.buffer.memory();
        own.is_none_or(|own| own.identity() == memory) || self.has_no_memory()
    }

    /// The error of a tensor that the backend of its device can't reach.
    #[cold]
    pub fn backend_removed(&self) -> Error {
        let device = self.device();
        let message = format!(
            "the tensor is of a backend of {device} that was removed, and not of the one that is there; \
             copy it to the CPU with .cpu(), and from there with .to(\"{device}\")"
        );
        Error::new(ErrorKind::Device, message)
    }

    /// As [`Tensor::touches`], where one of the two has no address: memory without an address is shared
    /// by tensors of one buffer only.
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

    /// Whether the elements can be brought to the host: not from meta, where there are none, nor from
    /// other libraries' memory on a device that has no memory here.
    pub fn can_download(&self) -> bool {
        !self.has_no_memory() && self.buffer.memory().is_some()
    }

    /// The tensor on the host, for reading it.
    ///
    /// # Errors
    /// As [`Tensor::to_device`]; for memory that there is no way to, as for reading by address.
    #[cold]
    pub(super) fn on_host(&self) -> Result<Tensor> {
        if !self.can_download() {
            return Err(self.no_memory());
        }
        self.to_device(Device::CPU)
    }

    /// Downloads the bytes of the element at a place, counted in elements from the buffer's start.
    ///
    /// # Errors
    /// As [`device::Memory::download`]; for memory that there is no way to, as for reading by address.
    #[cold]
    pub(super) fn download_at(&self, place: usize, bytes: &mut [u8]) -> Result<()> {
        if self.has_no_memory() {
            return Err(self.no_memory());
        }
        let Some(memory) = self.buffer.memory() else { return Err(self.no_memory()) };
        let buffer = self.buffer.buffer();
        let part = Part::new(&*buffer, place * bytes.len(), &[], &[], bytes.len())?;
        memory.download(&part, bytes, current_stream(self.device()))
    }
}
