//! Freeing snapshots that readers may still hold.
//!
//! Tables are immutable snapshots behind one atomic pointer. A call must be able
//! to read its table, and run a kernel that the table owns, while another thread
//! swaps the pointer and wants the old table gone. Hazard pointers (M. Michael,
//! "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects", 2004) with
//! two changes:
//!
//! - Wait-free entry. Instead of announce-load-recheck, a reader first stores
//!   [`BLOCK_ALL`] ("free nothing"), loads the pointer, and then narrows its
//!   announcement to that pointer. No loop, no retry.
//! - One slot per nesting depth. A kernel that calls operators takes the next
//!   slot, so a kernel that runs for hours holds back its own table only.
//!
//! The store-load order between the two sides is [`barrier`](crate::barrier)'s.

use crate::barrier;
use crate::sync::{Arc, AtomicBool, AtomicPtr, AtomicUsize, Mutex, Ordering, lock};

/// How deep calls may nest on one thread.
#[cfg(not(loom))]
pub(crate) const MAX_DEPTH: usize = 1000;
#[cfg(loom)]
pub(crate) const MAX_DEPTH: usize = 2;

/// A slot's content while its reader has not yet read the pointer: nothing may be freed.
const BLOCK_ALL: usize = 1 << 6;
/// Tables are aligned to 64 bytes; the low six bits of a slot carry the chosen key.
pub(crate) const KEY_BITS: usize = 63;

/// What one thread announces at one nesting depth. Only that thread writes it.
pub(crate) struct Slot(AtomicUsize);

impl Slot {
    /// Says that something is about to be read, in the order that `heavy` counts on.
    #[inline(always)]
    pub(crate) fn announce(&self, asymmetric: bool) {
        self.0.store(BLOCK_ALL, Ordering::Relaxed);
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
        self.0.store(pointer as usize | usize::from(key), Ordering::Release);
    }

    /// Ends the announcement.
    #[inline(always)]
    pub(crate) fn release(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// The pointer (as a number) and the key held here, for the owning thread to look at.
    pub(crate) fn held(&self) -> Option<(usize, u8)> {
        let content = self.0.load(Ordering::Relaxed);
        let pointer = content & !KEY_BITS;
        (pointer != 0 && pointer != BLOCK_ALL).then_some((pointer, (content & KEY_BITS) as u8))
    }
}

/// What one thread announces: a slot per nesting depth.
pub(crate) struct Slots {
    taken: AtomicBool,
    /// Slots at and above this depth were never used.
    used: AtomicUsize,
    slots: Box<[Slot]>,
}

impl Slots {
    fn new() -> Self {
        Slots {
            taken: AtomicBool::new(true),
            used: AtomicUsize::new(0),
            slots: (0..MAX_DEPTH).map(|_| Slot(AtomicUsize::new(0))).collect(),
        }
    }

    /// The slots below `depth`, now usable.
    pub(crate) fn reserve(&self, depth: usize) -> &[Slot] {
        self.used.fetch_max(depth, Ordering::Release);
        &self.slots[..depth]
    }
}

/// A snapshot that was unlinked and waits for its last reader.
struct Retired {
    pointer: usize,
    free: unsafe fn(usize),
}

/// The threads that read and the snapshots that wait.
pub(crate) struct Domain {
    threads: Mutex<Vec<Arc<Slots>>>,
    retired: Mutex<Vec<Retired>>,
}

impl Domain {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Domain { threads: Mutex::new(Vec::new()), retired: Mutex::new(Vec::new()) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Domain { threads: Mutex::new(Vec::new()), retired: Mutex::new(Vec::new()) }
    }

    /// Slots for a thread: those of a thread that ended, or new ones.
    pub(crate) fn join(&self) -> Arc<Slots> {
        let mut threads = lock(&self.threads);
        for slots in threads.iter() {
            if !slots.taken.swap(true, Ordering::AcqRel) {
                return Arc::clone(slots);
            }
        }
        let slots = Arc::new(Slots::new());
        threads.push(Arc::clone(&slots));
        slots
    }

    /// Gives a thread's slots back. It must hold nothing any more.
    pub(crate) fn leave(&self, slots: &Slots) {
        slots.taken.store(false, Ordering::Release);
    }

    /// Takes charge of a snapshot that no new reader can reach any more. Frees nothing: the
    /// caller may hold locks that a kernel's destructor needs; it calls `collect` after them.
    pub(crate) fn retire<T>(&self, snapshot: Box<T>) {
        unsafe fn free<T>(pointer: usize) {
            // SAFETY: the pointer came from `Box::into_raw` of a `Box<T>` in `retire`, and
            // `collect` frees each retired snapshot once.
            drop(unsafe { Box::from_raw(pointer as *mut T) });
        }
        let pointer = Box::into_raw(snapshot) as usize;
        self.push(Retired { pointer, free: free::<T> });
    }

    fn push(&self, retired: Retired) {
        debug_assert_eq!(retired.pointer & KEY_BITS, 0, "snapshots are aligned to 64 bytes");
        lock(&self.retired).push(retired);
    }

