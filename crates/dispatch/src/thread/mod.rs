//! A thread's state while it calls: nesting depth, slots, local key sets.
//!
//! One block of cells in thread-local storage without a destructor, so that an access costs one
//! address computation and works until the very end of the thread. The thread's end frees its slots
//! (see `end`). Destructors that run later may still call operators, and then take slots for the
//! outermost call's duration.

use std::cell::Cell;
use std::mem::ManuallyDrop;

use keyfold_core::{Error, ErrorKind, Result};

mod end;

use crate::barrier;
use crate::key::DispatchKey;
use crate::keyset::DispatchKeySet;
use crate::local::LocalData;
use crate::reclaim::{Domain, EntryPath, MAX_DEPTH, Slot, Slots};
use crate::sync::Arc;
use end::Ending;

/// The readers and retired tables of all dispatchers in the process.
#[cfg(not(loom))]
pub(crate) static DOMAIN: Domain = Domain::new();
#[cfg(loom)]
loom::lazy_static! {
    pub(crate) static ref DOMAIN: Domain = Domain::new();
}

/// The stack in bytes left for a kernel, if the thread's stack is large enough.
const STACK_MARGIN: usize = 256 * 1024;
/// The number of nesting levels reserved at a time.
const RESERVED_AT_ONCE: usize = 16;

/// One source of local includes and excludes.
#[derive(Default)]
pub(crate) struct LocalSets {
    pub(crate) include: Cell<DispatchKeySet>,
    pub(crate) exclude: Cell<DispatchKeySet>,
}

impl LocalSets {
    const fn new() -> Self {
        LocalSets {
            include: Cell::new(DispatchKeySet::EMPTY),
            exclude: Cell::new(DispatchKeySet::EMPTY),
        }
    }
}

/// The thread's state for calls.
pub(crate) struct ThreadState {
    /// The slot of the next call; its distance from the first is the nesting depth. Its limit
    /// selects the slow path: for the thread's first call, after the last slot, and near the end of
    /// the stack.
    next: Cell<*const Slot>,
    /// The keys that calls gain: the union over the sources below.
    include: Cell<DispatchKeySet>,
    /// The keys that calls keep: the complement of the union that the sources below exclude. In
    /// this form, a call needs one instruction for it.
    keep: Cell<DispatchKeySet>,
    /// Keys of the running layers.
    layers: Cell<DispatchKeySet>,
    /// Keys of open guards (see `local`).
    pub(crate) guards: LocalSets,
    /// Keys of the host language's context (Python's contextvars).
    pub(crate) ambient: LocalSets,
    /// Null without slots: before the first call, and after the thread's end.
    slots: Cell<*const Slots>,
    ending: Ending,
    /// Stack addresses in the `margin` bytes below `margin_top` are too deep.
    margin_top: Cell<usize>,
    margin: Cell<usize>,
}

thread_local! {
    static STATE: ThreadState = const {
        ThreadState {
            next: Cell::new(Slot::unowned()),
            include: Cell::new(DispatchKeySet::EMPTY),
            keep: Cell::new(DispatchKeySet::EMPTY.complement()),
            layers: Cell::new(DispatchKeySet::EMPTY),
            guards: LocalSets::new(),
            ambient: LocalSets::new(),
            slots: Cell::new(std::ptr::null()),
            ending: Ending::new(),
            margin_top: Cell::new(0),
            margin: Cell::new(0),
        }
    };
}

// A destructor would make `STATE` unusable in destructors of other thread-locals, and `with`
// unsound.
const _: () = assert!(!std::mem::needs_drop::<ThreadState>());

/// Collects after a frame whose slot was marked. It looks up the thread's state itself: as a
/// parameter, the call path would keep it in a register.
#[cold]
#[inline(never)]
fn collect_marked() {
    // Not while unwinding: a kernel's destructor may panic, too. The mark stays.
    if !std::thread::panicking() {
        collect();
    }
    with(ThreadState::leave_if_ended);
}

/// Frees retired snapshots without readers. The caller holds no lock that a kernel's destructor may
/// take.
pub(crate) fn collect() {
    // If the handlers can't be registered, a fork at this moment would leave the child a locked
    // domain.
    drop(end::prepare_for_fork());
    with(|state| DOMAIN.collect(state.slots()));
}

/// Runs `f` with the calling thread's state.
#[inline(always)]
pub(crate) fn with<R>(f: impl FnOnce(&ThreadState) -> R) -> R {
    let state = STATE.with(std::ptr::from_ref);
    // SAFETY: without a destructor and initialised by a constant, it lives as long as its thread,
    // which runs `f` here; only shared references to it exist. (`STATE.with(f)` would do if the
    // optimiser saw that it can't fail.)
    f(unsafe { &*state })
}

thread_local! {
    /// The objects of the host language's context, borrowed for the duration of
    /// `with_ambient_data`.
    static AMBIENT_DATA: Cell<*const [LocalData]> =
        const { Cell::new(std::ptr::slice_from_raw_parts(std::ptr::null(), 0)) };
}

