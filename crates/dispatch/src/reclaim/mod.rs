//! Freeing snapshots that readers may still hold.
//!
//! Tables are immutable snapshots behind one atomic pointer. A call must be able
//! to read its table, and run a kernel that the table owns, while another thread
//! swaps the pointer and wants the old table gone. Hazard pointers (M. Michael,
//! "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects", 2004) with
//! three changes:
//!
//! - Wait-free entry. Instead of announce-load-recheck, a reader first stores
//!   `BLOCK_ALL` ("free nothing"), loads the pointer, and then narrows its
//!   announcement to that pointer. No loop, no retry.
//! - One slot per nesting depth. A kernel that calls operators takes the next
//!   slot, so a kernel that runs for hours holds back its own table only.
//! - The last reader frees. A slot that holds a retired snapshot is noted, and
//!   the thread that lets go of it collects: nothing waits for the next writer.
//!
//! The store-load order between the two sides is [`barrier`](crate::barrier)'s.
//! When a thread's membarrier(2) fails that worked before, the announcements of
//! readers that left their fence out can't be ordered. So every thread is told to
//! fence from now on, and until it has said that it does, or has ended, nothing is
//! freed, unless another thread's membarrier still works.

#[cfg(all(test, loom))]
mod loom_tests;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::barrier;
use crate::sync::{Arc, Lock};
use slots::{BLOCK_ALL, KEY_BITS};
pub(crate) use slots::{Entry, MAX_DEPTH, Slot, Slots};

/// A snapshot that was unlinked and waits for its last reader.
struct Retired {
    pointer: usize,
    free: unsafe fn(usize),
}

/// The threads that read and the snapshots that wait.
pub(crate) struct Domain(Lock<State>);

struct State {
    threads: Vec<Arc<Slots>>,
    retired: Vec<Retired>,
    /// Whether threads that join must fence: from the start, or since membarrier failed.
    fenced: bool,
}

impl State {
    const NEW: State = State { threads: Vec::new(), retired: Vec::new(), fenced: false };
}

impl Domain {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Domain(Lock::new(State::NEW))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Domain(Lock::new(State::NEW))
    }

    /// Slots for a thread, which the domain keeps until `leave`. `asymmetric`: whether the thread
    /// may leave out its fence, as far as is known.
    pub(crate) fn join(&self, asymmetric: bool, entry: Entry) -> Arc<Slots> {
        let mut state = self.0.lock();
        let slots = Arc::new(Slots::new(entry, state.fenced || !asymmetric));
        state.threads.push(Arc::clone(&slots));
        slots
    }

    /// Lets a thread use its slots below this depth.
    pub(crate) fn reserve(&self, slots: &Slots, depth: usize) {
        let _state = self.0.lock();
        slots.reserve(depth);
    }

    /// Takes a thread's slots back. It must hold nothing any more.
    pub(crate) fn leave(&self, slots: *const Slots) {
        let mut state = self.0.lock();
        let at = state.threads.iter().position(|other| Arc::as_ptr(other) == slots);
        let gone = at.map(|at| state.threads.swap_remove(at));
        let count = state.threads.len();
        state.threads.shrink_to(2 * count);
        drop(state);
        drop(gone);
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
        self.0.lock().retired.push(retired);
    }

    /// Frees the retired snapshots that no reader holds. The rest waits for the readers, who are
    /// told. `own`: the calling thread's slots, if it has some.
    pub(crate) fn collect(&self, own: Option<&Slots>) {
        let free = self.0.lock().take_unheld(own);
        // Outside the lock: freeing runs destructors of kernels, which may register others.
        for retired in free {
            // SAFETY: it was unlinked before `order`, so a reader that announced itself later
            // can't have read it; of the earlier ones none holds it. It left the list, so it
            // is freed once.
            let destroy = || unsafe { (retired.free)(retired.pointer) };
            // A destructor's panic (which the panic hook has told of) keeps neither the other
            // snapshots from being freed nor a registration from its handle. Loom's panics, which
            // tell of wrong orders, go through.
            if cfg!(loom) {
                destroy();
            } else {
                let _ = catch_unwind(AssertUnwindSafe(destroy));
            }
        }
    }

    /// How many snapshots wait for readers, and how many threads there are.
    #[cfg(test)]
    fn waiting(&self) -> (usize, usize) {
        let state = self.0.lock();
        (state.retired.len(), state.threads.len())
    }
}

/// Around a fork. The child has one thread: what others announced there is nobody's.
#[cfg(not(loom))]
impl Domain {
    /// Before the fork: nobody is in the middle of a change when it happens.
    pub(crate) fn before_fork(&self) {
        self.0.acquire();
    }

    /// After the fork, in the parent.
    ///
    /// # Safety
    /// `before_fork` ran on this thread.
    pub(crate) unsafe fn after_fork_in_parent(&self) {
        // SAFETY: taken in `before_fork`.
        unsafe { self.0.release() };
    }

    /// After the fork, in the child, whose one thread has these slots, or none.
    ///
    /// # Safety
    /// `before_fork` ran on the thread that this one continues.
    pub(crate) unsafe fn after_fork_in_child(&self, own: *const Slots) {
        // SAFETY: the lock was taken in `before_fork`, and there is no other thread.
        let state = unsafe { &mut *self.0.value() };
        state.threads.retain(|slots| Arc::as_ptr(slots) == own);
        // SAFETY: as above.
        unsafe { self.0.release() };
    }
}

impl State {
    /// Takes out the retired snapshots that nobody holds, and notes which slots hold the others.
    fn take_unheld(&mut self, own: Option<&Slots>) -> Vec<Retired> {
        let mut free = Vec::new();
        // Notes are taken back before the look and never after it: a reader that let go in between
        // finds its note, or the look finds that it let go.
        self.threads.iter().for_each(|slots| slots.clear_notes());
        // A reader that let go between the look and the note knows nothing of the note: so another
        // look follows where a slot was noted. Each slot is noted once, so there is a last look.
        while !self.retired.is_empty() {
            let ordered = self.order(own);
            let State { threads, retired, .. } = self;
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
                is_news |= retired.iter().any(is_waited_for) && slot.note();
            }
            if !is_news {
                break;
            }
        }
        free
    }

    /// Orders the swaps before against the readers' announcements. False: only those of threads
    /// that fence.
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
            // This thread sees its own announcements, and the next ones are fenced.
            own.pass_on();
        }
        false
    }
}
