//! [`BufferHandle`]: memory with an element type, and a reference to its owner.

mod identity;

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use keyfold_core::{DType, Device, Error, ErrorKind, Result};

use super::opaque::OpaqueBuffer;
use super::pinned::PinnedBuffer;
use super::{
    BufferRef, DeviceBuffer, ExternalOwner, Lent, LentBuffer, PendingBuffer, TrackedBuffer,
};
use crate::device::{self, Content, MemoryRef, Part};

/// An opaque handle to memory: element type, length, device, and a reference to its owner.
///
/// A clone refers to the same memory; [`BufferHandle::clone_buffer`] copies it. The memory is freed
/// with the last handle.
pub struct BufferHandle {
    dtype: DType,
    device: Device,
    read_only: bool,
    len: usize,
    owner: Owner,
}

enum Owner {
    Shared(Arc<dyn DeviceBuffer>),
    External { owner: ExternalOwner, ptr: NonNull<u8> },
}

// SAFETY: an external owner's contract keeps its memory alive and accessible from every thread; a
// shared buffer is Send and Sync by its trait.
unsafe impl Send for BufferHandle {}
// SAFETY: as above; a handle gives no mutable access through a shared reference.
unsafe impl Sync for BufferHandle {}

impl Clone for BufferHandle {
    #[inline]
    fn clone(&self) -> Self {
        let owner = match &self.owner {
            Owner::Shared(buffer) => Owner::Shared(Arc::clone(buffer)),
            Owner::External { owner, ptr } => match owner.adopt(self.lent(*ptr)) {
                Some(buffer) => Owner::Shared(buffer),
                None => Owner::External { owner: owner.clone(), ptr: *ptr },
            },
        };
        let BufferHandle { dtype, device, read_only, len, .. } = *self;
        BufferHandle { dtype, device, read_only, len, owner }
    }
}

impl BufferHandle {
    /// Returns a handle to a buffer of elements of `dtype`, as many as fit.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] if the buffer isn't aligned for the dtype.
    pub fn new(buffer: Arc<dyn DeviceBuffer>, dtype: DType) -> Result<Self> {
        // A device's memory is aligned for every dtype, and movable memory was checked before.
        let address = buffer.host_ptr().map_or(0, |ptr| ptr.addr().get());
        if !address.is_multiple_of(dtype.align()) {
            return Err(misaligned(address, dtype));
        }
        Ok(BufferHandle::aligned(buffer, dtype))
    }

    /// As [`BufferHandle::new`], for a buffer whose alignment was checked.
    #[inline]
    pub(crate) fn aligned(buffer: Arc<dyn DeviceBuffer>, dtype: DType) -> Self {
        BufferHandle {
            dtype,
            device: buffer.device(),
            read_only: buffer.is_read_only(),
            // Sizes are powers of two, and a division costs as much as all else here.
            len: buffer.byte_len() >> dtype.size().trailing_zeros(),
            owner: Owner::Shared(buffer),
        }
    }

    /// Returns a handle to memory that an external object owns.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] if the memory isn't aligned for the dtype.
    ///
    /// # Safety
    /// While the owner's object lives, `ptr` is valid for reads of `len` initialised elements of
    /// `dtype` (on the host if `device` is the CPU, else in that device's address space), and for
    /// writes unless `read_only`.
    #[inline]
    pub unsafe fn external(
        owner: ExternalOwner,
        ptr: NonNull<u8>,
        len: usize,
        dtype: DType,
        device: Device,
        read_only: bool,
    ) -> Result<Self> {
        if !ptr.addr().get().is_multiple_of(dtype.align()) {
            return Err(misaligned(ptr.addr().get(), dtype));
        }
        // SAFETY: the caller's contract, and the address is aligned.
        Ok(unsafe { BufferHandle::external_aligned(owner, ptr, len, dtype, device, read_only) })
    }

    /// As [`BufferHandle::external`], for an address whose alignment was checked.
    ///
    /// # Safety
    /// As [`BufferHandle::external`], and the address is aligned for the dtype.
    #[inline]
    pub(crate) unsafe fn external_aligned(
        owner: ExternalOwner,
        ptr: NonNull<u8>,
        len: usize,
        dtype: DType,
        device: Device,
        read_only: bool,
    ) -> Self {
        BufferHandle { dtype, device, read_only, len, owner: Owner::External { owner, ptr } }
    }

