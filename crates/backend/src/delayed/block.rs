//! Blocks of the device's own heap: who uses them, and what happens when they are free.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use keyfold_core::Device;
use keyfold_tensor::DeviceBuffer;
use keyfold_tensor::device::{Memory, Statistics};

use super::DelayedMemory;
use super::stream::Failure;

/// The byte that free memory is filled with.
const POISON: u8 = 0xdd;
/// The most bytes on a shelf unless a limit was set.
const LIMIT: u64 = 1 << 20;

/// How many blocks are in use.
#[derive(Clone, Default)]
pub(super) struct Live(Arc<AtomicUsize>);

impl Live {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The process that a device was opened in. A child of fork has none of the device's threads, and its
/// locks may be taken for ever, so it leaves everything as it is.
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

/// The bytes of a block. Whoever reads or writes them holds the lock, so that also operations that
/// aren't ordered, as a planted mistake lets them be, run one after the other.
pub(super) struct Storage {
    lines: NonNull<[Line]>,
    bytes: usize,
    lock: Mutex<()>,
}

// SAFETY: it owns its bytes, which are used under the lock only.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl Drop for Storage {
    fn drop(&mut self) {
        // SAFETY: they come from a box, and nobody has the storage any more.
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

/// A block's memory as the host's own, for a kernel that runs on it under the lock.
pub(super) struct Alias(Arc<Storage>);

impl fmt::Debug for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Alias({} bytes of a device)", self.0.bytes)
    }
}

// SAFETY: the storage stays where it is while the alias keeps it, its bytes are initialised, and the
// alias lives in an operation that holds the lock.
unsafe impl DeviceBuffer for Alias {
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

/// Free blocks, for allocations of the same size, and the numbers.
pub(super) struct Shelf {
    inside: Mutex<Inside>,
    process: Process,
}

#[derive(Default)]
struct Inside {
    free: Vec<Arc<Storage>>,
    limit: Option<u64>,
    numbers: Statistics,
}

impl Shelf {
    pub(super) fn new() -> Arc<Shelf> {
        Arc::new(Shelf { inside: Mutex::default(), process: Process::this() })
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
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
        // SAFETY: so many bytes are there, and the lock is held.
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

impl Inside {
    fn shrink(&mut self) {
        let limit = self.limit.unwrap_or(LIMIT);
        while self.numbers.cached > limit {
            self.numbers.cached -= self.free.remove(0).bytes as u64;
        }
    }
}

/// A block in use: by its buffer, and by each operation that is queued.
pub(super) struct Lease {
    storage: Arc<Storage>,
    shelf: Arc<Shelf>,
    live: Live,
    freed: AtomicBool,
    /// Why the block doesn't hold what was to be written to it.
    spoilt: OnceLock<Failure>,
}

impl Lease {
    pub(super) fn take(shelf: &Arc<Shelf>, live: &Live, bytes: usize) -> Arc<Lease> {
        live.0.fetch_add(1, Ordering::SeqCst);
        Arc::new(Lease {
            storage: shelf.take(bytes),
            shelf: Arc::clone(shelf),
            live: live.clone(),
            freed: AtomicBool::new(false),
            spoilt: OnceLock::new(),
        })
    }

    /// Where the bytes are, which are used under the lock only.
    pub(super) fn start(&self) -> *mut u8 {
        self.storage.start()
    }

    /// The memory as the host's own. Its elements are used under the lock only.
    pub(super) fn alias(&self) -> Arc<dyn DeviceBuffer> {
        Arc::new(Alias(Arc::clone(&self.storage)))
    }

    /// Notes that the block doesn't hold what it should.
    pub(super) fn spoil(&self, failure: Failure) {
        let _ = self.spoilt.set(failure);
    }

    /// Why the block doesn't hold what it should.
    pub(super) fn spoilt(&self) -> Option<&Failure> {
        self.spoilt.get()
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

/// Calls `f` while the locks of some blocks are held, each once and in one order everywhere.
pub(super) fn while_held<R>(leases: &[Arc<Lease>], f: impl FnOnce() -> R) -> R {
    let mut storages: Vec<&Storage> = leases.iter().map(|lease| &*lease.storage).collect();
    storages.sort_by_key(|storage| std::ptr::from_ref(*storage));
    storages.dedup_by_key(|storage| std::ptr::from_ref(*storage));
    let held: Vec<_> = storages.into_iter().map(Storage::lock).collect();
    let result = f();
    drop(held);
    result
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

// SAFETY: the fields never change, and the host is given no address.
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
