//! The announcements of threads: a slot per nesting depth.

use std::sync::atomic::{AtomicBool as StdAtomicBool, AtomicUsize as StdAtomicUsize};

use crate::barrier;
use crate::sync::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The deepest nesting of calls on a thread.
#[cfg(not(loom))]
pub(crate) const MAX_DEPTH: usize = 1000;
#[cfg(loom)]
pub(crate) const MAX_DEPTH: usize = 2;

/// A slot's content before its reader has read the pointer: nothing may be freed.
pub(super) const BLOCK_ALL: usize = 1 << 6;
/// The low six bits of a slot hold the chosen key; tables are aligned to 64 bytes.
pub(super) const KEY_BITS: usize = 63;

/// A limit below any stack address: calls always take the slow path.
const SLOW: usize = usize::MAX - 1;
/// As [`SLOW`]; the thread that releases the slot collects.
const MARKED: usize = usize::MAX;

/// One thread's announcement at one nesting depth, and the limit of its fast path.
#[repr(C)]
pub(crate) struct Slot {
    /// Written by the owning thread only.
    pub(super) content: AtomicUsize,
    /// A call below this stack address takes the slow path. [`MARKED`] if the slot holds a retired
    /// snapshot. (The standard library's atomic also under loom, since the protocol's order doesn't
    /// depend on it.)
    limit: StdAtomicUsize,
}

/// The slot of threads without slots, so that their next call takes the slow path.
#[cfg(not(loom))]
static UNOWNED: Slot = Slot { content: AtomicUsize::new(0), limit: StdAtomicUsize::new(SLOW) };

impl Slot {
    /// Returns a slot that is never entered.
    #[cfg(not(loom))]
    pub(crate) const fn unowned() -> *const Slot {
        &raw const UNOWNED
    }

    /// Under loom, operators aren't called.
    #[cfg(loom)]
    pub(crate) const fn unowned() -> *const Slot {
        std::ptr::null()
    }

    /// Returns whether a call at this stack address takes the slow path.
    #[inline(always)]
    pub(crate) fn is_slow(&self, stack_address: usize) -> bool {
        stack_address < self.limit.load(Ordering::Relaxed)
    }

    /// Announces a read, before `heavy`'s side in the protocol's order.
    #[inline(always)]
    pub(crate) fn announce(&self, asymmetric: bool) {
        self.content.store(BLOCK_ALL, Ordering::Relaxed);
        barrier::light(asymmetric);
    }

    /// Announces and reads the pointer; the pointee lives until `release`.
    #[inline(always)]
    pub(crate) fn protect<T>(&self, source: &AtomicPtr<T>, asymmetric: bool) -> *mut T {
        self.announce(asymmetric);
        source.load(Ordering::Acquire)
    }

    /// Narrows the announcement to one pointer from `protect`, with a key of six bits.
    #[inline(always)]
    pub(crate) fn hold<T>(&self, pointer: *const T, key: u8) {
        self.content.store(pointer as usize | usize::from(key), Ordering::Release);
    }

    /// Ends the announcement.
    #[inline(always)]
    pub(crate) fn release(&self) {
        self.content.store(0, Ordering::Release);
    }

    /// Returns whether a writer waits for this slot's release. Called after it.
    #[inline(always)]
    pub(crate) fn is_marked(&self) -> bool {
        // Either this thread sees the mark, or the marking thread sees the release (`heavy` is
        // between the two there). Without membarrier, and if a frame ends quietly, the mark may be
        // missed: then the next call at this depth, or the next change of a registration, collects.
        barrier::compiler_only();
        self.limit.load(Ordering::Relaxed) == MARKED
    }

    /// Returns the pointer (as a number) and the key announced here, for the owning thread.
    pub(crate) fn held(&self) -> Option<(usize, u8)> {
        let content = self.content.load(Ordering::Relaxed);
        let pointer = content & !KEY_BITS;
        (pointer != 0 && pointer != BLOCK_ALL).then_some((pointer, (content & KEY_BITS) as u8))
    }

    /// Marks the slot, under the domain's lock. Returns whether it wasn't marked before.
    pub(super) fn mark(&self) -> bool {
        self.limit.swap(MARKED, Ordering::Relaxed) != MARKED
    }