    /// Returns the element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the device of the memory.
    #[inline]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it holds no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the memory must not be written.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Makes the handle read-only.
    #[must_use]
    pub fn into_read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Returns whether the handle itself holds or borrows an external object.
    #[inline]
    pub(crate) fn is_external(&self) -> bool {
        matches!(self.owner, Owner::External { .. })
    }

    /// Returns whether this handle borrows an external object for the time of a call.
    pub fn is_borrowed(&self) -> bool {
        matches!(&self.owner, Owner::External { owner, .. } if owner.is_borrowed())
    }

    /// Returns the external owner, if the memory belongs to one.
    pub fn external_owner(&self) -> Option<&ExternalOwner> {
        match &self.owner {
            Owner::External { owner, .. } => Some(owner),
            Owner::Shared(buffer) => buffer.external_owner(),
        }
    }

    fn lent(&self, ptr: NonNull<u8>) -> Lent {
        let bytes = self.len * self.dtype.size();
        Lent { ptr, bytes, device: self.device, read_only: self.read_only }
    }

    /// Returns the same memory with a version counter, which an external object's lacks.
    #[must_use]
    pub fn into_tracked(self) -> Self {
        let Owner::External { ptr, .. } = self.owner else { return self };
        let lent = self.lent(ptr);
        let BufferHandle { dtype, device, read_only, len, owner } = self;
        let owner = match owner {
            Owner::External { owner, .. } => Owner::Shared(match owner.adopt(lent) {
                Some(buffer) => buffer,
                // SAFETY: the contract of `external`.
                None => Arc::new(unsafe { TrackedBuffer::new(owner, lent) }),
            }),
            shared => shared,
        };
        BufferHandle { dtype, device, read_only, len, owner }
    }

    /// Returns the same memory at its present address, for one access; `None` if the host can't
    /// address it.
    ///
    /// # Errors
    /// As [`DeviceBuffer::locate`].
    #[cold]
    pub(crate) fn pinned(&self) -> Result<Option<Self>> {
        let Owner::Shared(buffer) = &self.owner else { return Ok(None) };
        if self.device != Device::CPU {
            return Ok(None);
        }
        let Some(ptr) = NonNull::new(buffer.locate()?) else { return Ok(None) };
        let pinned: Arc<dyn DeviceBuffer> =
            Arc::new(PinnedBuffer { memory: Arc::clone(buffer), ptr });
        let BufferHandle { dtype, device, read_only, len, .. } = *self;
        Ok(Some(BufferHandle { dtype, device, read_only, len, owner: Owner::Shared(pinned) }))
    }

    /// Returns a handle to a backend's own object that represents so many bytes on a device. Its
    /// dtype is uint8 unless changed by [`BufferHandle::with_dtype`]. It has no address. The memory
    /// registered for the device copies it, if it can.
    pub fn opaque(object: Box<dyn Any + Send + Sync>, device: Device, len: usize) -> Self {
        BufferHandle::aligned(Arc::new(OpaqueBuffer { object, device, bytes: len }), DType::U8)
    }

    /// Returns the same memory with elements of another dtype, as many as fit.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] if the memory isn't aligned for the dtype.
    pub fn with_dtype(mut self, dtype: DType) -> Result<Self> {
        let address = self.host_ptr().addr();
        if !address.is_multiple_of(dtype.align()) {
            return Err(misaligned(address, dtype));
        }
        self.len = self.len * self.dtype.size() / dtype.size();
        self.dtype = dtype;
        Ok(self)
    }

    /// Returns the buffer as a pending one, filled or not, if it is one.
    pub fn pending(&self) -> Option<&PendingBuffer> {
        let Owner::Shared(buffer) = &self.owner else { return None };
        (&**buffer as &dyn Any).downcast_ref()
    }

    /// Returns a counted reference to the buffer; `None` for a borrowed external object.
    pub fn shared(&self) -> Option<&Arc<dyn DeviceBuffer>> {
        match &self.owner {
            Owner::Shared(buffer) => Some(buffer),
            Owner::External { .. } => None,
        }
    }

    /// As [`DeviceBuffer::lend`].
    pub(crate) fn lend(&self) {
        if let Owner::Shared(buffer) = &self.owner {
            buffer.lend();
        }
    }

    /// Returns whether another library may write to the memory without a count: it owns it, or was
    /// given its address.
    pub fn is_lent(&self) -> bool {
        match &self.owner {
            Owner::External { .. } => true,
            Owner::Shared(buffer) => buffer.is_lent() || buffer.external_owner().is_some(),
        }
    }

