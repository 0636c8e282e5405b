//! Blocks of host memory that are kept for the next tensor of about the same size.
//!
//! What costs when a result of some megabytes is allocated isn't the allocator but the system, which
//! clears each page and maps it when it is first touched: several times what it takes to add two
//! arrays. So freed blocks of 4 KiB and more are kept, by size class, up to a limit: the environment
//! variable `KEYFOLD_CACHE_BYTES` or [`set_limit`], else an eighth of the memory that the process may
//! use and at most 4 GiB. When the limit is reached, blocks of the sizes that weren't asked for
//! longest go back to the system. With limit 0 there is no cache, and each buffer is the C
//! library's: for tools that watch it.
//!
//! Sizes are rounded up by an eighth at most. Each class has its own lock, held for some
//! nanoseconds; fork takes them all (see [`keyfold_dispatch::forklock`]), so that a child's cache is whole.

mod class;
mod limit;
mod pages;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use keyfold_core::{Error, ErrorKind, Result};

pub(super) use self::class::Class;
pub use self::limit::{LIMIT_VARIABLE, limit, reset_limit, set_limit};
use keyfold_dispatch::forklock::{AtFork, ForkLock};

/// Blocks smaller than this are the C library's matter, which is quick about them.
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

// SAFETY: a free block belongs to whoever holds the pointer.
unsafe impl Send for Start {}

/// Two cache lines, so that classes don't disturb each other.
#[repr(align(128))]
struct Slot {
    bin: ForkLock<Bin>,
    /// When it was last used, in ticks of [`CLOCK`].
    used: AtomicU64,
    /// How many blocks there are, to be looked at without the lock.
    free: AtomicUsize,
}

impl Slot {
    const fn new() -> Self {
        Slot {
            bin: ForkLock::new(Bin { blocks: Vec::new(), hits: 0 }),
            used: AtomicU64::new(0),
            free: AtomicUsize::new(0),
        }
    }
}

static SLOTS: [Slot; class::COUNT] = [const { Slot::new() }; class::COUNT];
/// Bytes in free blocks.
static CACHED: AtomicUsize = AtomicUsize::new(0);
/// Bytes had from the system, in use or free, and the most there were.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static MISSES: AtomicU64 = AtomicU64::new(0);
static RETURNED: AtomicU64 = AtomicU64::new(0);
/// Goes forward whenever the system is asked: order enough to tell what wasn't used for long.
static CLOCK: AtomicU64 = AtomicU64::new(1);

static AT_FORK: AtFork = AtFork::new();

unsafe extern "C" fn before_fork() {
    SLOTS.iter().for_each(|slot| slot.bin.acquire());
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` took them, on this thread or on the one that it continues.
    SLOTS.iter().for_each(|slot| unsafe { slot.bin.release() });
}

/// A block of that many bytes or some more, aligned to a cache line, with arbitrary but initialised
/// contents. None where there is no cache for that size.
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

/// Makes a large block zero by fresh pages, where that is quicker than clearing; says whether it is.
///
/// # Safety
/// The block came from [`take`], and nobody else uses it.
pub(super) unsafe fn renew(start: NonNull<u8>, class: Class) -> bool {
    // SAFETY: as for the caller.
    class.bytes() >= pages::RENEWED && unsafe { pages::renew(start, class.bytes()) }
}

/// Takes a block back.
///
/// # Safety
/// It came from [`take`], its contents are initialised, and nobody uses it any more.
#[inline]
pub(super) unsafe fn give(start: NonNull<u8>, class: Class) {
    let size = class.bytes();
    let cached = CACHED.fetch_add(size, Ordering::Relaxed) + size;
    if cached > limit().unwrap_or(0) {
        // SAFETY: as for the caller.
        return unsafe { give_to_full(start, class) };
    }
    let slot = &SLOTS[class.index()];
    let mut bin = slot.bin.lock();
    bin.blocks.push(Start(start));
    note_use(slot, &bin);
}

#[inline(always)]
fn note_use(slot: &Slot, bin: &Bin) {
    slot.free.store(bin.blocks.len(), Ordering::Relaxed);
    slot.used.store(CLOCK.load(Ordering::Relaxed), Ordering::Relaxed);
}

#[cold]
fn fresh(class: Class, bytes: usize) -> Result<Block> {
    // SAFETY: the functions touch locks of ours only.
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

/// What [`give`] does when the block, already counted, makes the cache too large.
#[cold]
unsafe fn give_to_full(start: NonNull<u8>, class: Class) {
    let limit = limit().unwrap_or(0);
    CLOCK.fetch_add(1, Ordering::Relaxed);
    // What was just used is more likely to be asked for than what lies there for long; but nothing
    // makes room for a block that is too large by itself.
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

/// Gives a block that was counted as cached to the system.
fn release(block: NonNull<u8>, class: Class) {
    let size = class.bytes();
    CACHED.fetch_sub(size, Ordering::Relaxed);
    ALLOCATED.fetch_sub(size, Ordering::Relaxed);
    RETURNED.fetch_add(size as u64, Ordering::Relaxed);
    // SAFETY: allocated with that size, and out of the bins, so nobody else's.
    unsafe { pages::free(block, size) };
}

/// Gives free blocks to the system, those that weren't used for longest first, until no more than
/// `keep` bytes are cached. Says how many bytes it gave.
fn shrink(keep: usize) -> usize {
    let mut indices: Vec<usize> = (0..class::COUNT).collect();
    // Each time is read once: other threads use blocks while this sorts.
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

/// Gives all free blocks to the system, and says how many bytes that were.
pub fn trim() -> usize {
    shrink(0)
}

#[cold]
pub(super) fn out_of_memory(bytes: usize) -> Error {
    Error::new(ErrorKind::Memory, format!("can't allocate {bytes} bytes of host memory"))
}

/// The cache in numbers: of blocks of 4 KiB and more, in bytes as rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Had from the system: `live` and `cached` together.
    pub allocated: u64,
    /// In use by buffers.
    pub live: u64,
    /// Free, and kept.
    pub cached: u64,
    /// The most that `allocated` was.
    pub peak: u64,
    /// How many allocations took a block that was kept.
    pub hits: u64,
    /// How many went to the system.
    pub misses: u64,
    /// Given to the system, since the process began.
    pub returned: u64,
    /// The most that is kept.
    pub limit: u64,
}

/// The numbers now; exact while no other thread allocates.
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