    /// Returns the content once it isn't `BLOCK_ALL`. A reader changes it within a few
    /// instructions, unless it is descheduled just there.
    fn narrowed(&self) -> Option<usize> {
        const TRIES: usize = if cfg!(loom) { 1 } else { 200 };
        for _ in 0..TRIES {
            let content = self.content.load(Ordering::Acquire);
            if content != BLOCK_ALL {
                return Some(content);
            }
            std::hint::spin_loop();
        }
        None
    }
}

/// The path by which a thread enters its slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryPath {
    /// The fast path, down to this stack address.
    FastAbove(usize),
    /// The slow path, and every release checks for work, for a thread that is ending.
    SlowPath,
}

/// One thread's slots. The domain owns them, and the thread points to them.
pub(crate) struct Slots {
    /// The number of slots that may be in use. Changed under the domain's lock.
    used: StdAtomicUsize,
    /// Whether the thread itself fences all its announcements from now on.
    fenced: AtomicBool,
    /// Whether it must.
    must_fence: StdAtomicBool,
    /// The limit of usable slots without a mark.
    limit: StdAtomicUsize,
    /// One slot more than can be entered, as the end.
    slots: Box<[Slot]>,
}

impl Slots {
    pub(super) fn new(entry: EntryPath, fenced: bool) -> Self {
        let limit = match entry {
            EntryPath::FastAbove(_) if fenced => SLOW,
            EntryPath::FastAbove(address) => address.min(SLOW),
            EntryPath::SlowPath => MARKED,
        };
        let slot = |_| Slot { content: AtomicUsize::new(0), limit: StdAtomicUsize::new(SLOW) };
        Slots {
            used: StdAtomicUsize::new(0),
            fenced: AtomicBool::new(fenced),
            must_fence: StdAtomicBool::new(fenced),
            limit: StdAtomicUsize::new(limit),
            slots: (0..=MAX_DEPTH).map(slot).collect(),
        }
    }

    /// Returns the slots below this depth.
    pub(crate) fn below(&self, depth: usize) -> &[Slot] {
        &self.slots[..depth]
    }

    /// Returns the number of slots that can be entered without reserving more.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// Makes the slots below `depth` usable, under the domain's lock.
    pub(super) fn reserve(&self, depth: usize) {
        let limit = self.limit.load(Ordering::Relaxed);
        for slot in self.slots[..depth].iter().skip(self.used()) {
            slot.limit.store(limit, Ordering::Relaxed);
        }
        self.used.store(depth, Ordering::Release);
    }

    /// Returns the slots that may announce something.
    pub(super) fn in_use(&self) -> &[Slot] {
        self.below(self.used())
    }

    /// Returns whether every announcement is either fenced or older than the thread's confirmation,
    /// and so visible after a fence.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Tells the thread to fence from now on, under the domain's lock.
    pub(super) fn demand_fences(&self) {
        let slow = |limit: &StdAtomicUsize| limit.fetch_max(SLOW, Ordering::Relaxed);
        slow(&self.limit);
        for slot in self.in_use() {
            slow(&slot.limit);
        }
        // After these stores, so that a thread that reads it finds the slow path everywhere.
        self.must_fence.store(true, Ordering::Release);
    }

    /// Confirms, on the thread's slow path, that it fences from now on if it must.
    pub(crate) fn confirm_fences(&self) {
        if self.must_fence.load(Ordering::Acquire) && !self.fenced.load(Ordering::Relaxed) {
            self.fenced.store(true, Ordering::Release);
        }
    }

    /// Returns the slots that announce something, with their pointers: `BLOCK_ALL` if a reader may
    /// have announced itself without a pointer yet. `ordered`: whether readers without a fence are
    /// ordered, too.
    pub(super) fn announcements(&self, ordered: bool) -> impl Iterator<Item = (&Slot, usize)> {
        let is_known = ordered || self.is_fenced();
        self.in_use().iter().filter_map(move |slot| {
            let content = if is_known { slot.narrowed() } else { None };
            let pointer = content.map_or(BLOCK_ALL, |content| content & !KEY_BITS);
            (pointer != 0).then_some((slot, pointer))
        })
    }

    /// Clears the marks, under the domain's lock, before a scan of all slots sets them anew.
    pub(super) fn clear_marks(&self) {
        let usual = self.limit.load(Ordering::Relaxed);
        for slot in self.in_use() {
            slot.limit.store(usual, Ordering::Relaxed);
        }
    }
}