    /// As [`BufferHandle::shared`], by value.
    pub fn into_shared(self) -> Option<Arc<dyn DeviceBuffer>> {
        match self.owner {
            Owner::Shared(buffer) => Some(buffer),
            Owner::External { .. } => None,
        }
    }

    /// Computes the content, if that is still to be done.
    ///
    /// # Errors
    /// As [`PendingBuffer::wait`].
    pub fn complete(&self) -> Result<()> {
        self.pending().map_or(Ok(()), |pending| pending.wait().map(drop))
    }

    /// Returns the buffer, for a [`Part`] of it: of a pending one, the memory that fills it.
    pub(crate) fn buffer(&self) -> BufferRef<'_> {
        match &self.owner {
            Owner::Shared(buffer) => match self.pending().and_then(PendingBuffer::filled) {
                Some(filled) => BufferRef::Shared(&**filled),
                None => BufferRef::Shared(&**buffer),
            },
            Owner::External { ptr, .. } => BufferRef::Lent(LentBuffer(self.lent(*ptr))),
        }
    }

    /// Returns the [`Memory`](device::Memory) that can access the buffer: its own, or the one
    /// registered for its device.
    pub fn memory(&self) -> Option<MemoryRef<'_>> {
        let own = match &self.owner {
            Owner::Shared(buffer) => buffer.memory(),
            Owner::External { .. } => None,
        };
        match own {
            Some(memory) => Some(MemoryRef::Borrowed(memory)),
            None => device::memory(self.device.kind()),
        }
    }

    /// As [`BufferHandle::memory`], with the content computed.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] for another library's memory on a device without a registered memory;
    /// as [`BufferHandle::complete`].
    pub(crate) fn memory_to_copy(&self) -> Result<MemoryRef<'_>> {
        self.complete()?;
        self.memory().ok_or_else(|| {
            Error::new(
                ErrorKind::Device,
                format!(
                    "memory on {} that another library owns can't be copied from here; copy it \
                     with that library",
                    self.device
                ),
            )
        })
    }

    /// Returns whether another library may move the memory, so that an address is valid for one
    /// access only.
    pub fn moves(&self) -> bool {
        matches!(&self.owner, Owner::Shared(buffer) if buffer.moves())
    }

    /// Returns the host address, valid as long as the handle; null if there is none, for which
    /// [`BufferHandle::locate`] reports the reason.
    #[inline]
    pub fn host_ptr(&self) -> *mut u8 {
        match &self.owner {
            Owner::External { ptr, .. } if self.device == Device::CPU => ptr.as_ptr(),
            Owner::External { .. } => std::ptr::null_mut(),
            Owner::Shared(b) => b.host_ptr().map_or(std::ptr::null_mut(), NonNull::as_ptr),
        }
    }

    /// Returns the memory's present address in its device's address space; null if it has none.
    ///
    /// # Errors
    /// As [`DeviceBuffer::locate`].
    pub fn locate(&self) -> Result<*mut u8> {
        match &self.owner {
            Owner::External { ptr, .. } => Ok(ptr.as_ptr()),
            Owner::Shared(buffer) => buffer.locate(),
        }
    }

    /// As [`DeviceBuffer::opaque_handle`].
    pub fn opaque_handle(&self) -> Option<NonNull<u8>> {
        match &self.owner {
            Owner::External { .. } => None,
            Owner::Shared(buffer) => buffer.opaque_handle(),
        }
    }

    /// Returns a handle to a copy of the memory, on the same device.
    ///
    /// # Errors
    /// As [`device::Memory::allocate`] and [`device::Memory::copy_strided`]; [`ErrorKind::Device`]
    /// for another library's memory on a device without a registered memory.
    pub fn clone_buffer(&self) -> Result<Self> {
        let bytes = self.current_len() * self.dtype.size();
        let memory = self.memory_to_copy()?;
        let copy = device::allocate_in(&*memory, self.device, bytes, Content::Arbitrary)?;
        let source = self.buffer();
        let shape = [bytes];
        let part = |buffer| Part::new(buffer, 0, &shape, &[1], 1);
        // SAFETY: the copy isn't shared yet.
        unsafe { device::copy_within(&*memory, &part(&*source)?, &part(&*copy)?)? };
        BufferHandle::new(copy, self.dtype)
    }

    /// Returns the backend's own buffer, or the object of an opaque handle, if it is a `B`.
    pub fn downcast_ref<B: Any>(&self) -> Option<&B> {
        let Owner::Shared(buffer) = &self.owner else { return None };
        (**buffer).downcast_ref()
    }

    /// As [`BufferHandle::downcast_ref`], mutably, if nothing else shares it.
    pub fn downcast_mut<B: Any>(&mut self) -> Option<&mut B> {
        let Owner::Shared(buffer) = &mut self.owner else { return None };
        let any: &mut dyn Any = Arc::get_mut(buffer)?;
        if any.is::<B>() {
            return any.downcast_mut();
        }
        any.downcast_mut::<OpaqueBuffer>()?.object.downcast_mut()
    }

    /// As [`BufferHandle::downcast_ref`], by value.
    ///
    /// # Errors
    /// The unchanged handle, if the buffer isn't a `B` or is shared.
    pub fn into_inner<B: Any + Send + Sync>(self) -> Result<B, Self> {
        if self.downcast_ref::<B>().is_none() {
            return Err(self);
        }
        let is_opaque = self.downcast_ref::<OpaqueBuffer>().is_some();
        let BufferHandle { dtype, device, read_only, len, owner } = self;
        let rebuild = |owner| BufferHandle { dtype, device, read_only, len, owner };
        let Owner::Shared(shared) = owner else { return Err(rebuild(owner)) };
        let taken = match is_opaque {
            false => take(shared),
            true => take::<OpaqueBuffer>(shared).map(|opaque| match opaque.object.downcast() {
                Ok(object) => *object,
                Err(_) => unreachable!("the object's type was checked"),
            }),
        };
        taken.map_err(|shared| rebuild(Owner::Shared(shared)))
    }

    /// Returns whether this handle alone refers to the memory, so that it may be written through
    /// `&mut`.
    pub(crate) fn is_sole_owner(&mut self) -> bool {
        match &mut self.owner {
            Owner::Shared(buffer) => Arc::get_mut(buffer).is_some_and(|b| b.is_exclusive()),
            Owner::External { .. } => false,
        }
    }

    /// Returns the number of elements that fit in the memory now. It differs from `len` only if the
    /// content was swapped through [`BufferHandle::downcast_mut`].
    pub(crate) fn current_len(&self) -> usize {
        match &self.owner {
            Owner::Shared(buffer) => self.len.min(buffer.byte_len() / self.dtype.size()),
            Owner::External { .. } => self.len,
        }
    }
}

