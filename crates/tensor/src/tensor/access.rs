//! Reading and writing elements.

use std::sync::OnceLock;

use keyfold_core::{
    Complex, DType, DTypeKind, Device, Element, Error, ErrorKind, Result, Scalar, bf16, f16, layout,
};

use super::Tensor;
use crate::buffer::NullBuffer;
use crate::strided::Walk;

/// Reads one element. A byte of a bool from another library may be neither 0 nor 1, which is
/// invalid for Rust's `bool`: it is read as a byte, and every byte but 0 is true.
///
/// # Safety
/// `ptr` is valid for reading an initialised, aligned element of `T`'s dtype.
#[inline]
unsafe fn read<T: Element>(ptr: *const T) -> T {
    if matches!(T::DTYPE, DType::Bool) {
        // SAFETY: a bool element is one initialised byte.
        let byte = unsafe { ptr.cast::<u8>().read() };
        return T::from_scalar(Scalar::Bool(byte != 0));
    }
    // SAFETY: the caller's contract; all other elements are valid for any bits.
    unsafe { ptr.read() }
}

/// Reads one element of any dtype.
///
/// # Safety
/// As [`read`], for `dtype`.
unsafe fn read_scalar(ptr: *const u8, dtype: DType) -> Scalar {
    // SAFETY: the caller's contract, with the element type of the dtype.
    unsafe {
        match dtype {
            DType::Bool => read(ptr.cast::<bool>()).to_scalar(),
            DType::U8 => read(ptr).to_scalar(),
            DType::U16 => read(ptr.cast::<u16>()).to_scalar(),
            DType::U32 => read(ptr.cast::<u32>()).to_scalar(),
            DType::U64 => read(ptr.cast::<u64>()).to_scalar(),
            DType::I8 => read(ptr.cast::<i8>()).to_scalar(),
            DType::I16 => read(ptr.cast::<i16>()).to_scalar(),
            DType::I32 => read(ptr.cast::<i32>()).to_scalar(),
            DType::I64 => read(ptr.cast::<i64>()).to_scalar(),
            DType::F16 => read(ptr.cast::<f16>()).to_scalar(),
            DType::BF16 => read(ptr.cast::<bf16>()).to_scalar(),
            DType::F32 => read(ptr.cast::<f32>()).to_scalar(),
            DType::F64 => read(ptr.cast::<f64>()).to_scalar(),
            DType::C64 => read(ptr.cast::<Complex<f32>>()).to_scalar(),
            DType::C128 => read(ptr.cast::<Complex<f64>>()).to_scalar(),
        }
    }
}

/// See [`before_lending`].
static BEFORE_LENDING: OnceLock<fn(&Tensor) -> Result<()>> = OnceLock::new();

/// Sets the function that runs before a tensor's memory is [lent](Tensor::lend) the first time: a layer that defers
/// calls runs those that read it. Returns false, without effect, if one is set already.
pub fn before_lending(settle: fn(&Tensor) -> Result<()>) -> bool {
    BEFORE_LENDING.set(settle).is_ok()
}

impl Tensor {
    /// Notes that another library is given the address for longer than a call, so that it may write without a
    /// count. What waits to read the memory runs before.
    ///
    /// # Errors
    /// Those of [`before_lending`]'s function.
    pub fn lend(&self) -> Result<()> {
        if let Some(settle) = BEFORE_LENDING.get()
            && !self.buffer.is_lent()
        {
            settle(self)?;
        }
        self.buffer.lend();
        Ok(())
    }

    #[cold]
    pub(super) fn no_memory(&self) -> Error {
        let device = self.device();
        let (kind, why) = match device {
            Device::META => (ErrorKind::NotSupported, "has no memory; use one on cpu"),
            _ if self.has_no_memory() => {
                (ErrorKind::Device, "only stands for others, and has no memory to read")
            }
            _ => (
                ErrorKind::Device,
                "has memory that the host can't reach; copy it to the host with .cpu()",
            ),
        };
        Error::new(kind, format!("a tensor on {device} {why}"))
    }

