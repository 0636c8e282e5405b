//! A cache of freed host memory for the next tensors of about the same size.
//!
//! For results of megabytes, most of an allocation's cost is the system's: it clears and maps each
//! page at the first access, which takes several times as long as adding two arrays. So freed
//! blocks of 4 KiB and more are kept, by size class, up to a limit: the environment variable
//! `KEYFOLD_CACHE_BYTES` or [`set_limit`], by default an eighth of the memory that the process may
//! use and at most 4 GiB. Above the limit, blocks of the least recently used classes return to the
//! system. With limit 0 there is no cache, and each buffer is allocated by the C library, for
//! memory checkers.
//!
//! Sizes are rounded up by at most an eighth. Each class has its own lock, held for some
//! nanoseconds. Fork acquires all of them (see [`keyfold_dispatch::forklock`]), so that a child's
//! cache is consistent.

mod class;
mod limit;
mod pages;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use keyfold_core::{Error, ErrorKind, Result};

pub(super) use self::class::Class;
pub use self::limit::{LIMIT_VARIABLE, limit, reset_limit, set_limit};
use keyfold_dispatch::forklock::{AtFork, ForkLock};

/// Smaller blocks are the C library's, which is fast for them.
pub(super) const SMALLEST: usize = class::SMALLEST;

/// A block, and whether it is known to be zero.
pub(super) struct Block {
    pub(super) start: NonNull<u8>,
    pub(super) class: Class,
    pub(super) zero: bool,
}

/// The free blocks of a class.
struct Bin {
    blocks: Vec<Start>,
    hits: u64,
}

struct Start(NonNull<u8>);

// SAFETY: a free block is accessed only by the holder of this pointer.
unsafe impl Send for Start {}

/// Aligned to two cache lines, against false sharing between classes.
#[repr(align(128))]
struct ClassSlot {
    bin: ForkLock<Bin>,
    /// The time of its last use, in ticks of [`CLOCK`].
    used: AtomicU64,
    /// The number of blocks, to be read without the lock.
    free: AtomicUsize,
}

impl ClassSlot {
    const fn new() -> Self {
        ClassSlot {
            bin: ForkLock::new(Bin { blocks: Vec::new(), hits: 0 }),
            used: AtomicU64::new(0),
            free: AtomicUsize::new(0),
        }
    }
}

static SLOTS: [ClassSlot; class::COUNT] = [const { ClassSlot::new() }; class::COUNT];
/// The bytes in free blocks.
static CACHED: AtomicUsize = AtomicUsize::new(0);
/// The bytes allocated from the system, in use or free, and their peak.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static MISSES: AtomicU64 = AtomicU64::new(0);
static RETURNED: AtomicU64 = AtomicU64::new(0);
/// Advances at every system allocation, which is precise enough to find least recently used
/// classes.
static CLOCK: AtomicU64 = AtomicU64::new(1);

static AT_FORK: AtFork = AtFork::new();

