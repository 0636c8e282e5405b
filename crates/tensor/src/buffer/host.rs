//! Host memory, and buffers without memory.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use keyfold_core::{Device, Element, Result};

use super::DeviceBuffer;
use super::cache::{self, Class, out_of_memory};
use crate::device::{Content, Memory, MetaMemory, copy_bytes, is_large};

/// The alignment of allocations: a cache line, and the widest vector register.
const ALIGN: usize = 64;

/// The system allocator's own alignment. With a larger one it clears memory itself, whereas fresh
/// pages are zero; so this one is requested, and the address aligned within.
const SYSTEM_ALIGN: usize = 16;

/// Up to this size clearing recycled memory is faster than requesting zeroed memory, which bypasses
/// the allocator's caches of small blocks; above, fresh pages are zero.
const SMALL: usize = 16 << 10;

/// Initialised host memory.
pub struct HostBuffer {
    ptr: NonNull<u8>,
    len: usize,
    /// The arguments of `free`: the allocation's start, and its size in the units of `free` (for
    /// blocks of the cache, the index of the class).
    base: NonNull<u8>,
    capacity: usize,
    free: unsafe fn(NonNull<u8>, usize),
    /// The number of in-place writes.
    version: AtomicU32,
    /// Whether another library was given the address.
    lent: AtomicBool,
}

// SAFETY: this value alone owns the memory, and any thread may free it.
unsafe impl Send for HostBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for HostBuffer {}

unsafe fn free_aligned(base: NonNull<u8>, capacity: usize) {
    // SAFETY: `system` allocated it with this layout, which is valid.
    unsafe {
        let layout = Layout::from_size_align_unchecked(capacity, SYSTEM_ALIGN);
        dealloc(base.as_ptr(), layout);
    }
}

unsafe fn free_vec<T>(base: NonNull<u8>, capacity: usize) {
    // SAFETY: `from_vec` took these from a Vec<T>; elements have no destructor, so length 0 is
    // right.
    drop(unsafe { Vec::<T>::from_raw_parts(base.as_ptr().cast(), 0, capacity) });
}

unsafe fn free_cached(base: NonNull<u8>, class: usize) {
    // SAFETY: `cached` took it from the cache and stored its class, and the buffer is dropped.
    unsafe { cache::recycle(base, Class::from_index(class)) };
}

impl HostBuffer {
    /// Allocates zeroed memory, aligned to 64 bytes (from 256 KiB on, to a page).
    ///
    /// # Errors
    /// [`ErrorKind::Memory`](keyfold_core::ErrorKind) with the requested size;
    /// [`ErrorKind::Value`](keyfold_core::ErrorKind) for a malformed `KEYFOLD_CACHE_BYTES`.
    pub fn zeroed(bytes: usize) -> Result<Self> {
        HostBuffer::new(bytes, Content::Zeros)
    }

    /// Allocates memory with arbitrary initialised contents, often those of a freed buffer. Aligned
    /// as by [`HostBuffer::zeroed`].
    ///
    /// # Errors
    /// As [`HostBuffer::zeroed`].
    #[inline]
    pub fn recycled(bytes: usize) -> Result<Self> {
        HostBuffer::new(bytes, Content::Arbitrary)
    }

    /// Allocates memory as [`HostBuffer::zeroed`] or [`HostBuffer::recycled`].
    #[inline]
    pub(crate) fn new(bytes: usize, content: Content) -> Result<Self> {
        let Some((buffer, zero)) = HostBuffer::cached(bytes)? else {
            return HostBuffer::system_zeroed(bytes);
        };
        if content == Content::Zeros && !zero {
            // SAFETY: the buffer's own memory of `bytes` bytes, with the class that it was taken
            // with.
            unsafe {
                if !cache::remap_zeroed(buffer.ptr, Class::from_index(buffer.capacity)) {
                    buffer.ptr.write_bytes(0, bytes);
                }
            }
        }
        Ok(buffer)
    }