    /// Returns whether the tensor has a size but no memory: on meta, and if it represents another.
    pub(super) fn has_no_memory(&self) -> bool {
        self.buffer.downcast_ref::<NullBuffer>().is_some()
    }

    #[cold]
    fn wrong_type(&self, wanted: DType) -> Error {
        Error::new(
            ErrorKind::DType,
            format!("the tensor's dtype is {}, and not {wanted}", self.dtype()),
        )
    }

    /// Returns the address of the first element, after checking type and device. Bools may be read
    /// as `u8`, since Rust's `bool` is invalid for bytes other than 0 and 1.
    ///
    /// It is aligned and, unless the tensor has no elements, not null.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] if `T` isn't the dtype's type, [`ErrorKind::Device`] or
    /// [`ErrorKind::NotSupported`] if the host can't access the memory.
    #[inline]
    pub fn data_ptr<T: Element>(&self) -> Result<*const T> {
        let dtype = self.dtype();
        if dtype != T::DTYPE && !(dtype == DType::Bool && T::DTYPE == DType::U8) {
            return Err(self.wrong_type(T::DTYPE));
        }
        Ok(self.host_start()?.cast::<T>().wrapping_add(self.offset))
    }

    /// Returns the present host address of the buffer's first element.
    #[inline]
    fn host_start(&self) -> Result<*mut u8> {
        if self.base.is_null() { self.find_start() } else { Ok(self.base) }
    }

    #[cold]
    fn find_start(&self) -> Result<*mut u8> {
        if self.device() != Device::CPU {
            return Err(self.no_memory());
        }
        let start = self.buffer.locate()?;
        // A tensor that represents another has a device but no memory.
        if start.is_null() && self.numel > 0 { Err(self.no_memory()) } else { Ok(start) }
    }

    /// Returns whether the memory has one host address as long as the tensor lives. It doesn't if
    /// the host can't access it, or if another library may move it: see [`Tensor::pinned`].
    #[inline]
    pub fn is_pinned(&self) -> bool {
        !self.base.is_null()
    }

    /// Returns whether another library may move the elements while the tensor lives, so that no
    /// address may be stored.
    #[inline]
    pub fn moves(&self) -> bool {
        !self.is_pinned() && self.numel > 0 && self.buffer.moves()
    }

    /// Returns the same elements at an address that stays valid as long as the result: a copy if
    /// [`Tensor::moves`], the tensor itself otherwise.
    ///
    /// # Errors
    /// [`ErrorKind::Exchange`] if the memory was freed or is too small, and for movable memory that
    /// the host can't copy.
    pub fn into_lasting(mut self) -> Result<Tensor> {
        // A tensor that borrows its memory for a call takes a reference, after which it may move.
        self.track();
        if !self.moves() {
            return Ok(self);
        }
        if self.device() != Device::CPU {
            return Err(Error::new(
                ErrorKind::Exchange,
                format!(
                    "memory on {} that another library owns and may move can't be handed on: give \
                     that library's own array",
                    self.device()
                ),
            ));
        }
        self.copy()
    }

    /// Returns the same view at the memory's present address, for one access by a kernel that uses
    /// the address several times or on several threads; `None` for memory that can't move. It must
    /// be dropped before the other library can move the memory.
    ///
    /// # Errors
    /// [`ErrorKind::Exchange`] if the memory was freed or is too small.
    pub fn pinned(&self) -> Result<Option<Tensor>> {
        if self.is_pinned() {
            return Ok(None);
        }
        let pinned = self.buffer.pinned()?;
        Ok(pinned.map(|buffer| {
            let view = (self.shape.clone(), self.strides.clone());
            Tensor::assume_inside(buffer, view.0, view.1, self.offset, self.numel)
        }))
    }

    /// Returns the address of the first element of a pinned tensor ([`Tensor::is_pinned`]). The
    /// result for other tensors must not be used.
    #[inline]
    pub fn pinned_ptr(&self) -> *mut u8 {
        self.base.wrapping_add(self.offset * self.dtype().size())
    }

