//! Reading and writing elements.

use keyfold_core::{
    Complex, DType, DTypeKind, Device, Element, Error, ErrorKind, Result, Scalar, bf16, f16, layout,
};

use super::Tensor;
use crate::buffer::NullBuffer;
use crate::strided::Walk;

/// Reads one element. A bool's byte may come from elsewhere and be neither 0 nor 1, which Rust's
/// `bool` mustn't: it is read as a byte, and anything but 0 is true.
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
    // SAFETY: the caller's promise; all other elements are valid whatever their bits.
    unsafe { ptr.read() }
}

/// Reads one element of any dtype.
///
/// # Safety
/// As [`read`], for `dtype`.
unsafe fn read_scalar(ptr: *const u8, dtype: DType) -> Scalar {
    // SAFETY: the caller's promise, for the type that stands for the dtype.
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

impl Tensor {
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

    /// Whether there is a size and nothing else: on meta, and for a tensor that stands for others.
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

    /// The address of the first element, checked for type and reachability. The bytes of bools can
    /// be had as `u8`, since Rust's `bool` is pickier about its bits than other libraries are.
    ///
    /// It is aligned and, where the tensor has elements, not null.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] when `T` isn't the dtype's type, [`ErrorKind::Device`] or
    /// [`ErrorKind::NotSupported`] when the host can't reach the memory.
    #[inline]
    pub fn data_ptr<T: Element>(&self) -> Result<*const T> {
        let dtype = self.dtype();
        if dtype != T::DTYPE && !(dtype == DType::Bool && T::DTYPE == DType::U8) {
            return Err(self.wrong_type(T::DTYPE));
        }
        Ok(self.host_start()?.cast::<T>().wrapping_add(self.offset))
    }

    /// Where the host finds the buffer's first element now.
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
        // A stand-in's buffer has a device and no memory.
        if start.is_null() && self.numel > 0 { Err(self.no_memory()) } else { Ok(start) }
    }

    /// Whether the host finds the memory at one address for as long as the tensor lives. It isn't so
    /// where the host can't reach it, nor where another library may move it: see
    /// [`Tensor::pinned`].
    #[inline]
    pub fn is_pinned(&self) -> bool {
        !self.base.is_null()
    }

    /// Whether the tensor has elements that another library may move while the tensor lives: none of
    /// their addresses may be handed to code that keeps it.
    pub fn moves(&self) -> bool {
        !self.is_pinned() && self.numel > 0 && self.buffer.moves()
    }

    /// The same elements at an address that stays good as long as the result lives: a copy where
    /// [`Tensor::moves`], the tensor itself otherwise.
    ///
    /// # Errors
    /// [`ErrorKind::Exchange`] when the memory is gone or too small, and for memory that moves and
    /// that the host can't copy.
    pub fn into_lasting(self) -> Result<Tensor> {
        // A tensor that borrows its memory for a call becomes one that owns a share, which may move.
        let tensor = self.into_tracked();
        if !tensor.moves() {
            return Ok(tensor);
        }
        if tensor.device() != Device::CPU {
            return Err(Error::new(
                ErrorKind::Exchange,
                format!(
                    "memory on {} that another library owns and may move can't be handed on: give \
                     that library's own array",
                    tensor.device()
                ),
            ));
        }
        tensor.copy()
    }

    /// The same view at the memory's present address, for one access by a kernel that finds it
    /// several times or on several threads; `None` for memory that no other library may move. It
    /// must be dropped before that library gets the chance to move the memory.
    ///
    /// # Errors
    /// [`ErrorKind::Exchange`] when the memory is gone or too small.
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

    /// The address of the first element of a pinned tensor ([`Tensor::is_pinned`]); of any other
    /// tensor no address that may be used.
    #[inline]
    pub fn pinned_ptr(&self) -> *mut u8 {
        self.base.wrapping_add(self.offset * self.dtype().size())
    }

    /// Where the first element is now, for comparing with other addresses; 0 where there is no memory.
    #[inline]
    pub fn address(&self) -> usize {
        self.raw_data_ptr().map_or(0, |ptr| ptr.addr())
    }

    /// As [`Tensor::data_ptr`], to write through.
    ///
    /// # Errors
    /// As [`Tensor::data_ptr`] and [`Tensor::begin_write`].
    #[inline]
    pub fn data_mut_ptr<T: Element>(&self) -> Result<*mut T> {
        let ptr = self.data_ptr::<T>()?;
        self.begin_write()?;
        Ok(ptr.cast_mut())
    }

    /// What a kernel does before it writes through an address: checks that the memory may be written
    /// and that no two indices are the same element, and counts the write.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`], and [`ErrorKind::Value`] where elements share memory.
    #[inline]
    pub fn begin_write(&self) -> Result<()> {
        self.check_write()?;
        self.note_write();
        Ok(())
    }

    /// As [`Tensor::begin_write`], without counting: of a write that may not come about.
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
    /// [`ErrorKind::ReadOnly`] when the memory must not be written.
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

    /// The address of the first element in its device's own address space, of whatever dtype; null
    /// where it has none. For the time of one access: another library may move its memory afterwards.
    /// Foreign code is passed [`Tensor::exchange_ptr`].
    ///
    /// # Errors
    /// [`ErrorKind::Exchange`] when another library took the memory away, or made it too small.
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

    /// As [`Tensor::raw_data_ptr`], for foreign code: null only where there is nothing to access, for
    /// tensors without elements and on meta.
    ///
    /// # Errors
    /// As [`Tensor::raw_data_ptr`], and [`ErrorKind::Device`] for memory that has no address.
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

    /// The elements in row-major order, where they lie that way.
    ///
    /// # Errors
    /// As [`Tensor::data_ptr`], and [`ErrorKind::Value`] when the tensor isn't contiguous, or when
    /// `T` is `bool` and a byte is neither 0 nor 1 (read them as `u8`).
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
        // SAFETY: a contiguous view's elements are the `numel` behind its first, all inside the
        // buffer; the memory is initialised and only unsafe code writes to it.
        unsafe { checked_slice(ptr, self.numel) }
    }

    /// All memory between the first and the last element that the view touches, with the place of
    /// the first (index zero) in it: what safe code needs to read any strided view, with the help of
    /// [`Walk`].
    ///
    /// # Errors
    /// As [`Tensor::as_slice`], except that any layout will do.
    pub fn as_strided_slice<T: Element>(&self) -> Result<(&[T], usize)> {
        let ptr = self.data_ptr::<T>()?;
        let Some((first, last)) = layout::bounds(&self.shape, &self.strides, self.offset)? else {
            return Ok((&[], 0));
        };
        // SAFETY: `first..=last` lie inside the buffer, as the view's bounds were checked when it
        // was made; the memory is initialised and only unsafe code writes to it.
        let slice =
            unsafe { checked_slice(ptr.wrapping_sub(self.offset - first), last - first + 1) }?;
        Ok((slice, self.offset - first))
    }

    /// The elements to change, where this tensor alone owns its memory: a result being built.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`], and [`ErrorKind::ReadOnly`] when the memory is shared or read-only.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        let len = self.as_slice::<T>()?.len();
        self.check_exclusive()?;
        let ptr = self.data_ptr::<T>()?.cast_mut();
        // SAFETY: the slice was checked; the memory belongs to this tensor's handle alone, which
        // `&mut self` locks for as long as the result lives.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr, len) })
    }

    /// That this tensor alone owns its memory and may write to it: nobody can have a slice of it
    /// while this reference is held.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] when the memory is shared or read-only.
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

    /// The place of an index, counted from the buffer's start.
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

    /// The element at an index, in host memory.
    ///
    /// # Errors
    /// As [`Tensor::data_ptr`], and [`ErrorKind::Index`] when the index is out of range.
    pub fn get<T: Element>(&self, index: &[usize]) -> Result<T> {
        let first = self.data_ptr::<T>()?.wrapping_sub(self.offset);
        let place = self.place(index)?;
        // SAFETY: an index inside the shape is inside the buffer, and the type was checked.
        Ok(unsafe { read(first.wrapping_add(place)) })
    }

    /// The element at an index, of whatever dtype. From a device it is downloaded.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] when the index is out of range, [`ErrorKind::Device`] or
    /// [`ErrorKind::NotSupported`] when there is no memory or no way to it; what the device reports.
    pub fn get_scalar(&self, index: &[usize]) -> Result<Scalar> {
        if self.base.is_null() && self.device() != Device::CPU {
            let (bytes, place) = (self.dtype().size(), self.place(index)?);
            let mut element = [0_u128; 1];
            // SAFETY: the number has 16 initialised bytes, enough for an element and aligned.
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

    /// The one element of a tensor that has one.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] when there are more or none, and as [`Tensor::get_scalar`].
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
        // Sizes are all 1, so the index is all zeros.
        self.get_scalar(&self.shape.iter().map(|size| size - 1).collect::<Vec<_>>())
    }

    /// A copy of the elements in row-major order, whatever the layout. From a device they are
    /// downloaded.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] when `T` isn't the dtype's type, [`ErrorKind::Device`] or
    /// [`ErrorKind::NotSupported`] when there is no memory or no way to it, [`ErrorKind::Memory`] when
    /// there is none left; what the device reports.
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
            // SAFETY: a walk over the view's own shape and strides stays inside its buffer, and the
            // type was checked.
            items.extend(
                (0..len as isize).map(|i| unsafe { read(ptr.wrapping_offset(start + i * step)) }),
            );
        });
        Ok(items)
    }
}

/// A slice of elements, whose bytes are checked if they are bools.
///
/// # Safety
/// `ptr` is aligned and valid for reading `len` initialised elements of `T`'s dtype for as long as
/// the result lives, and nobody writes to them in that time.
unsafe fn checked_slice<'a, T: Element>(ptr: *const T, len: usize) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if matches!(T::DTYPE.kind(), DTypeKind::Bool) {
        // SAFETY: the caller's promise; a bool element is one byte.
        let bytes = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), len) };
        if let Some(wrong) = bytes.iter().find(|b| **b > 1) {
            return Err(Error::new(
                ErrorKind::Value,
                format!("the tensor holds a bool whose byte is {wrong}; read its bytes as uint8"),
            ));
        }
    }
    // SAFETY: the caller's promise, and bools were just checked.
    Ok(unsafe { std::slice::from_raw_parts(ptr, len) })
}
