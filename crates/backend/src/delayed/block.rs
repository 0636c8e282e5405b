//! Blocks of the device's heap, in use and free.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use keyfold_core::Device;
use keyfold_tensor::DeviceBuffer;
use keyfold_tensor::device::{Memory, Statistics};

use super::DelayedMemory;
use super::stream::OperationFailure;

/// The byte that freed memory is filled with.
const POISON: u8 = 0xdd;
/// The default limit of free bytes.
const LIMIT: u64 = 1 << 20;

/// The number of blocks in use.
#[derive(Clone, Default)]
pub(super) struct LiveCount(Arc<AtomicUsize>);

impl LiveCount {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The process that opened a device. A child of fork lacks the device's threads, and may have
/// inherited locked locks, so it changes nothing.
#[derive(Clone, Copy)]
pub(super) struct Process(u32);

impl Process {
    pub(super) fn this() -> Process {
        Process(std::process::id())
    }

    pub(super) fn is_this(self) -> bool {
        self.0 == std::process::id()
    }
}

/// Bytes aligned for every kernel.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// The bytes of a block, accessed under the lock only, so that operations which a planted mistake
/// leaves unordered still exclude each other.
pub(super) struct Storage {
    lines: NonNull<[Line]>,
    bytes: usize,
    lock: Mutex<()>,
}

// SAFETY: it owns its bytes, which are accessed under the lock only.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl Drop for Storage {
    fn drop(&mut self) {
        // SAFETY: they come from a box, and nothing else refers to the storage.
        drop(unsafe { Box::from_raw(self.lines.as_ptr()) });
    }
}

impl Storage {
    fn new(bytes: usize) -> Arc<Storage> {
        let lines = vec![Line([POISON; 64]); bytes.div_ceil(64)].into_boxed_slice();
        Arc::new(Storage { lines: NonNull::from(Box::leak(lines)), bytes, lock: Mutex::new(()) })
    }

    fn start(&self) -> *mut u8 {
        self.lines.as_ptr().cast()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block's memory as host memory, for a kernel that runs under the lock.
pub(super) struct HostAlias(Arc<Storage>);

impl fmt::Debug for HostAlias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostAlias({} bytes of a device)", self.0.bytes)
    }
}

// SAFETY: the storage stays at its address while the alias keeps it, its bytes are initialised, and
// the alias lives in an operation that holds the lock.
unsafe impl DeviceBuffer for HostAlias {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn byte_len(&self) -> usize {
        self.0.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.0.start())
    }
}

/// Free blocks, reused for allocations of the same size, and their statistics.
pub(super) struct FreeList {
    inside: Mutex<FreeListState>,
    process: Process,
}

#[derive(Default)]
struct FreeListState {
    free: Vec<Arc<Storage>>,
    limit: Option<u64>,
    numbers: Statistics,
}

impl FreeList {
    pub(super) fn new() -> Arc<FreeList> {
        Arc::new(FreeList { inside: Mutex::default(), process: Process::this() })
    }

    fn lock(&self) -> MutexGuard<'_, FreeListState> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: usize) -> Arc<Storage> {
        let mut inside = self.lock();
        let found = inside.free.iter().position(|storage| storage.bytes == bytes);
        let storage = match found {
            Some(place) => {
                inside.numbers.cached -= bytes as u64;
                inside.free.swap_remove(place)
            }
            None => Storage::new(bytes),
        };
        let numbers = &mut inside.numbers;
        numbers.in_use += bytes as u64;
        numbers.allocations += 1;
        numbers.peak = numbers.peak.max(numbers.in_use + numbers.cached);
        storage
    }

    fn put(&self, storage: &Arc<Storage>) {
        let bytes = storage.bytes;
        let held = storage.lock();
        // SAFETY: the storage has that many bytes, and the lock is held.
        unsafe { storage.start().write_bytes(POISON, bytes) };
        drop(held);
        let mut inside = self.lock();
        inside.numbers.in_use -= bytes as u64;
        inside.numbers.cached += bytes as u64;
        inside.free.push(Arc::clone(storage));
        inside.shrink();
    }

    pub(super) fn statistics(&self) -> Statistics {
        let inside = self.lock();
        Statistics { limit: inside.limit.unwrap_or(LIMIT), ..inside.numbers }
    }

    pub(super) fn set_limit(&self, limit: Option<u64>) {
        let mut inside = self.lock();
        inside.limit = limit;
        inside.shrink();
    }
}