/// Runs `f` with these as the host context's objects.
#[inline]
pub(crate) fn with_ambient_data<R>(data: &[LocalData], f: impl FnOnce() -> R) -> R {
    struct Restore(*const [LocalData]);
    impl Drop for Restore {
        #[inline]
        fn drop(&mut self) {
            AMBIENT_DATA.set(self.0);
        }
    }
    let _restore = Restore(AMBIENT_DATA.replace(std::ptr::from_ref(data)));
    f()
}

/// Runs `f` on the host context's objects, outermost first.
pub(crate) fn ambient_data<R>(f: impl FnOnce(&[LocalData]) -> R) -> R {
    let data = AMBIENT_DATA.get();
    if data.is_null() {
        return f(&[]);
    }
    // SAFETY: not null, so this runs inside a `with_ambient_data` of this thread, which borrows the
    // slice until it restores the previous one.
    f(unsafe { &*data })
}

/// Returns the address of the current stack frame.
#[inline(always)]
fn stack_address() -> usize {
    let marker = 0u8;
    std::ptr::from_ref(&marker) as usize
}

impl ThreadState {
    /// Enters one nesting level, which the guard ends; `None` if [`enter`](Self::enter) is needed:
    /// on the first call of a thread, near a limit, or if readers fence.
    #[inline(always)]
    pub(crate) fn enter_fast(&self) -> Option<HazardGuard<'_>> {
        let slot = self.next_slot();
        if slot.is_slow(stack_address()) {
            return None;
        }
        Some(self.take(slot))
    }

    /// Enters one nesting level, which the guard ends.
    ///
    /// # Errors
    /// [`ErrorKind::Recursion`] if calls nest too deep or the stack is nearly used up.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter(&self) -> Result<HazardGuard<'_>> {
        let slots = self.slots_or_start()?;
        let depth = self.depth();
        // Checked before new slots are taken, whose margin is measured from here: a thread after
        // its end, which frees slots at the end of its outermost call, would keep them after an
        // error.
        if depth >= MAX_DEPTH || self.is_stack_low() {
            return Err(Error::new(
                ErrorKind::Recursion,
                format!(
                    "operator calls nest {depth} deep on this thread and the limit is near \
                     ({MAX_DEPTH} calls, or the end of the stack)"
                ),
            ));
        }
        if depth >= slots.used() {
            DOMAIN.reserve(slots, (depth + RESERVED_AT_ONCE).min(MAX_DEPTH));
        }
        let frame = self.take(self.next_slot());
        slots.confirm_fences();
        if slots.is_fenced() {
            // The frame's own announcement, which follows, has no fence.
            frame.slot.announce(false);
        }
        Ok(frame)
    }

    #[inline(always)]
    fn next_slot(&self) -> &Slot {
        // SAFETY: one of this thread's slots or their end, which live until `leave` replaces them
        // by the static one.
        unsafe { &*self.next.get() }
    }

    #[inline(always)]
    fn take<'t>(&'t self, slot: &'t Slot) -> HazardGuard<'t> {
        self.next.set(std::ptr::from_ref(slot).wrapping_add(1));
        HazardGuard { state: self, slot }
    }

    /// Returns the thread's slots, if it has any.
    fn slots(&self) -> Option<&Slots> {
        // SAFETY: null or from the domain, which keeps them until `leave`.
        unsafe { self.slots.get().as_ref() }
    }

    /// Returns the thread's slots; takes some if it has none.
    fn slots_or_start(&self) -> Result<&Slots> {
        if let Some(slots) = self.slots() {
            return Ok(slots);
        }
        end::prepare_for_fork()?;
        // If the stack's size is unknown, depth alone is limited.
        if let Some(left) = stacker::remaining_stack() {
            let margin = STACK_MARGIN.min(left / 2);
            self.margin.set(margin);
            self.margin_top.set(stack_address().saturating_sub(left) + margin);
        }
        let entry = match self.ending.notice(self) {
            true => EntryPath::FastAbove(self.margin_top.get()),
            // Only the end of the outermost call would free the slots.
            false => EntryPath::SlowPath,
        };
        let slots = Arc::as_ptr(&DOMAIN.join(barrier::is_asymmetric(), entry));
        self.slots.set(slots);
        // SAFETY: the domain keeps them until `leave`.
        let slots = unsafe { &*slots };
        self.next.set(slots.below(0).as_ptr());
        Ok(slots)
    }

    /// Frees the thread's slots.
    fn leave(&self) {
        self.next.set(Slot::unowned());
        let slots = self.slots.replace(std::ptr::null());
        if !slots.is_null() {
            DOMAIN.leave(slots);
        }
    }

    /// Frees slots that a call took after the thread's end.
    fn leave_if_ended(&self) {
        if !self.ending.is_noticed() && self.depth() == 0 {
            self.leave();
        }
    }

    fn depth(&self) -> usize {
        let Some(slots) = self.slots() else { return 0 };
        let distance = self.next.get() as usize - slots.below(0).as_ptr() as usize;
        distance / size_of::<Slot>()
    }

    /// Returns whether a destructor will free the thread's memory. Called before memory is
    /// allocated.
    pub(crate) fn notices_end(&self) -> bool {
        self.ending.notice(self)
    }

    fn is_stack_low(&self) -> bool {
        // Not a plain comparison: on a coroutine's stack, addresses have no relation to the margin
        // and rarely fall into it.
        self.margin_top.get().wrapping_sub(stack_address()) < self.margin.get()
    }

    /// Returns the keys that calls on this thread gain.
    #[inline(always)]
    pub(crate) fn include(&self) -> DispatchKeySet {
        self.include.get()
    }

    /// Returns the complement of the keys that calls on this thread lose.
    #[inline(always)]
    pub(crate) fn keep(&self) -> DispatchKeySet {
        self.keep.get()
    }

    /// Returns the keys that calls on this thread lose.
    pub(crate) fn exclude(&self) -> DispatchKeySet {
        self.keep.get().complement()
    }

    /// Recomputes the unions after a source changed.
    pub(crate) fn refresh(&self) {
        self.include.set(self.guards.include.get() | self.ambient.include.get());
        let excluded = self.guards.exclude.get() | self.ambient.exclude.get() | self.layers.get();
        self.keep.set(excluded.complement());
    }

    /// Excludes a layer's key from calls until the guard is dropped.
    #[inline]
    pub(crate) fn run_layer(&self, key: DispatchKey) -> LayerGuard<'_> {
        let before = self.layers.get();
        self.layers.set(before.insert(key));
        self.keep.set(self.keep.get().remove(key));
        LayerGuard { state: self, before }
    }

    /// Returns the keys of the running layers.
    pub(crate) fn layers(&self) -> DispatchKeySet {
        self.layers.get()
    }

    pub(crate) fn set_layers(&self, layers: DispatchKeySet) {
        self.layers.set(layers);
        self.refresh();
    }

    /// Returns the tables (as addresses) and keys of the calls in progress, outermost first.
    pub(crate) fn calls(&self) -> Vec<(usize, DispatchKey)> {
        let Some(slots) = self.slots() else { return Vec::new() };
        slots
            .below(self.depth())
            .iter()
            .filter_map(Slot::held)
            .map(|(pointer, bit)| (pointer, DispatchKey::from_bit(bit)))
            .collect()
    }
}