    /// Takes memory from the cache. Returns it and whether it is zero; `None` if the cache has no
    /// class for the size.
    #[inline]
    fn cached(bytes: usize) -> Result<Option<(Self, bool)>> {
        let Some(block) = cache::take(bytes)? else { return Ok(None) };
        memory::allocated(bytes);
        let buffer = HostBuffer {
            ptr: block.start,
            len: bytes,
            base: block.start,
            capacity: block.class.index(),
            free: free_cached,
            version: AtomicU32::new(0),
            lent: AtomicBool::new(false),
        };
        Ok(Some((buffer, block.zero)))
    }

    fn system_zeroed(bytes: usize) -> Result<Self> {
        let small = bytes <= SMALL;
        let buffer = HostBuffer::system(bytes, !small)?;
        if small {
            // SAFETY: the buffer's own memory of `bytes` bytes.
            unsafe { buffer.ptr.write_bytes(0, bytes) };
        }
        Ok(buffer)
    }

    /// Allocates memory from the C library, aligned to 64 bytes. Uninitialised unless `cleared`;
    /// the caller then initialises it before it is read.
    fn system(bytes: usize, cleared: bool) -> Result<Self> {
        let capacity =
            bytes.checked_add(ALIGN - SYSTEM_ALIGN).ok_or_else(|| out_of_memory(bytes))?;
        let layout =
            Layout::from_size_align(capacity, SYSTEM_ALIGN).map_err(|_| out_of_memory(bytes))?;
        // SAFETY: the layout's size isn't zero.
        let ask =
            || NonNull::new(unsafe { if cleared { alloc_zeroed(layout) } else { alloc(layout) } });
        let base = ask().or_else(|| {
            cache::trim();
            ask()
        });
        let base = base.ok_or_else(|| out_of_memory(bytes))?;
        let padding = base.addr().get().next_multiple_of(ALIGN) - base.addr().get();
        // SAFETY: an address aligned to 16 is at most ALIGN - SYSTEM_ALIGN below the next multiple
        // of ALIGN, so the padding and `bytes` after it lie in the allocation.
        let ptr = unsafe { base.add(padding) };
        memory::allocated(bytes);
        let version = AtomicU32::new(0);
        let lent = AtomicBool::new(false);
        Ok(HostBuffer { ptr, len: bytes, base, capacity, free: free_aligned, version, lent })
    }

    /// Copies bytes into a new buffer.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`](keyfold_core::ErrorKind) with the requested size; for large copies the
    /// errors of the function given to [`share_copies`](crate::device::share_copies).
    pub fn copy_of(bytes: &[u8]) -> Result<Self> {
        let buffer = match HostBuffer::cached(bytes.len())? {
            Some((buffer, _)) => buffer,
            None => HostBuffer::system(bytes.len(), false)?,
        };
        if is_large(bytes.len()) {
            return buffer.filled(bytes);
        }
        // SAFETY: new memory of that length, disjoint from the source.
        unsafe { buffer.ptr.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(buffer)
    }

    /// Fills new memory with those bytes, of the same number.
    #[cold]
    fn filled(self, bytes: &[u8]) -> Result<Self> {
        // SAFETY: new memory of that length, disjoint from the source.
        unsafe { copy_bytes(bytes, self.ptr.as_ptr())? };
        Ok(self)
    }

    /// Takes ownership of a vector's memory, without a copy.
    pub fn from_vec<T: Element>(items: Vec<T>) -> Self {
        let mut items = ManuallyDrop::new(items);
        let len = size_of_val(items.as_slice());
        // A vector's pointer is never null, also without an allocation.
        let ptr = NonNull::new(items.as_mut_ptr()).unwrap_or(NonNull::dangling()).cast::<u8>();
        memory::allocated(len);
        let (capacity, version) = (items.capacity(), AtomicU32::new(0));
        let lent = AtomicBool::new(false);
        HostBuffer { ptr, len, base: ptr, capacity, free: free_vec::<T>, version, lent }
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the buffer's own initialised memory; elements have no padding.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Returns the bytes mutably.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        memory::freed(self.len);
        // SAFETY: the constructor set `free` together with its arguments; this is the only call.
        unsafe { (self.free)(self.base, self.capacity) };
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.len)
    }
}

// SAFETY: pointer and length never change while the value lives, the bytes are initialised, and
// nothing else points to them.
unsafe impl DeviceBuffer for HostBuffer {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn byte_len(&self) -> usize {
        self.len
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        Some(self.ptr)
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn version(&self) -> Option<&AtomicU32> {
        Some(&self.version)
    }