    /// Returns the present address of the first element, for comparison with other addresses; 0
    /// without memory, and for memory that is or was [pending](crate::PendingBuffer), which its
    /// [identity](crate::BufferHandle::identity) distinguishes.
    #[inline]
    pub fn address(&self) -> usize {
        if self.is_pinned() { self.pinned_ptr().addr() } else { self.find_address() }
    }

    #[cold]
    fn find_address(&self) -> usize {
        match self.buffer.pending() {
            Some(_) => 0,
            None => self.find_raw().map_or(0, |ptr| ptr.addr()),
        }
    }

    /// As [`Tensor::data_ptr`], for writing.
    ///
    /// # Errors
    /// As [`Tensor::data_ptr`] and [`Tensor::begin_write`].
    #[inline]
    pub fn data_mut_ptr<T: Element>(&self) -> Result<*mut T> {
        let ptr = self.data_ptr::<T>()?;
        self.begin_write()?;
        Ok(ptr.cast_mut())
    }

    /// Prepares a write through an address: checks that the memory may be written and that no two
    /// indices are the same element, and counts the write.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`], and [`ErrorKind::Value`] if elements share memory.
    #[inline]
    pub fn begin_write(&self) -> Result<()> {
        self.check_write()?;
        self.note_write();
        Ok(())
    }

    /// As [`Tensor::begin_write`], without counting the write, which may not take place.
    ///
    /// # Errors
    /// As [`Tensor::begin_write`].
    #[inline]
    pub fn check_write(&self) -> Result<()> {
        self.check_writable()?;
        if !self.is_contiguous() && self.may_overlap_itself() {
            return Err(self.overlaps_itself());
        }
        Ok(())
    }

    #[cold]
    pub(super) fn overlaps_itself(&self) -> Error {
        Error::new(
            ErrorKind::Value,
            format!(
                "can't write into a tensor of shape {:?} and strides {:?}: several indices may be \
                 the same element of memory; write to a copy of it",
                self.shape(),
                self.strides()
            ),
        )
    }

    /// # Errors
    /// [`ErrorKind::ReadOnly`] if the memory must not be written.
    #[inline]
    pub fn check_writable(&self) -> Result<()> {
        if self.is_writable() {
            return Ok(());
        }
        Err(self.not_writable())
    }

    #[cold]
    fn not_writable(&self) -> Error {
        let message = if self.may_overlap_itself() {
            format!(
                "the tensor can't be written: elements of its shape {:?} share memory (strides \
                 {:?}), as after expand or broadcast_to; write to a copy of it (clone())",
                self.shape, self.strides
            )
        } else {
            "the tensor's memory is read-only; write to a copy of it".to_owned()
        };
        Error::new(ErrorKind::ReadOnly, message)
    }

    /// Returns the address of the first element in its device's address space, for any dtype; null
    /// if there is none. Valid for one access, since another library may move its memory
    /// afterwards. For foreign code use [`Tensor::exchange_ptr`].
    ///
    /// # Errors
    /// [`ErrorKind::Exchange`] if another library freed the memory or made it too small.
    #[inline]
    pub fn raw_data_ptr(&self) -> Result<*mut u8> {
        if self.is_pinned() { Ok(self.pinned_ptr()) } else { self.find_raw() }
    }

    #[cold]
    fn find_raw(&self) -> Result<*mut u8> {
        let start = self.buffer.locate()?;
        if start.is_null() {
            return Ok(start);
        }
        Ok(start.wrapping_add(self.offset * self.dtype().size()))
    }

    /// As [`Tensor::raw_data_ptr`], for foreign code: null only for tensors without elements and on
    /// meta.
    ///
    /// # Errors
    /// As [`Tensor::raw_data_ptr`], and [`ErrorKind::Device`] for memory without an address.
    #[inline]
    pub fn exchange_ptr(&self) -> Result<*mut u8> {
        if self.is_pinned() && self.numel > 0 {
            return Ok(self.pinned_ptr());
        }
        self.find_exchanged()
    }