/// Keeps one nesting level of a call, and its hazard pointer.
pub(crate) struct HazardGuard<'t> {
    state: &'t ThreadState,
    slot: &'t Slot,
}

impl HazardGuard<'_> {
    /// Reads a snapshot, which lives until the guard is dropped.
    #[inline(always)]
    pub(crate) fn protect<T>(&self, source: &crate::sync::AtomicPtr<T>) -> &T {
        // Without a fence: where one is needed, `enter` has announced and fenced.
        let snapshot = self.slot.protect(source, true);
        // SAFETY: the sources here are never null, and a snapshot stays valid until `release` in
        // `drop`. The slot is this guard's alone: the guard isn't `Send` (it borrows thread-local
        // state), and `next` points to the next slot.
        unsafe { &*snapshot }
    }

    /// Narrows the announcement to the snapshot and key in use, so that others can be freed.
    #[inline(always)]
    pub(crate) fn hold<T>(&self, snapshot: &T, key: DispatchKey) {
        self.slot.hold(std::ptr::from_ref(snapshot), key.bit());
    }

    /// Ends the frame of a call and returns its result.
    ///
    /// It does the same as `drop`, with better code: a result in registers is passed through the
    /// rare path instead of being saved for it.
    #[inline(always)]
    pub(crate) fn end_with<R>(self, result: R) -> R {
        #[cold]
        #[inline(never)]
        fn collect_marked_with<R>(result: R) -> R {
            collect_marked();
            result
        }
        let frame = ManuallyDrop::new(self);
        frame.pop();
        let is_marked = frame.slot.is_marked();
        if is_marked { collect_marked_with(result) } else { result }
    }

    /// Ends the frame for another one that takes the same slot at once and checks its mark at the
    /// end.
    #[inline(always)]
    pub(crate) fn end_for_successor(self) {
        ManuallyDrop::new(self).pop();
    }

    /// Ends the frame without checking its mark, for a caller that may hold locks under which
    /// kernels must not be dropped.
    pub(crate) fn end_quietly(self) {
        let frame = ManuallyDrop::new(self);
        frame.pop();
        frame.state.leave_if_ended();
    }

    #[inline(always)]
    fn pop(&self) {
        self.slot.release();
        self.state.next.set(self.slot);
    }
}

impl Drop for HazardGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Snapshots borrowed from the guard are out of use.
        self.pop();
        if self.slot.is_marked() {
            collect_marked();
        }
    }
}

/// Excludes a layer's key while it lives.
pub(crate) struct LayerGuard<'t> {
    state: &'t ThreadState,
    before: DispatchKeySet,
}

impl Drop for LayerGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.state.layers.set(self.before);
        self.state.refresh();
    }
}
