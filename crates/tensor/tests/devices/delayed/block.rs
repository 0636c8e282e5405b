//! Blocks of the device's own heap: who uses them, and what happens when they are free.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_core::Device;
use keyfold_tensor::DeviceBuffer;
use keyfold_tensor::device::{Memory, Statistics};

use super::Delayed;

/// What free memory holds.
const POISON: u8 = 0xdd;
/// The most bytes on a shelf unless a limit was set.
const LIMIT: u64 = 1 << 20;

/// How many blocks are in use.
#[derive(Clone, Default)]
pub(crate) struct Live(Arc<AtomicUsize>);

impl Live {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

type Storage = Arc<Mutex<Vec<u8>>>;

/// Free blocks, for allocations of the same size, and the numbers.
#[derive(Default)]
pub(crate) struct Shelf(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    free: Vec<(usize, Storage)>,
    limit: Option<u64>,
    numbers: Statistics,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: usize) -> Storage {
        let mut inside = self.lock();
        let found = inside.free.iter().position(|(len, _)| *len == bytes);
        let storage = match found {
            Some(place) => {
                inside.numbers.cached -= bytes as u64;
                inside.free.swap_remove(place).1
            }
            None => Arc::new(Mutex::new(vec![POISON; bytes])),
        };
        let numbers = &mut inside.numbers;
        numbers.in_use += bytes as u64;
        numbers.allocations += 1;
        numbers.peak = numbers.peak.max(numbers.in_use + numbers.cached);
        storage
    }

    fn put(&self, storage: &Storage) {
        let bytes = {
            let mut bytes = storage.lock().unwrap_or_else(PoisonError::into_inner);
            bytes.fill(POISON);
            bytes.len()
        };
        let mut inside = self.lock();
        inside.numbers.in_use -= bytes as u64;
        inside.numbers.cached += bytes as u64;
        inside.free.push((bytes, Arc::clone(storage)));
        inside.shrink();
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let inside = self.lock();
        Statistics { limit: inside.limit.unwrap_or(LIMIT), ..inside.numbers }
    }

    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        let mut inside = self.lock();
        inside.limit = limit;
        inside.shrink();
    }
}

impl Inside {
    fn shrink(&mut self) {
        let limit = self.limit.unwrap_or(LIMIT);
        while self.numbers.cached > limit {
            let (bytes, _) = self.free.remove(0);
            self.numbers.cached -= bytes as u64;
        }
    }
}

/// A block in use: by its buffer, and by each operation that is queued.
pub(crate) struct Lease {
    storage: Storage,
    shelf: Arc<Shelf>,
    live: Live,
    freed: AtomicBool,
}

impl Lease {
    pub(crate) fn take(shelf: &Arc<Shelf>, live: &Live, bytes: usize) -> Arc<Lease> {
        live.0.fetch_add(1, Ordering::SeqCst);
        let (storage, freed) = (shelf.take(bytes), AtomicBool::new(false));
        Arc::new(Lease { storage, shelf: Arc::clone(shelf), live: live.clone(), freed })
    }

    pub(crate) fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.storage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self) {
        if !self.freed.swap(true, Ordering::SeqCst) {
            self.shelf.put(&self.storage);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.free();
        self.live.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) struct DelayedBuffer {
    pub(crate) memory: Delayed,
    pub(crate) lease: Arc<Lease>,
    device: Device,
    bytes: usize,
    frees_early: bool,
    version: AtomicU32,
}

impl DelayedBuffer {
    pub(crate) fn new(
        memory: Delayed,
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
        if self.frees_early {
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