    /// Frees the retired snapshots that no reader holds. The rest waits for the next call.
    pub(crate) fn collect(&self) {
        let mut waiting = std::mem::take(&mut *lock(&self.retired));
        if waiting.is_empty() {
            return;
        }
        barrier::heavy();
        let held = self.announcements();
        let mut free = Vec::new();
        if let Some(held) = held {
            let mut kept = Vec::new();
            for retired in waiting {
                if held.contains(&retired.pointer) {
                    kept.push(retired);
                } else {
                    free.push(retired);
                }
            }
            waiting = kept;
        }
        lock(&self.retired).append(&mut waiting);
        // Outside the locks: freeing runs destructors of kernels, which may register others.
        for retired in free {
            // SAFETY: it was unlinked before `heavy`, so a reader that announced itself later
            // can't have read it; of the earlier ones none holds it. It left the list, so it
            // is freed once.
            unsafe { (retired.free)(retired.pointer) };
        }
    }

    /// What readers hold, or `None` if one has announced itself and not said yet what it read.
    fn announcements(&self) -> Option<Vec<usize>> {
        let mut held = Vec::new();
        for slots in lock(&self.threads).iter() {
            let used = slots.used.load(Ordering::Acquire);
            for slot in &slots.slots[..used] {
                let pointer = settled(&slot.0)? & !KEY_BITS;
                if pointer != 0 {
                    held.push(pointer);
                }
            }
        }
        Some(held)
    }

    /// How many snapshots wait for readers.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.retired).len()
    }
}

/// A slot's content once its reader has said what it read: that takes it a few instructions,
/// unless it lost its processor just there.
fn settled(slot: &AtomicUsize) -> Option<usize> {
    const TRIES: usize = if cfg!(loom) { 1 } else { 200 };
    for _ in 0..TRIES {
        let content = slot.load(Ordering::Acquire);
        if content != BLOCK_ALL {
            return Some(content);
        }
        std::hint::spin_loop();
    }
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    use super::*;

    #[repr(align(64))]
    struct Snapshot<'a>(&'a AtomicUsize);

    impl Drop for Snapshot<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_held_snapshot_waits_and_others_go() {
        let domain = Domain::new();
        let freed = AtomicUsize::new(0);
        let slots = domain.join();
        let slot = &slots.reserve(2)[0];
        let current = AtomicPtr::new(Box::into_raw(Box::new(Snapshot(&freed))));
        let held = slot.protect(&current, barrier::is_asymmetric());
        slot.hold(held, 5);
        assert_eq!(slot.held(), Some((held as usize, 5)));
        for _ in 0..10 {
            let old = current.swap(Box::into_raw(Box::new(Snapshot(&freed))), Ordering::AcqRel);
            // SAFETY: `old` was made by `Box::into_raw` and is unlinked now.
            domain.retire(unsafe { Box::from_raw(old) });
            domain.collect();
        }
        assert_eq!(freed.load(Ordering::SeqCst), 9, "all but the held one");
        assert_eq!(domain.waiting(), 1);
        slot.release();
        domain.collect();
        assert_eq!(freed.load(Ordering::SeqCst), 10);
        // SAFETY: the last one is still linked and nobody reads it.
        drop(unsafe { Box::from_raw(current.load(Ordering::Acquire)) });
    }

    #[test]
    fn an_unsettled_reader_blocks_every_free() {
        let domain = Domain::new();
        let freed = AtomicUsize::new(0);
        let slots = domain.join();
        let slot = &slots.reserve(1)[0];
        let current = AtomicPtr::new(Box::into_raw(Box::new(Snapshot(&freed))));
        slot.protect(&current, false);
        domain.retire(Box::new(Snapshot(&freed)));
        domain.collect();
        assert_eq!((freed.load(Ordering::SeqCst), domain.waiting()), (0, 1));
        slot.release();
        domain.collect();
        assert_eq!((freed.load(Ordering::SeqCst), domain.waiting()), (1, 0));
        // SAFETY: still linked, and nobody reads it.
        drop(unsafe { Box::from_raw(current.load(Ordering::Acquire)) });
    }

    #[test]
    fn slots_of_ended_threads_are_used_again() {
        let domain = Domain::new();
        let first = domain.join();
        let second = domain.join();
        assert!(!Arc::ptr_eq(&first, &second));
        domain.leave(&first);
        assert!(Arc::ptr_eq(&domain.join(), &first));
    }
}