    fn lend(&self) {
        self.lent.store(true, Ordering::Relaxed);
    }

    fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Relaxed)
    }
}

/// A buffer with a size and no memory: for tensors on the device `meta`, and for tensors that
/// represent others, such as an example of a batch.
#[derive(Debug)]
pub struct NullBuffer {
    bytes: usize,
    device: Device,
}

impl NullBuffer {
    /// Returns a buffer of that size without memory, on the device `meta`.
    pub fn new(bytes: usize) -> Self {
        NullBuffer::on(Device::META, bytes)
    }

    /// Returns a buffer of that size without memory, on a device.
    pub fn on(device: Device, bytes: usize) -> Self {
        NullBuffer { bytes, device }
    }
}

// SAFETY: there is no pointer.
unsafe impl DeviceBuffer for NullBuffer {
    fn device(&self) -> Device {
        self.device
    }

    fn byte_len(&self) -> usize {
        self.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(&MetaMemory)
    }
}

/// Counters of host memory, for profilers: disabled until requested, then one addition per
/// allocation and release.
pub mod memory {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

    static COUNTERS: AtomicUsize = AtomicUsize::new(0);
    static LIVE: AtomicI64 = AtomicI64::new(0);

    thread_local! {
        static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    }

    /// Enables the counters while it lives.
    #[derive(Debug)]
    pub struct Counting(());

    impl Drop for Counting {
        fn drop(&mut self) {
            COUNTERS.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Enables the counters.
    #[must_use = "memory is counted while the result lives"]
    pub fn count() -> Counting {
        COUNTERS.fetch_add(1, Ordering::Relaxed);
        Counting(())
    }

    #[inline(always)]
    fn is_on() -> bool {
        COUNTERS.load(Ordering::Relaxed) != 0
    }

    /// Returns the bytes that this thread allocated while the counters were enabled.
    pub fn allocated_here() -> u64 {
        ALLOCATED.get()
    }

    /// Returns the bytes in use, relative to the time when the counters were first enabled; only
    /// differences are meaningful.
    pub fn live() -> i64 {
        LIVE.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn allocated(bytes: usize) {
        if is_on() {
            // The thread-local may be destroyed while the thread ends.
            let _ = ALLOCATED.try_with(|sum| sum.set(sum.get().wrapping_add(bytes as u64)));
            LIVE.fetch_add(bytes as i64, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn freed(bytes: usize) {
        if is_on() {
            LIVE.fetch_sub(bytes as i64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use keyfold_core::ErrorKind;

    use super::*;

    #[test]
    fn memory_is_zero_and_aligned_at_every_size() {
        for bytes in [0, 1, 15, 16, 63, 64, 65, 1000, 4095, 4096, 4097, 100_000, 1 << 20, 3 << 20] {
            let buffer = HostBuffer::zeroed(bytes).unwrap();
            assert_eq!(buffer.ptr.addr().get() % ALIGN, 0);
            assert_eq!(buffer.as_bytes().len(), bytes);
            assert!(buffer.as_bytes().iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn failure_to_allocate_names_the_size() {
        for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
            for ask in [HostBuffer::zeroed, HostBuffer::recycled] {
                let error = ask(bytes).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Memory);
                assert!(error.message().contains(&bytes.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn a_vector_is_taken_over_where_it_is() {
        let mut items = Vec::with_capacity(10);
        items.extend([1.5_f64, -2.0]);
        let address = items.as_ptr().addr();
        let mut buffer = HostBuffer::from_vec(items);
        assert_eq!(buffer.ptr.addr().get(), address);
        assert_eq!(buffer.as_bytes()[..8], 1.5_f64.to_ne_bytes());
        buffer.as_bytes_mut()[8..].fill(0);
        assert_eq!(buffer.as_bytes()[8..], [0; 8]);
        assert_eq!(HostBuffer::from_vec(Vec::<u8>::new()).as_bytes(), [0_u8; 0]);
        assert_eq!(format!("{buffer:?}"), "HostBuffer(16 bytes)");
    }
}