    #[cold]
    fn find_exchanged(&self) -> Result<*mut u8> {
        if self.numel == 0 {
            return Ok(std::ptr::null_mut());
        }
        let ptr = self.find_raw()?;
        if !ptr.is_null() || self.device() == Device::META {
            return Ok(ptr);
        }
        Err(Error::new(
            ErrorKind::Device,
            format!(
                "a tensor on {} has no address that another library could use; copy it to the host \
                 with .cpu()",
                self.device()
            ),
        ))
    }

    /// Returns the elements of a contiguous tensor, in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::data_ptr`], and [`ErrorKind::Value`] if the tensor isn't contiguous, or if `T`
    /// is `bool` and a byte is neither 0 nor 1 (read them as `u8`).
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        let ptr = self.data_ptr::<T>()?;
        if !self.is_contiguous() {
            return Err(Error::new(
                ErrorKind::Value,
                format!(
                    "a tensor of shape {:?} and strides {:?} isn't contiguous; copy it with \
                     contiguous()",
                    self.shape, self.strides
                ),
            ));
        }
        // SAFETY: a contiguous view's elements are the `numel` ones from its first on, all inside
        // the buffer; the memory is initialised, and only unsafe code writes to it.
        unsafe { checked_slice(ptr, self.numel) }
    }

    /// Returns the memory from the lowest to the highest element of the view, and the position of
    /// the element at index zero in it. With [`Walk`], safe code can read any strided view from it.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`], for any layout.
    pub fn as_strided_slice<T: Element>(&self) -> Result<(&[T], usize)> {
        let ptr = self.data_ptr::<T>()?;
        let Some((first, last)) = layout::bounds(&self.shape, &self.strides, self.offset)? else {
            return Ok((&[], 0));
        };
        // SAFETY: `first..=last` lie inside the buffer, since the view's bounds were checked; the
        // memory is initialised, and only unsafe code writes to it.
        let slice =
            unsafe { checked_slice(ptr.wrapping_sub(self.offset - first), last - first + 1) }?;
        Ok((slice, self.offset - first))
    }

    /// Returns the elements mutably, if this tensor alone owns its memory, as a result under
    /// construction does.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`], and [`ErrorKind::ReadOnly`] if the memory is shared or read-only.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        let len = self.as_slice::<T>()?.len();
        self.check_exclusive()?;
        let ptr = self.data_ptr::<T>()?.cast_mut();
        // SAFETY: the slice was checked; this tensor's handle alone refers to the memory, and `&mut
        // self` borrows it as long as the result lives.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr, len) })
    }

    /// Checks that this tensor alone owns its memory and may write to it; no slice of it can exist
    /// during this exclusive borrow.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] if the memory is shared or read-only.
    pub fn check_exclusive(&mut self) -> Result<()> {
        self.check_writable()?;
        if self.buffer.is_sole_owner() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::ReadOnly,
            "the tensor shares its memory with another owner; write to a copy of it".to_owned(),
        ))
    }

    /// Returns the offset of an index from the buffer's start, in elements.
    fn place(&self, index: &[usize]) -> Result<usize> {
        let inside =
            index.len() == self.ndim() && index.iter().zip(&*self.shape).all(|(i, n)| i < n);
        if !inside {
            return Err(Error::new(
                ErrorKind::Index,
                format!("index {index:?} is out of range for shape {:?}", self.shape),
            ));
        }
        let steps = index.iter().zip(&*self.strides).map(|(i, stride)| *i as isize * stride);
        Ok((self.offset as isize + steps.sum::<isize>()) as usize)
    }

    /// Returns the element at an index, in host memory.
    ///
    /// # Errors
    /// As [`Tensor::data_ptr`], and [`ErrorKind::Index`] for an index out of range.
    pub fn get<T: Element>(&self, index: &[usize]) -> Result<T> {
        let first = self.data_ptr::<T>()?.wrapping_sub(self.offset);
        let place = self.place(index)?;
        // SAFETY: an index inside the shape is inside the buffer, and the type was checked.
        Ok(unsafe { read(first.wrapping_add(place)) })
    }

    /// Returns the element at an index, for any dtype. On a device it is downloaded.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for an index out of range, [`ErrorKind::Device`] or
    /// [`ErrorKind::NotSupported`] if the memory can't be read; the device's errors.
    pub fn get_scalar(&self, index: &[usize]) -> Result<Scalar> {
        if self.base.is_null() && self.device() != Device::CPU {
            let (bytes, place) = (self.dtype().size(), self.place(index)?);
            let mut element = [0_u128; 1];
            // SAFETY: 16 initialised and aligned bytes, enough for any element.
            return unsafe {
                let start = element.as_mut_ptr().cast::<u8>();
                self.download_at(place, std::slice::from_raw_parts_mut(start, bytes))?;
                Ok(read_scalar(start, self.dtype()))
            };
        }
        let start = self.host_start()?;
        let place = self.place(index)?;
        let ptr = start.wrapping_add(place * self.dtype().size());
        // SAFETY: an index inside the shape is inside the buffer.
        Ok(unsafe { read_scalar(ptr, self.dtype()) })
    }

    /// Returns the only element of a tensor of one element.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for another number of elements, and as [`Tensor::get_scalar`].
    pub fn item(&self) -> Result<Scalar> {
        if self.numel != 1 {
            return Err(Error::new(
                ErrorKind::Value,
                format!(
                    "only a tensor of one element is a number; this one has {} (shape {:?})",
                    self.numel, self.shape
                ),
            ));
        }
        // All sizes are 1, so all indices are 0.
        self.get_scalar(&self.shape.iter().map(|size| size - 1).collect::<Vec<_>>())
    }

    /// Copies the elements in row-major order, for any layout. On a device they are downloaded.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] if `T` isn't the dtype's type, [`ErrorKind::Device`] or
    /// [`ErrorKind::NotSupported`] if the memory can't be read, [`ErrorKind::Memory`] if there is
    /// none left; the device's errors.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if self.base.is_null() && self.device() != Device::CPU {
            return self.on_host()?.to_vec();
        }
        let ptr = self.data_ptr::<T>()?;
        let mut items = Vec::new();
        items.try_reserve_exact(self.numel).map_err(|_| {
            let bytes = self.nbytes();
            Error::new(ErrorKind::Memory, format!("can't allocate {bytes} bytes for a copy"))
        })?;
        let walk = Walk::new(&self.shape, [&self.strides])?;
        let (len, [step]) = (walk.run_len(), walk.run_steps());
        walk.runs(|[start]| {
            // SAFETY: a walk over the view's shape and strides stays inside its buffer, and the
            // type was checked.
            items.extend(
                (0..len as isize).map(|i| unsafe { read(ptr.wrapping_offset(start + i * step)) }),
            );
        });
        Ok(items)
    }
}

/// Returns a slice of elements; the bytes of bools are checked.
///
/// # Safety
/// `ptr` is aligned and valid for reading `len` initialised elements of `T`'s dtype as long as the
/// result lives, and they aren't written meanwhile.
unsafe fn checked_slice<'a, T: Element>(ptr: *const T, len: usize) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if matches!(T::DTYPE.kind(), DTypeKind::Bool) {
        // SAFETY: the caller's contract; a bool element is one byte.
        let bytes = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), len) };
        if let Some(wrong) = bytes.iter().find(|b| **b > 1) {
            return Err(Error::new(
                ErrorKind::Value,
                format!("the tensor holds a bool whose byte is {wrong}; read its bytes as uint8"),
            ));
        }
    }
    // SAFETY: the caller's contract; bools were checked above.
    Ok(unsafe { std::slice::from_raw_parts(ptr, len) })
}
