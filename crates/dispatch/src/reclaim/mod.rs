//! Reclamation of snapshots that readers may still use.
//!
//! Tables are immutable snapshots behind one atomic pointer. A call must be able to read its table,
//! and run a kernel that the table owns, while another thread swaps the pointer and retires the old
//! table. These are hazard pointers (M. Michael, "Hazard Pointers: Safe Memory Reclamation for
//! Lock-Free Objects", 2004) with three changes:
//!
//! - Wait-free entry. Instead of announce-load-recheck, a reader first stores
//!   `BLOCK_ALL` ("free nothing"), loads the pointer, and then narrows its
//!   announcement to that pointer. No loop, no retry.
//! - One slot per nesting depth. A kernel that calls operators takes the next slot, so that a
//!   long-running kernel blocks only the reclamation of its own table.
//! - The last reader frees. A writer marks the slots that hold a retired snapshot, and the thread
//!   that releases a marked slot collects, so that nothing waits for the next writer.
//!
//! [`barrier`](crate::barrier) orders the stores and loads of the two sides. If membarrier(2)
//! starts to fail on a thread, the announcements of readers without a fence can't be ordered any
//! more. Then every thread is told to fence. Until all have confirmed or ended, nothing is freed,
//! unless membarrier still works on another thread.

mod slots;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::barrier;
use crate::sync::{Arc, Lock};
use slots::{BLOCK_ALL, KEY_BITS};
pub(crate) use slots::{EntryPath, MAX_DEPTH, Slot, Slots};

/// An unlinked snapshot that waits for its last reader.
struct Retired {
    pointer: usize,
    free: unsafe fn(usize),
}

/// The reading threads and the retired snapshots.
pub(crate) struct Domain(Lock<DomainState>);

struct DomainState {
    threads: Vec<Arc<Slots>>,
    retired: Vec<Retired>,
    /// Whether new threads must fence: from the start, or since membarrier failed.
    fenced: bool,
}

impl DomainState {
    const NEW: DomainState =
        DomainState { threads: Vec::new(), retired: Vec::new(), fenced: false };
}

impl Domain {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Domain(Lock::new(DomainState::NEW))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Domain(Lock::new(DomainState::NEW))
    }

    /// Returns slots for a thread, which the domain keeps until `leave`. `asymmetric`: whether the
    /// thread may omit its fence, as far as is known.
    pub(crate) fn join(&self, asymmetric: bool, entry: EntryPath) -> Arc<Slots> {
        let mut state = self.0.lock();
        let slots = Arc::new(Slots::new(entry, state.fenced || !asymmetric));
        state.threads.push(Arc::clone(&slots));
        slots
    }

    /// Makes a thread's slots below this depth usable.
    pub(crate) fn reserve(&self, slots: &Slots, depth: usize) {
        let _state = self.0.lock();
        slots.reserve(depth);
    }

    /// Frees a thread's slots, which must announce nothing.
    pub(crate) fn leave(&self, slots: *const Slots) {
        let mut state = self.0.lock();
        let at = state.threads.iter().position(|other| Arc::as_ptr(other) == slots);
        let gone = at.map(|at| state.threads.swap_remove(at));
        let count = state.threads.len();
        state.threads.shrink_to(2 * count);
        drop(state);
        drop(gone);
    }

    /// Retires a snapshot that no new reader can reach. It frees nothing, since the caller may hold
    /// locks that a kernel's destructor takes; the caller collects after their release.
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
        self.0.lock().retired.push(retired);
    }

    /// Frees the retired snapshots that no reader holds, and marks the slots that hold others.
    /// `own`: the calling thread's slots, if it has any.
    pub(crate) fn collect(&self, own: Option<&Slots>) {
        let free = self.0.lock().take_unheld(own);
        // Outside the lock: freeing runs destructors of kernels, which may register others.
        for retired in free {
            // SAFETY: it was unlinked before `order`, so a reader that announced itself later can't
            // have read it, and no earlier reader holds it. It left the list, so it is freed once.
            let destroy = || unsafe { (retired.free)(retired.pointer) };
            // A panic of a destructor, which the panic hook has reported, must neither keep other
            // snapshots from being freed nor lose the handle of a registration. Loom's panics,
            // which report wrong orders, propagate.
            if cfg!(loom) {
                destroy();
            } else {
                let _ = catch_unwind(AssertUnwindSafe(destroy));
            }
        }
    }

    /// Returns the numbers of retired snapshots and of threads.
    #[cfg(test)]
    fn waiting(&self) -> (usize, usize) {
        let state = self.0.lock();
        (state.retired.len(), state.threads.len())
    }
}

/// Handlers around a fork. The child has one thread, so the announcements of others are void there.
#[cfg(not(loom))]
impl Domain {
    /// Before the fork: locks, so that no thread is amid a change when it happens.
    pub(crate) fn before_fork(&self) {
        self.0.acquire();
    }

    /// After the fork, in the parent.
    ///
    /// # Safety
    /// `before_fork` ran on this thread.
    pub(crate) unsafe fn after_fork_in_parent(&self) {
        // SAFETY: locked in `before_fork`.
        unsafe { self.0.release() };
    }

    /// After the fork, in the child; `own` are its only thread's slots, or null.
    ///
    /// # Safety
    /// `before_fork` ran on the thread that this one continues.
    pub(crate) unsafe fn after_fork_in_child(&self, own: *const Slots) {
        // SAFETY: `before_fork` locked it, and there is no other thread.
        let state = unsafe { &mut *self.0.value() };
        state.threads.retain(|slots| Arc::as_ptr(slots) == own);
        // SAFETY: as above.
        unsafe { self.0.release() };
    }
}

impl DomainState {
    /// Removes and returns the retired snapshots that no slot holds, and marks the slots that hold
    /// others.
    fn take_unheld(&mut self, own: Option<&Slots>) -> Vec<Retired> {
        let mut free = Vec::new();
        // Marks are cleared before the scan and never after it: a reader that releases in between
        // either finds its mark, or the scan finds its release.
        self.threads.iter().for_each(|slots| slots.clear_marks());
        // A reader that releases between the scan and its mark doesn't see the mark, so another
        // scan follows after a new mark. Each slot is marked once, so the loop ends.
        while !self.retired.is_empty() {
            let ordered = self.order(own);
            let DomainState { threads, retired, .. } = self;
            let slots = threads.iter().flat_map(|thread| thread.announcements(ordered));
            let held: Vec<(&Slot, usize)> = slots.collect();
            if held.iter().all(|(_, pointer)| *pointer != BLOCK_ALL) {
                let is_held = |retired: &Retired| held.iter().any(|held| held.1 == retired.pointer);
                free.extend(retired.extract_if(.., |retired| !is_held(retired)));
            }
            let mut is_news = false;
            for (slot, pointer) in held {
                let is_waited_for =
                    |retired: &Retired| [retired.pointer, BLOCK_ALL].contains(&pointer);
                is_news |= retired.iter().any(is_waited_for) && slot.mark();
            }
            if !is_news {
                break;
            }
        }
        free
    }

    /// Orders earlier swaps before later reads of announcements. Returns false if only threads that
    /// fence are ordered.
    fn order(&mut self, own: Option<&Slots>) -> bool {
        if self.threads.iter().all(|slots| slots.is_fenced()) {
            barrier::full();
            return true;
        }
        if barrier::heavy() {
            return true;
        }
        self.fenced = true;
        self.threads.iter().for_each(|slots| slots.demand_fences());
        if let Some(own) = own {
            // This thread sees its own announcements, and fences the next ones.
            own.confirm_fences();
        }
        false
    }
}
