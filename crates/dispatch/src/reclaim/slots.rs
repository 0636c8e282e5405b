//! The announcements of threads: a slot per nesting depth.

use std::sync::atomic::{AtomicBool as StdAtomicBool, AtomicUsize as StdAtomicUsize};

use crate::barrier;
use crate::sync::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// How deep calls may nest on one thread.
#[cfg(not(loom))]
pub(crate) const MAX_DEPTH: usize = 1000;
#[cfg(loom)]
pub(crate) const MAX_DEPTH: usize = 2;

/// A slot's content while its reader has not yet read the pointer: nothing may be freed.
pub(super) const BLOCK_ALL: usize = 1 << 6;
/// Tables are aligned to 64 bytes; the low six bits of a slot carry the chosen key.
pub(super) const KEY_BITS: usize = 63;

/// A limit that no stack reaches: the slot is always entered the slow way.
const SLOW: usize = usize::MAX - 1;
/// As [`SLOW`], and the thread that lets go of the slot collects.
const NOTED: usize = usize::MAX;

/// One thread's announcement at one nesting depth, and the way into that depth.
#[repr(C)]
pub(crate) struct Slot {
    /// Only the thread writes it.
    pub(super) content: AtomicUsize,
    /// A call that finds the stack below this address takes the slow way in. Where the slot holds
    /// back retired snapshots, [`NOTED`]. (The standard library's atomic also under loom: the
    /// protocol's order doesn't rest on it.)
    limit: StdAtomicUsize,
}

/// The slot of threads that have none, so that the next call takes the slow way in.
#[cfg(not(loom))]
static NOBODYS: Slot = Slot { content: AtomicUsize::new(0), limit: StdAtomicUsize::new(SLOW) };

impl Slot {
    /// A slot that is never taken.
    #[cfg(not(loom))]
    pub(crate) const fn nobodys() -> *const Slot {
        &raw const NOBODYS
    }

    /// Under loom nobody calls operators.
    #[cfg(loom)]
    pub(crate) const fn nobodys() -> *const Slot {
        std::ptr::null()
    }

    /// Whether a call that has this stack address must take the slow way in.
    #[inline(always)]
    pub(crate) fn is_slow(&self, stack_address: usize) -> bool {
        stack_address < self.limit.load(Ordering::Relaxed)
    }

    /// Says that something is about to be read, in the order that `heavy` counts on.
    #[inline(always)]
    pub(crate) fn announce(&self, asymmetric: bool) {
        self.content.store(BLOCK_ALL, Ordering::Relaxed);
        barrier::light(asymmetric);
    }

    /// Announces and reads the pointer; what it points to lives until `release`.
    #[inline(always)]
    pub(crate) fn protect<T>(&self, source: &AtomicPtr<T>, asymmetric: bool) -> *mut T {
        self.announce(asymmetric);
        source.load(Ordering::Acquire)
    }

    /// Narrows the announcement to one pointer, which came from `protect`, with a number of six
    /// bits beside it.
    #[inline(always)]
    pub(crate) fn hold<T>(&self, pointer: *const T, key: u8) {
        self.content.store(pointer as usize | usize::from(key), Ordering::Release);
    }

    /// Ends the announcement.
    #[inline(always)]
    pub(crate) fn release(&self) {
        self.content.store(0, Ordering::Release);
    }

    /// Whether somebody waits for this slot's release: asked after it.
    #[inline(always)]
    pub(crate) fn is_noted(&self) -> bool {
        // Either the thread sees the note here, or who noted it sees the release (`heavy` is
        // between the two there). Without membarrier, and where a frame ends quietly, the note may
        // be missed: then the next call at this depth, or the next change of a registration, does
        // what the note asks for.
        barrier::compiler_only();
        self.limit.load(Ordering::Relaxed) == NOTED
    }

    /// The pointer (as a number) and the key held here, for the owning thread to look at.
    pub(crate) fn held(&self) -> Option<(usize, u8)> {
        let content = self.content.load(Ordering::Relaxed);
        let pointer = content & !KEY_BITS;
        (pointer != 0 && pointer != BLOCK_ALL).then_some((pointer, (content & KEY_BITS) as u8))
    }

    /// Notes that somebody waits for this slot's release, under the domain's lock. Says whether that
    /// is new.
    pub(super) fn note(&self) -> bool {
        self.limit.swap(NOTED, Ordering::Relaxed) != NOTED
    }

    /// The content once the reader has said what it read: that takes it a few instructions, unless
    /// it lost its processor just there.
    fn settled(&self) -> Option<usize> {
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

/// How a thread's slots are entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// The fast way, down to this stack address.
    FastAbove(usize),
    /// The slow way, and whoever leaves a slot looks whether something is to be done: for a thread
    /// that is ending.
    Attended,
}

/// One thread's slots. The domain owns them, and the thread points to them.
pub(crate) struct Slots {
    /// Slots at and above this depth were never used. Changed under the domain's lock.
    used: StdAtomicUsize,
    /// Whether the thread itself fences every announcement that it makes from now on.
    fenced: AtomicBool,
    /// Whether it must.
    must_fence: StdAtomicBool,
    /// The limit of used slots where nothing is noted.
    limit: StdAtomicUsize,
    /// One more than can be taken: the last one is the end.
    slots: Box<[Slot]>,
}

impl Slots {
    pub(super) fn new(entry: Entry, fenced: bool) -> Self {
        let limit = match entry {
            Entry::FastAbove(_) if fenced => SLOW,
            Entry::FastAbove(address) => address.min(SLOW),
            Entry::Attended => NOTED,
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

    /// The slots below this depth.
    pub(crate) fn below(&self, depth: usize) -> &[Slot] {
        &self.slots[..depth]
    }

    /// How many slots can be taken without reserving more.
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

    /// The slots that may hold something.
    pub(super) fn in_use(&self) -> &[Slot] {
        self.below(self.used())
    }

    /// Whether every announcement is either fenced or older than the thread's word on that, and
    /// so to be seen after a fence.
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
        // After these stores: whoever sees it finds the slow way in everywhere.
        self.must_fence.store(true, Ordering::Release);
    }

    /// The thread's word, on its slow way in, that it fences from now on if it must.
    pub(crate) fn pass_on(&self) {
        if self.must_fence.load(Ordering::Acquire) && !self.fenced.load(Ordering::Relaxed) {
            self.fenced.store(true, Ordering::Release);
        }
    }

    /// The slots that announce something, and the pointers that they hold: `BLOCK_ALL` where a reader
    /// may have announced itself without having said what it read. `ordered`: whether readers that
    /// leave their fence out are ordered, too.
    pub(super) fn announcements(&self, ordered: bool) -> impl Iterator<Item = (&Slot, usize)> {
        let is_known = ordered || self.is_fenced();
        self.in_use().iter().filter_map(move |slot| {
            let content = if is_known { slot.settled() } else { None };
            let pointer = content.map_or(BLOCK_ALL, |content| content & !KEY_BITS);
            (pointer != 0).then_some((slot, pointer))
        })
    }

    /// Takes the notes back, under the domain's lock: a look at all slots follows, and notes anew.
    pub(super) fn clear_notes(&self) {
        let usual = self.limit.load(Ordering::Relaxed);
        for slot in self.in_use() {
            slot.limit.store(usual, Ordering::Relaxed);
        }
    }
}