/// The protocol, in every order in which its steps can meet (see `scripts/loom.sh`).
///
/// A snapshot here is a cell whose accesses loom follows, and freeing it is a write. So loom
/// reports a read that isn't ordered before the free, and not only one that comes after it. The
/// memory itself stays until the end of an execution, since a wrong protocol is to be caught, too.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;

    use super::*;

    const ALIVE: u32 = 7;
    const FREED: u32 = 0;

    #[repr(align(64))]
    struct Snapshot(UnsafeCell<u32>);

    fn snapshot() -> *mut Snapshot {
        Box::into_raw(Box::new(Snapshot(UnsafeCell::new(ALIVE))))
    }

    fn state_of(pointer: *const Snapshot) -> u32 {
        // SAFETY: snapshots stay allocated until the execution ends, and loom sees to it that no
        // write is concurrent.
        unsafe { (*pointer).0.with(|state| *state) }
    }

    unsafe fn mark_freed(pointer: usize) {
        // SAFETY: as in `state_of`.
        unsafe { (*(pointer as *const Snapshot)).0.with_mut(|state| *state = FREED) };
    }

    /// How a reader gets at the pointer. All but the first are wrong, and loom must say so.
    #[derive(Clone, Copy)]
    enum Reader {
        AsItIs,
        /// Nothing is announced between the load and `hold`.
        WithoutBlockAll,
        /// The load may overtake the announcement.
        WithoutFence,
        /// The pointer isn't announced after `BLOCK_ALL`.
        WithoutHold,
    }

    impl Reader {
        fn read(self, slot: &Slot, source: &AtomicPtr<Snapshot>) {
            let pointer = match self {
                Reader::WithoutBlockAll => source.load(Ordering::Acquire),
                Reader::WithoutFence => {
                    slot.0.store(BLOCK_ALL, Ordering::Relaxed);
                    source.load(Ordering::Acquire)
                }
                Reader::AsItIs | Reader::WithoutHold => slot.protect(source, false),
            };
            match self {
                Reader::WithoutHold => slot.release(),
                _ => slot.hold(pointer, 3),
            }
            assert_eq!(state_of(pointer), ALIVE);
            slot.release();
        }
    }

    /// Readers that join, read so many times and leave, while a writer swaps and collects.
    fn readers_against_a_writer(reader: Reader, readers: usize, reads: usize, swaps: usize) {
        loom::model(move || {
            let domain = Arc::new(Domain::new());
            let mut all = vec![snapshot()];
            let current = Arc::new(AtomicPtr::new(all[0]));
            let threads: Vec<_> = (0..readers)
                .map(|_| {
                    let (domain, current) = (Arc::clone(&domain), Arc::clone(&current));
                    loom::thread::spawn(move || {
                        let slots = domain.join();
                        let slot = &slots.reserve(1)[0];
                        for _ in 0..reads {
                            reader.read(slot, &current);
                        }
                        domain.leave(&slots);
                    })
                })
                .collect();
            for _ in 0..swaps {
                let next = snapshot();
                all.push(next);
                let old = current.swap(next, Ordering::AcqRel);
                domain.push(Retired { pointer: old as usize, free: mark_freed });
                domain.collect();
            }
            for thread in threads {
                thread.join().unwrap();
            }
            domain.collect();
            assert!(lock(&domain.retired).is_empty(), "everything unlinked is freed in the end");
            let last = all.pop().unwrap();
            assert_eq!(state_of(last), ALIVE);
            assert!(all.iter().all(|unlinked| state_of(*unlinked) == FREED));
            for pointer in all.into_iter().chain([last]) {
                // SAFETY: made by `Box::into_raw`, once in the list, and the readers are gone.
                drop(unsafe { Box::from_raw(pointer) });
            }
        });
    }

    #[test]
    fn one_reader_and_two_swaps() {
        readers_against_a_writer(Reader::AsItIs, 1, 1, 2);
    }

    #[test]
    fn one_reader_that_reads_twice() {
        readers_against_a_writer(Reader::AsItIs, 1, 2, 1);
    }

    #[test]
    fn two_readers_and_one_swap() {
        readers_against_a_writer(Reader::AsItIs, 2, 1, 1);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_block_all_it_fails() {
        readers_against_a_writer(Reader::WithoutBlockAll, 1, 1, 1);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_a_fence_it_fails() {
        readers_against_a_writer(Reader::WithoutFence, 1, 1, 1);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_hold_it_fails() {
        readers_against_a_writer(Reader::WithoutHold, 1, 1, 1);
    }

    /// Two writers that swap and collect beside each other free each snapshot once.
    #[test]
    fn two_writers_and_a_reader() {
        loom::model(|| {
            let domain = Arc::new(Domain::new());
            let snapshots = [snapshot(), snapshot(), snapshot()];
            let current = Arc::new(AtomicPtr::new(snapshots[0]));
            let writer = |domain: &Domain, current: &AtomicPtr<Snapshot>, next| {
                let old = current.swap(next, Ordering::AcqRel);
                domain.push(Retired { pointer: old as usize, free: mark_freed });
                domain.collect();
            };
            let there = {
                let (domain, current) = (Arc::clone(&domain), Arc::clone(&current));
                let next = snapshots[1] as usize;
                loom::thread::spawn(move || writer(&domain, &current, next as *mut Snapshot))
            };
            let slots = domain.join();
            Reader::AsItIs.read(&slots.reserve(1)[0], &current);
            writer(&domain, &current, snapshots[2]);
            there.join().unwrap();
            domain.collect();
            assert!(lock(&domain.retired).is_empty());
            let states = snapshots.map(|pointer| state_of(pointer));
            assert_eq!(states.iter().filter(|state| **state == ALIVE).count(), 1);
            for pointer in snapshots {
                // SAFETY: made by `Box::into_raw`, and nobody else has it any more.
                drop(unsafe { Box::from_raw(pointer) });
            }
        });
    }
}
