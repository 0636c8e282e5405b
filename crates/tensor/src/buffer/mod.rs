//! Memory of tensors behind one opaque handle.
//!
//! A [`BufferHandle`] says which elements a piece of memory holds, how many and on which device,
//! and owns it in one of two ways: as a share of a [`DeviceBuffer`], or through a reference to an
//! object of somebody else's ([`ExternalOwner`]: a NumPy array, say), whose reference count isn't
//! even touched while the handle is only borrowed for a call.

pub mod cache;
mod external;
mod host;
mod pinned;
mod tracked;

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use keyfold_core::{DType, Device, Error, ErrorKind, Result};

pub use external::{Adopt, ExternalOps, ExternalOwner, Lent};
pub use host::{HostBuffer, NullBuffer, memory};
use pinned::PinnedBuffer;
pub use tracked::TrackedBuffer;

/// A piece of memory on a device, owned by the value that implements this.
///
/// # Safety
/// While a share of the value exists, [`DeviceBuffer::byte_len`], [`DeviceBuffer::host_ptr`] and
/// [`DeviceBuffer::device`] keep returning the same, and a host pointer is valid for reads of that
/// many initialised bytes, and for writes unless [`DeviceBuffer::is_read_only`]. If
/// [`DeviceBuffer::is_exclusive`], nothing but the value itself reaches that memory.
pub unsafe trait DeviceBuffer: Any + Send + Sync + fmt::Debug {
    /// Where the memory is.
    fn device(&self) -> Device;

    /// Its size in bytes.
    fn byte_len(&self) -> usize;

    /// Where the host can reach it; `None` for memory that only the device reaches, or none at all.
    fn host_ptr(&self) -> Option<NonNull<u8>>;