unsafe extern "C" fn before_fork() {
    SLOTS.iter().for_each(|slot| slot.bin.acquire());
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` acquired them, on this thread or on the one that it continues.
    SLOTS.iter().for_each(|slot| unsafe { slot.bin.release() });
}

/// Returns a block of at least that many bytes, aligned to a cache line, with arbitrary but
/// initialised contents. `None` if the cache has no class for the size.
#[inline]
pub(super) fn take(bytes: usize) -> Result<Option<Block>> {
    if bytes < SMALLEST || limit()? == 0 {
        return Ok(None);
    }
    let Some(class) = Class::of(bytes) else { return Err(out_of_memory(bytes)) };
    let slot = &SLOTS[class.index()];
    let mut bin = slot.bin.lock();
    if let Some(Start(start)) = bin.blocks.pop() {
        bin.hits += 1;
        note_use(slot, &bin);
        drop(bin);
        CACHED.fetch_sub(class.bytes(), Ordering::Relaxed);
        return Ok(Some(Block { start, class, zero: false }));
    }
    drop(bin);
    fresh(class, bytes).map(Some)
}

/// Zeroes a large block by mapping fresh pages, if that is faster than clearing; returns whether it
/// did.
///
/// # Safety
/// The block came from [`take`], and nothing else accesses it.
pub(super) unsafe fn remap_zeroed(start: NonNull<u8>, class: Class) -> bool {
    // SAFETY: the caller's contract.
    class.bytes() >= pages::REMAPPED && unsafe { pages::remap_zeroed(start, class.bytes()) }
}

/// Returns a block to the cache.
///
/// # Safety
/// It came from [`take`], its contents are initialised, and nothing accesses it any more.
#[inline]
pub(super) unsafe fn recycle(start: NonNull<u8>, class: Class) {
    let size = class.bytes();
    let cached = CACHED.fetch_add(size, Ordering::Relaxed) + size;
    if cached > limit().unwrap_or(0) {
        // SAFETY: the caller's contract.
        return unsafe { recycle_into_full(start, class) };
    }
    let slot = &SLOTS[class.index()];
    let mut bin = slot.bin.lock();
    bin.blocks.push(Start(start));
    note_use(slot, &bin);
}

#[inline(always)]
fn note_use(slot: &ClassSlot, bin: &Bin) {
    slot.free.store(bin.blocks.len(), Ordering::Relaxed);
    slot.used.store(CLOCK.load(Ordering::Relaxed), Ordering::Relaxed);
}

#[cold]
fn fresh(class: Class, bytes: usize) -> Result<Block> {
    // SAFETY: the functions only use locks of this module.
    unsafe { AT_FORK.register(before_fork, after_fork, after_fork)? };
    let size = class.bytes();
    let start = pages::allocate(size)
        .or_else(|| {
            trim();
            pages::allocate(size)
        })
        .ok_or_else(|| out_of_memory(bytes))?;
    CLOCK.fetch_add(1, Ordering::Relaxed);
    MISSES.fetch_add(1, Ordering::Relaxed);
    let allocated = ALLOCATED.fetch_add(size, Ordering::Relaxed) + size;
    PEAK.fetch_max(allocated, Ordering::Relaxed);
    Ok(Block { start, class, zero: true })
}

/// Finishes [`recycle`] if the block, already counted, makes the cache too large.
#[cold]
unsafe fn recycle_into_full(start: NonNull<u8>, class: Class) {
    let limit = limit().unwrap_or(0);
    CLOCK.fetch_add(1, Ordering::Relaxed);
    // A recently used class is more likely to be requested than an old block; but no room is made
    // for a block above the limit.
    let own = &SLOTS[class.index()];
    own.used.store(CLOCK.load(Ordering::Relaxed), Ordering::Relaxed);
    while class.bytes() <= limit && CACHED.load(Ordering::Relaxed) > limit {
        let oldest = SLOTS
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.free.load(Ordering::Relaxed) != 0)
            .min_by_key(|(_, slot)| slot.used.load(Ordering::Relaxed));
        let Some((index, _)) = oldest.filter(|(_, slot)| !std::ptr::eq(*slot, own)) else { break };
        if let Some(Start(block)) = pop(index) {
            release(block, Class::from_index(index));
        }
    }
    if CACHED.load(Ordering::Relaxed) > limit {
        release(start, class);
        return;
    }
    let mut bin = own.bin.lock();
    bin.blocks.push(Start(start));
    note_use(own, &bin);
}

fn pop(index: usize) -> Option<Start> {
    let slot = &SLOTS[index];
    let mut bin = slot.bin.lock();
    let block = bin.blocks.pop();
    slot.free.store(bin.blocks.len(), Ordering::Relaxed);
    block
}

/// Frees a block that was counted as cached.
fn release(block: NonNull<u8>, class: Class) {
    let size = class.bytes();
    CACHED.fetch_sub(size, Ordering::Relaxed);
    ALLOCATED.fetch_sub(size, Ordering::Relaxed);
    RETURNED.fetch_add(size as u64, Ordering::Relaxed);
    // SAFETY: allocated with that size and removed from the bins, so nothing else refers to it.
    unsafe { pages::free(block, size) };
}

/// Frees blocks of the least recently used classes until at most `keep` bytes are cached. Returns
/// the number of bytes freed.
fn shrink(keep: usize) -> usize {
    let mut indices: Vec<usize> = (0..class::COUNT).collect();
    // Each time is read once, since other threads use blocks during the sort.
    indices.sort_by_cached_key(|index| SLOTS[*index].used.load(Ordering::Relaxed));
    let mut given = 0;
    for index in indices {
        let class = Class::from_index(index);
        while CACHED.load(Ordering::Relaxed) > keep {
            let Some(Start(block)) = pop(index) else { break };
            release(block, class);
            given += class.bytes();
        }
    }
    given
}

/// Frees all cached blocks and returns their size in bytes.
pub fn trim() -> usize {
    shrink(0)
}

#[cold]
pub(super) fn out_of_memory(bytes: usize) -> Error {
    Error::new(ErrorKind::Memory, format!("can't allocate {bytes} bytes of host memory"))
}

/// Statistics of the cache, for blocks of 4 KiB and more, in bytes as rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Allocated from the system: `live` plus `cached`.
    pub allocated: u64,
    /// Used by buffers.
    pub live: u64,
    /// Free blocks in the cache.
    pub cached: u64,
    /// The peak of `allocated`.
    pub peak: u64,
    /// The number of allocations from the cache.
    pub hits: u64,
    /// The number of allocations from the system.
    pub misses: u64,
    /// Bytes returned to the system since the process started.
    pub returned: u64,
    /// The limit of `cached`.
    pub limit: u64,
}

/// Returns the current statistics; exact while no other thread allocates.
///
/// # Errors
/// As [`limit`].
pub fn stats() -> Result<CacheStats> {
    let limit = limit()? as u64;
    let hits = SLOTS.iter().map(|slot| slot.bin.lock().hits).sum();
    let cached = CACHED.load(Ordering::Relaxed) as u64;
    let allocated = ALLOCATED.load(Ordering::Relaxed) as u64;
    Ok(CacheStats {
        allocated,
        live: allocated.saturating_sub(cached),
        cached,
        peak: PEAK.load(Ordering::Relaxed) as u64,
        hits,
        misses: MISSES.load(Ordering::Relaxed),
        returned: RETURNED.load(Ordering::Relaxed),
        limit,
    })
}
