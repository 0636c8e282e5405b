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

/// What one thread announces: a slot per nesting depth.
pub(crate) struct Slots {
    taken: AtomicBool,
    /// Slots at and above this depth were never used.
    used: AtomicUsize,
    slots: Box<[AtomicUsize]>,
}

impl Slots {
    fn new() -> Self {
        Slots {
            taken: AtomicBool::new(true),
            used: AtomicUsize::new(0),
            slots: (0..MAX_DEPTH).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// Makes the slots below `depth` usable. Comes before the first use of each.
    pub(crate) fn reserve(&self, depth: usize) {
        self.used.fetch_max(depth, Ordering::Release);
    }

    /// Announces at `depth` and reads the pointer; what it points to lives until `release`.
    ///
    /// # Safety
    /// `depth` must have been reserved, and be used by its own thread alone.
    #[inline(always)]
    pub(crate) unsafe fn protect<T>(
        &self,
        depth: usize,
        source: &AtomicPtr<T>,
        asymmetric: bool,
    ) -> *mut T {
        debug_assert!(depth < self.slots.len());
        // SAFETY: a reserved depth is below MAX_DEPTH, the length of the slice.
        let slot = unsafe { self.slots.get_unchecked(depth) };
        slot.store(BLOCK_ALL, Ordering::Relaxed);
        barrier::light(asymmetric);
        source.load(Ordering::Acquire)
    }

    /// Narrows the announcement at `depth` to one pointer, with a number of six bits beside it.
    ///
    /// # Safety
    /// As for [`Slots::protect`]; `pointer` came from it.
    #[inline(always)]
    pub(crate) unsafe fn hold<T>(&self, depth: usize, pointer: *const T, key: u8) {
        // SAFETY: as in `protect`.
        let slot = unsafe { self.slots.get_unchecked(depth) };
        slot.store(pointer as usize | usize::from(key), Ordering::Release);
    }

    /// Ends the announcement at `depth`.
    ///
    /// # Safety
    /// As for [`Slots::protect`].
    #[inline(always)]
    pub(crate) unsafe fn release(&self, depth: usize) {
        // SAFETY: as in `protect`.
        unsafe { self.slots.get_unchecked(depth) }.store(0, Ordering::Release);
    }

    /// The pointer (as a number) and the key held at `depth`, for the owning thread to look at.
    pub(crate) fn held(&self, depth: usize) -> Option<(usize, u8)> {
        let content = self.slots.get(depth)?.load(Ordering::Relaxed);
        let pointer = content & !KEY_BITS;
        (pointer != 0 && pointer != BLOCK_ALL).then_some((pointer, (content & KEY_BITS) as u8))
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
        debug_assert_eq!(pointer & KEY_BITS, 0, "snapshots are aligned to 64 bytes");
        lock(&self.retired).push(Retired { pointer, free: free::<T> });
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
                let pointer = settled(slot)? & !KEY_BITS;
                if pointer != 0 {
                    held.push(pointer);
                }
            }
        }
        Some(held)
    }

    /// How many snapshots wait for readers.
    #[cfg(test)]
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
        slots.reserve(2);
        let current = AtomicPtr::new(Box::into_raw(Box::new(Snapshot(&freed))));
        // SAFETY: depth 0 is reserved and only this thread uses the slots.
        let held = unsafe { slots.protect(0, &current, barrier::is_asymmetric()) };
        // SAFETY: as above, and `held` came from `protect`.
        unsafe { slots.hold(0, held, 5) };
        assert_eq!(slots.held(0), Some((held as usize, 5)));
        for _ in 0..10 {
            let old = current.swap(Box::into_raw(Box::new(Snapshot(&freed))), Ordering::AcqRel);
            // SAFETY: `old` was made by `Box::into_raw` and is unlinked now.
            domain.retire(unsafe { Box::from_raw(old) });
            domain.collect();
        }
        assert_eq!(freed.load(Ordering::SeqCst), 9, "all but the held one");
        assert_eq!(domain.waiting(), 1);
        // SAFETY: as above.
        unsafe { slots.release(0) };
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
        slots.reserve(1);
        let current = AtomicPtr::new(Box::into_raw(Box::new(Snapshot(&freed))));
        // SAFETY: depth 0 is reserved and only this thread uses the slots.
        unsafe { slots.protect(0, &current, false) };
        domain.retire(Box::new(Snapshot(&freed)));
        domain.collect();
        assert_eq!((freed.load(Ordering::SeqCst), domain.waiting()), (0, 1));
        // SAFETY: as above.
        unsafe { slots.release(0) };
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

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[repr(align(64))]
    struct Snapshot(AtomicUsize);

    /// One reader at a time reads the snapshot while a writer swaps and retires: loom reports a
    /// use after free as an access to a dropped atomic, and a leak at the end of each execution.
    fn readers_against_a_writer(readers: usize, swaps: usize) {
        loom::model(move || {
            let domain = Arc::new(Domain::new());
            let first = Box::into_raw(Box::new(Snapshot(AtomicUsize::new(7))));
            let current = Arc::new(AtomicPtr::new(first));
            let threads: Vec<_> = (0..readers)
                .map(|_| {
                    let (domain, current) = (Arc::clone(&domain), Arc::clone(&current));
                    let slots = domain.join();
                    slots.reserve(1);
                    loom::thread::spawn(move || {
                        // SAFETY: depth 0 is reserved and this thread's own.
                        let pointer = unsafe { slots.protect(0, &current, false) };
                        // SAFETY: as above.
                        unsafe { slots.hold(0, pointer, 3) };
                        // SAFETY: `protect` keeps what it returned alive until `release`.
                        assert_eq!(unsafe { &*pointer }.0.load(Ordering::Relaxed), 7);
                        // SAFETY: as above.
                        unsafe { slots.release(0) };
                        domain.leave(&slots);
                    })
                })
                .collect();
            for _ in 0..swaps {
                let next = Box::into_raw(Box::new(Snapshot(AtomicUsize::new(7))));
                let old = current.swap(next, Ordering::AcqRel);
                // SAFETY: `old` came from `Box::into_raw` and is unlinked now.
                domain.retire(unsafe { Box::from_raw(old) });
                domain.collect();
            }
            for thread in threads {
                thread.join().unwrap();
            }
            domain.collect();
            assert!(lock(&domain.retired).is_empty(), "everything unlinked is freed in the end");
            // SAFETY: the last snapshot is still linked and nobody reads it.
            drop(unsafe { Box::from_raw(current.load(Ordering::Acquire)) });
        });
    }

    #[test]
    fn one_reader_two_swaps() {
        readers_against_a_writer(1, 2);
    }

    #[test]
    fn two_readers_one_swap() {
        readers_against_a_writer(2, 1);
    }
}