    /// Its address in the device's own address space, null if there is no memory.
    fn device_ptr(&self) -> *mut u8 {
        self.host_ptr().map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    /// Where the memory is now, for a value whose memory another library may move: `None` for all
    /// others. Such a value has neither a host pointer nor a device pointer, so every access asks
    /// here. The address is good until that library moves the memory again.
    ///
    /// # Errors
    /// When the memory is gone, or smaller than [`DeviceBuffer::byte_len`].
    fn locate(&self) -> Option<Result<NonNull<u8>>> {
        None
    }

    /// Whether the memory must not be written.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether the memory belongs to this value alone, so that the sole owner of the value may
    /// write to it through safe references.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// How often the memory was written in place, where the value counts that.
    fn version(&self) -> Option<&AtomicU32> {
        None
    }

    /// Counts a write in place.
    fn note_write(&self) {
        if let Some(version) = self.version() {
            // Not one atomic step: two writers at a time break the contract of writing anyway, and
            // the count differs from what it was before in any case.
            version.store(version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// The object of another runtime that owns the memory, if one does.
    fn external_owner(&self) -> Option<&ExternalOwner> {
        None
    }

    /// Other memory on the same device with the same content.
    ///
    /// # Errors
    /// When there is no memory for it, or the copy fails.
    fn duplicate(&self) -> Result<Arc<dyn DeviceBuffer>>;
}

/// An opaque handle to memory: element type, length, device, and a share in its ownership.
///
/// Cloning shares; [`BufferHandle::clone_buffer`] copies. The memory is freed with its last owner.
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

// SAFETY: the pointer of an external owner is to memory that its contract keeps alive and lets
// every thread use; a shared buffer is Send and Sync by its trait.
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
    /// A handle to a buffer that holds elements of `dtype` (as many as fit).
    ///
    /// # Errors
    /// [`ErrorKind::Value`] if the buffer isn't aligned for the dtype.
    pub fn new(buffer: Arc<dyn DeviceBuffer>, dtype: DType) -> Result<Self> {
        let address = buffer.device_ptr().addr();
        if !address.is_multiple_of(dtype.align()) {
            return Err(misaligned(address, dtype));
        }
        Ok(BufferHandle::aligned(buffer, dtype))
    }

    /// As [`BufferHandle::new`], of a buffer whose alignment was checked.
    #[inline]
    pub(crate) fn aligned(buffer: Arc<dyn DeviceBuffer>, dtype: DType) -> Self {
        BufferHandle {
            dtype,
            device: buffer.device(),
            read_only: buffer.is_read_only(),
            len: buffer.byte_len() / dtype.size(),
            owner: Owner::Shared(buffer),
        }
    }

    /// A handle to memory that an external object owns.
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
        // SAFETY: the caller's promise, and the address is aligned.
        Ok(unsafe { BufferHandle::external_aligned(owner, ptr, len, dtype, device, read_only) })
    }

    /// As [`BufferHandle::external`], of an address whose alignment was checked.
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

    /// The elements' type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where the memory is.
    #[inline]
    pub fn device(&self) -> Device {
        self.device
    }

    /// How many elements it holds.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the memory must not be written.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The same memory, to be read only.
    #[must_use]
    pub fn into_read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Whether the handle itself holds, or borrows, an external object.
    #[inline]
    pub(crate) fn is_external(&self) -> bool {
        matches!(self.owner, Owner::External { .. })
    }

    /// Whether this handle merely borrows an external object for the time of a call.
    pub fn is_borrowed(&self) -> bool {
        matches!(&self.owner, Owner::External { owner, .. } if owner.is_borrowed())
    }

    /// The external owner, if the memory belongs to one.
    pub fn external_owner(&self) -> Option<&ExternalOwner> {
        match &self.owner {
            Owner::External { owner, .. } => Some(owner),
            Owner::Shared(buffer) => buffer.external_owner(),
        }
    }

    /// A number that tells this memory from other memory while both live: handles that share it have
    /// the same one, also where it has no address.
    pub fn identity(&self) -> usize {
        match &self.owner {
            Owner::External { owner, .. } => owner.object().addr().get(),
            Owner::Shared(buffer) => match buffer.external_owner() {
                Some(owner) => owner.object().addr().get(),
                None => Arc::as_ptr(buffer).cast::<()>().addr(),
            },
        }
    }

    /// How often the memory was written in place since it was made, as far as keyfold knows: every
    /// handle that shares the buffer sees the same count. What other libraries write isn't counted,
    /// and neither is anything for a handle that only borrows an external object for a call.
    #[inline]
    pub fn version(&self) -> u32 {
        match &self.owner {
            Owner::Shared(buffer) => buffer.version().map_or(0, |v| v.load(Ordering::Relaxed)),
            Owner::External { .. } => 0,
        }
    }

    /// How many handles share the buffer; 1 for memory that only borrows an external object.
    pub fn shares(&self) -> usize {
        match &self.owner {
            Owner::Shared(buffer) => Arc::strong_count(buffer),
            Owner::External { .. } => 1,
        }
    }

    /// Whether both handles are shares of one buffer, which [`shares`](Self::shares) counts.
    pub fn shares_with(&self, other: &BufferHandle) -> bool {
        match (&self.owner, &other.owner) {
            (Owner::Shared(own), Owner::Shared(others)) => Arc::ptr_eq(own, others),
            _ => false,
        }
    }

    /// Watches the memory for writes, without keeping it.
    pub fn watch(&self) -> Option<Watch> {
        match &self.owner {
            Owner::Shared(buffer) => {
                Some(Watch { buffer: Arc::downgrade(buffer), version: self.version() })
            }
            Owner::External { .. } => None,
        }
    }

    /// Counts a write in place.
    #[inline]
    pub(crate) fn bump_version(&self) {
        if let Owner::Shared(buffer) = &self.owner {
            buffer.note_write();
        }
    }

    fn lent(&self, ptr: NonNull<u8>) -> Lent {
        let bytes = self.len * self.dtype.size();
        Lent { ptr, bytes, device: self.device, read_only: self.read_only }
    }

    /// The same memory with a count of the writes to it, which an external object's lacks.
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

    /// The same memory held at its present address, for the time of one access; `None` where it
    /// doesn't move anyway.
    ///
    /// # Errors
    /// As [`DeviceBuffer::locate`].
    #[cold]
    pub(crate) fn pinned(&self) -> Result<Option<Self>> {
        let Owner::Shared(buffer) = &self.owner else { return Ok(None) };
        let Some(found) = buffer.locate() else { return Ok(None) };
        let pinned: Arc<dyn DeviceBuffer> =
            Arc::new(PinnedBuffer { memory: Arc::clone(buffer), ptr: found? });
        let BufferHandle { dtype, device, read_only, len, .. } = *self;
        Ok(Some(BufferHandle { dtype, device, read_only, len, owner: Owner::Shared(pinned) }))
    }

    /// Whether another library may move the memory, so that an address is good for one access only.
    pub fn moves(&self) -> bool {
        matches!(&self.owner, Owner::Shared(buffer) if buffer.locate().is_some())
    }

    /// Where the host can reach the memory; null where it can't, and where another library may move
    /// it ([`BufferHandle::locate`] finds that).
    #[inline]
    pub fn host_ptr(&self) -> *mut u8 {
        match &self.owner {
            Owner::External { ptr, .. } if self.device == Device::CPU => ptr.as_ptr(),
            Owner::External { .. } => std::ptr::null_mut(),
            Owner::Shared(b) => b.host_ptr().map_or(std::ptr::null_mut(), NonNull::as_ptr),
        }
    }

    /// The memory's present address in the device's own address space; null where there is no memory.
    ///
    /// # Errors
    /// As [`DeviceBuffer::locate`].
    pub fn locate(&self) -> Result<*mut u8> {
        match &self.owner {
            Owner::External { ptr, .. } => Ok(ptr.as_ptr()),
            Owner::Shared(buffer) => match buffer.locate() {
                Some(found) => found.map(NonNull::as_ptr),
                None => Ok(buffer.device_ptr()),
            },
        }
    }

    /// A handle to other memory with the same content, on the same device.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] when there is none left, [`ErrorKind::NotSupported`] for memory of an
    /// external object on a device that the host can't reach.
    pub fn clone_buffer(&self) -> Result<Self> {
        let copy: Arc<dyn DeviceBuffer> = match &self.owner {
            Owner::Shared(buffer) => buffer.duplicate()?,
            Owner::External { ptr, .. } if self.device == Device::CPU => {
                // SAFETY: the contract of `external` makes these bytes readable and initialised.
                let bytes = unsafe {
                    std::slice::from_raw_parts(ptr.as_ptr(), self.len * self.dtype.size())
                };
                Arc::new(HostBuffer::copy_of(bytes)?)
            }
            Owner::External { .. } => {
                return Err(Error::new(
                    ErrorKind::NotSupported,
                    format!(
                        "memory on {} that another library owns can't be copied from here; copy \
                         it with that library",
                        self.device
                    ),
                ));
            }
        };
        let copy = BufferHandle::new(copy, self.dtype)?;
        Ok(BufferHandle { len: self.len.min(copy.len), ..copy })
    }

    /// The backend's own buffer, if it is a `B`.
    pub fn downcast_ref<B: DeviceBuffer>(&self) -> Option<&B> {
        let Owner::Shared(buffer) = &self.owner else { return None };
        let any: &dyn Any = &**buffer;
        any.downcast_ref()
    }

    /// The backend's own buffer to change, if it is a `B` and nobody else shares it.
    pub fn downcast_mut<B: DeviceBuffer>(&mut self) -> Option<&mut B> {
        let Owner::Shared(buffer) = &mut self.owner else { return None };
        let any: &mut dyn Any = Arc::get_mut(buffer)?;
        any.downcast_mut()
    }

    /// The backend's own buffer itself.
    ///
    /// # Errors
    /// The handle unchanged, if the buffer isn't a `B` or somebody else shares it.
    pub fn into_inner<B: DeviceBuffer>(self) -> Result<B, Self> {
        if self.downcast_ref::<B>().is_none() {
            return Err(self);
        }
        let BufferHandle { dtype, device, read_only, len, owner } = self;
        let rebuild = |owner| BufferHandle { dtype, device, read_only, len, owner };
        match owner {
            Owner::Shared(shared) => {
                let any: Arc<dyn Any + Send + Sync> = shared;
                match any.downcast::<B>().map(Arc::try_unwrap) {
                    Ok(Ok(buffer)) => Ok(buffer),
                    Ok(Err(still_shared)) => Err(rebuild(Owner::Shared(still_shared))),
                    // The type was checked above, so only this arm can't be reached.
                    Err(_) => unreachable!("the buffer's type was checked"),
                }
            }
            external => Err(rebuild(external)),
        }
    }

    /// Whether this handle alone reaches the memory, so that `&mut` of it may write.
    pub(crate) fn is_sole_owner(&mut self) -> bool {
        match &mut self.owner {
            Owner::Shared(buffer) => Arc::get_mut(buffer).is_some_and(|b| b.is_exclusive()),
            Owner::External { .. } => false,
        }
    }

    /// How many elements the memory has room for now. Differs from `len` only if somebody swapped
    /// the content through [`BufferHandle::downcast_mut`].
    pub(crate) fn current_len(&self) -> usize {
        match &self.owner {
            Owner::Shared(buffer) => self.len.min(buffer.byte_len() / self.dtype.size()),
            Owner::External { .. } => self.len,
        }
    }
}

/// Tells whether memory was written since, for as long as somebody else keeps it.
#[derive(Clone, Debug)]
pub struct Watch {
    buffer: Weak<dyn DeviceBuffer>,
    version: u32,
}

impl Watch {
    /// Whether the memory is still there and was written.
    pub fn is_changed(&self) -> bool {
        let buffer = self.buffer.upgrade();
        let version = buffer.as_ref().and_then(|buffer| buffer.version());
        version.is_some_and(|version| version.load(Ordering::Relaxed) != self.version)
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
        // SAFETY: one byte further is still inside the array.
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