/// Returns the buffer if this is its only reference.
///
/// # Errors
/// The reference, if there are others or the buffer isn't a `B`.
fn take<B: Any + Send + Sync>(shared: Arc<dyn DeviceBuffer>) -> Result<B, Arc<dyn DeviceBuffer>> {
    let again = Arc::downgrade(&shared);
    let any: Arc<dyn Any + Send + Sync> = shared;
    // Kept alive until the other one is upgraded again.
    let kept: Arc<dyn Any + Send + Sync> = match any.downcast::<B>() {
        Ok(buffer) => match Arc::try_unwrap(buffer) {
            Ok(buffer) => return Ok(buffer),
            Err(buffer) => buffer,
        },
        Err(any) => any,
    };
    let shared = again.upgrade();
    drop(kept);
    match shared {
        Some(shared) => Err(shared),
        None => unreachable!("a share was held"),
    }
}

#[cold]
fn misaligned(address: usize, dtype: DType) -> Error {
    Error::new(
        ErrorKind::Value,
        format!(
            "memory at address {address:#x} isn't aligned for dtype {dtype}, which needs a \
             multiple of {}; make a copy",
            dtype.align()
        ),
    )
}

impl fmt::Debug for BufferHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BufferHandle { dtype, device, len, .. } = self;
        write!(f, "BufferHandle(device={device}, dtype={dtype}, len={len})")
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicIsize, Ordering};

    use super::*;
    use crate::buffer::{ExternalOps, HostBuffer, NullBuffer};

    fn host(bytes: &[u8]) -> BufferHandle {
        BufferHandle::new(Arc::new(HostBuffer::copy_of(bytes).unwrap()), DType::U8).unwrap()
    }

    #[test]
    fn cloning_shares_and_clone_buffer_copies() {
        let a = host(&[1, 2, 3]);
        let shared = a.clone();
        let copied = a.clone_buffer().unwrap();
        assert_eq!(a.host_ptr(), shared.host_ptr());
        assert_ne!(a.host_ptr(), copied.host_ptr());
        assert_eq!(copied.downcast_ref::<HostBuffer>().unwrap().as_bytes(), [1, 2, 3]);
        assert_eq!(format!("{a:?}"), "BufferHandle(device=cpu, dtype=uint8, len=3)");
        assert!(!a.is_empty() && host(&[]).is_empty());
    }

    #[test]
    fn only_the_sole_owner_gets_the_buffer_out() {
        let mut a = host(&[1, 2, 3]);
        a.downcast_mut::<HostBuffer>().unwrap().as_bytes_mut()[0] = 9;
        let b = a.clone();
        assert!(a.downcast_mut::<HostBuffer>().is_none());
        let back = a.into_inner::<HostBuffer>().unwrap_err();
        assert_eq!(back.len(), 3);
        drop(b);
        assert!(back.downcast_ref::<NullBuffer>().is_none());
        let back = back.into_inner::<NullBuffer>().unwrap_err();
        assert_eq!(back.into_inner::<HostBuffer>().unwrap().as_bytes(), [9, 2, 3]);
    }

    #[test]
    fn a_buffer_swapped_for_a_smaller_one_is_noticed() {
        let mut a = host(&[1, 2, 3]);
        *a.downcast_mut::<HostBuffer>().unwrap() = HostBuffer::zeroed(1).unwrap();
        assert_eq!(a.current_len(), 1);
    }

    #[test]
    fn misaligned_memory_is_refused() {
        unsafe fn nothing(_: *mut c_void) {}
        static OPS: ExternalOps = ExternalOps { retain: nothing, release: nothing, adopt: None };
        let mut words = [0_u64; 2];
        let ptr = NonNull::new(words.as_mut_ptr()).unwrap().cast::<u8>();
        let handle = |ptr, dtype| {
            // SAFETY: the array outlives every handle made here, and the ops do nothing.
            unsafe {
                let owner = ExternalOwner::borrowed(ptr, &OPS);
                let ptr = ptr.cast::<u8>();
                BufferHandle::external(owner, ptr, 1, dtype, Device::CPU, false)
            }
        };
        assert!(handle(ptr.cast::<c_void>(), DType::C128).is_ok());
        // SAFETY: the next byte is inside the array.
        let odd = unsafe { ptr.add(1) }.cast::<c_void>();
        let error = handle(odd, DType::F64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.message().contains("multiple of 8"), "{error}");
        assert!(handle(odd, DType::U8).is_ok());
    }

    #[test]
    fn a_borrowed_handle_leaves_the_count_alone_and_its_clone_owns() {
        unsafe fn retain(count: *mut c_void) {
            // SAFETY: every object of this test is an AtomicIsize.
            unsafe { &*count.cast::<AtomicIsize>() }.fetch_add(1, Ordering::Relaxed);
        }
        unsafe fn release(count: *mut c_void) {
            // SAFETY: as above.
            unsafe { &*count.cast::<AtomicIsize>() }.fetch_sub(1, Ordering::Relaxed);
        }
        static OPS: ExternalOps = ExternalOps { retain, release, adopt: None };
        let count = AtomicIsize::new(0);
        let object = NonNull::from(&count).cast::<c_void>();
        let mut data = [5_u8, 6];
        let ptr = NonNull::new(data.as_mut_ptr()).unwrap();
        // SAFETY: `count` and `data` outlive every handle of this test.
        let borrowed = unsafe {
            let owner = ExternalOwner::borrowed(object, &OPS);
            BufferHandle::external(owner, ptr, 2, DType::U8, Device::CPU, true).unwrap()
        };
        assert!(borrowed.is_borrowed() && borrowed.is_read_only());
        let owned = borrowed.clone();
        let again = owned.clone();
        assert!(!owned.is_borrowed());
        assert_eq!(owned.external_owner().unwrap().object(), object);
        assert_eq!(count.load(Ordering::Relaxed), 2);
        drop(borrowed);
        assert_eq!(count.load(Ordering::Relaxed), 2);
        let copy = again.clone_buffer().unwrap();
        drop((owned, again));
        assert_eq!(count.load(Ordering::Relaxed), 0);
        assert_eq!(copy.downcast_ref::<HostBuffer>().unwrap().as_bytes(), [5, 6]);
        assert!(!copy.is_read_only());
    }
}