impl FreeListState {
    fn shrink(&mut self) {
        let limit = self.limit.unwrap_or(LIMIT);
        while self.numbers.cached > limit {
            self.numbers.cached -= self.free.remove(0).bytes as u64;
        }
    }
}

/// A block in use by its buffer and by queued operations.
pub(super) struct Lease {
    storage: Arc<Storage>,
    shelf: Arc<FreeList>,
    live: LiveCount,
    freed: AtomicBool,
    /// The failure of an operation that should have written the block.
    invalidated_by: OnceLock<OperationFailure>,
}

impl Lease {
    pub(super) fn take(shelf: &Arc<FreeList>, live: &LiveCount, bytes: usize) -> Arc<Lease> {
        live.0.fetch_add(1, Ordering::SeqCst);
        Arc::new(Lease {
            storage: shelf.take(bytes),
            shelf: Arc::clone(shelf),
            live: live.clone(),
            freed: AtomicBool::new(false),
            invalidated_by: OnceLock::new(),
        })
    }

    /// Returns the address of the bytes, which are accessed under the lock only.
    pub(super) fn start(&self) -> *mut u8 {
        self.storage.start()
    }

    /// Returns the memory as host memory. Its elements are accessed under the lock only.
    pub(super) fn alias(&self) -> Arc<dyn DeviceBuffer> {
        Arc::new(HostAlias(Arc::clone(&self.storage)))
    }

    /// Marks the block's content as invalid.
    pub(super) fn invalidate(&self, failure: OperationFailure) {
        let _ = self.invalidated_by.set(failure);
    }

    /// Returns the failure that made the block's content invalid.
    pub(super) fn invalidated_by(&self) -> Option<&OperationFailure> {
        self.invalidated_by.get()
    }

    fn free(&self) {
        if !self.freed.swap(true, Ordering::SeqCst) {
            self.shelf.put(&self.storage);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.shelf.process.is_this() {
            self.free();
            self.live.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Calls `f` while holding the locks of some blocks.
pub(super) fn while_held<R>(leases: &[Arc<Lease>], f: impl FnOnce() -> R) -> R {
    let held = lock_all(leases);
    let result = f();
    drop(held);
    result
}

/// Acquires the locks of some blocks, each once, in a global order.
fn lock_all(leases: &[Arc<Lease>]) -> Vec<MutexGuard<'_, ()>> {
    let mut storages: Vec<&Storage> = leases.iter().map(|lease| &*lease.storage).collect();
    storages.sort_by_key(|storage| std::ptr::from_ref(*storage));
    storages.dedup_by_key(|storage| std::ptr::from_ref(*storage));
    storages.into_iter().map(Storage::lock).collect()
}

pub(super) struct DelayedBuffer {
    pub(super) memory: DelayedMemory,
    pub(super) lease: Arc<Lease>,
    device: Device,
    bytes: usize,
    frees_early: bool,
    version: AtomicU32,
}

impl DelayedBuffer {
    pub(super) fn new(
        memory: DelayedMemory,
        lease: Arc<Lease>,
        device: Device,
        bytes: usize,
        frees_early: bool,
    ) -> Self {
        DelayedBuffer { memory, lease, device, bytes, frees_early, version: AtomicU32::new(0) }
    }
}

impl Drop for DelayedBuffer {
    fn drop(&mut self) {
        if self.frees_early && self.lease.shelf.process.is_this() {
            self.lease.free();
        }
    }
}

impl fmt::Debug for DelayedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DelayedBuffer(device={}, {} bytes)", self.device, self.bytes)
    }
}

// SAFETY: the fields never change, and there is no host address.
unsafe impl DeviceBuffer for DelayedBuffer {
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
        Some(&self.memory)
    }

    fn version(&self) -> Option<&AtomicU32> {
        Some(&self.version)
    }
}
