//! What a thread knows while it calls: nesting depth, slots, local key sets.
//!
//! One block of cells in thread-local storage without a destructor, so that
//! reaching it costs one address computation, and so that it can be reached as
//! long as the thread runs anything at all. What the thread keeps is given back
//! when it ends (see `end`). Its last destructors may still call operators: then
//! it takes slots again, for the length of the outermost call.

use std::cell::Cell;
use std::mem::ManuallyDrop;

use keyfold_core::{Error, ErrorKind, Result};

mod end;

use crate::barrier;
use crate::key::DispatchKey;
use crate::keyset::DispatchKeySet;
use crate::local::LocalData;
use crate::reclaim::{Domain, Entry, MAX_DEPTH, Slot, Slots};
use crate::sync::Arc;
use end::Ending;

/// The process's readers and retired tables, of all dispatchers.
#[cfg(not(loom))]
pub(crate) static DOMAIN: Domain = Domain::new();
#[cfg(loom)]
loom::lazy_static! {
    pub(crate) static ref DOMAIN: Domain = Domain::new();
}

/// Stack that must be left for the kernel that is entered, where the stack is large enough.
const STACK_MARGIN: usize = 256 * 1024;
/// Nesting levels that are reserved at a time.
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

/// The thread's part of the call path.
pub(crate) struct ThreadState {
    /// The slot that the next call takes: its distance from the first is the nesting depth. The
    /// slot says who must take the slow way in: the thread's first call, the one after the last
    /// slot, one where the stack ends.
    next: Cell<*const Slot>,
    /// The keys that calls gain: the union of the sources below.
    include: Cell<DispatchKeySet>,
    /// The keys that calls keep: all keys but the union of what the sources below exclude. (In this form, a
    /// call needs one instruction for it.)
    keep: Cell<DispatchKeySet>,
    /// Keys of the layers that run now.
    layers: Cell<DispatchKeySet>,
    /// From open guards (see `local`).
    pub(crate) guards: LocalSets,
    /// From the host language's context (Python's contextvars).
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
            next: Cell::new(Slot::nobodys()),
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

// A destructor would make `STATE` unusable in the destructors of other thread-locals, and `with`
// unsound.
const _: () = assert!(!std::mem::needs_drop::<ThreadState>());

/// Collects after a frame whose slot was noted. (It looks for the thread's state itself:
/// to have it handed over, the call path would keep it at hand.)
#[cold]
#[inline(never)]
fn attend() {
    // Not while a panic goes through: a kernel's destructor may panic, too. The note stays.
    if !std::thread::panicking() {
        collect();
    }
    with(ThreadState::leave_if_ended);
}

/// Frees what was retired and nobody holds any more. The caller holds no lock that a kernel's
/// destructor may want.
pub(crate) fn collect() {
    // Without memory to note the functions, a fork just here would leave the child a taken lock.
    drop(end::prepare_for_fork());
    with(|state| DOMAIN.collect(state.slots()));
}

/// Runs `f` with the calling thread's state.
#[inline(always)]
pub(crate) fn with<R>(f: impl FnOnce(&ThreadState) -> R) -> R {
    let state = STATE.with(std::ptr::from_ref);
    // SAFETY: without a destructor and initialised by a constant, it lives as long as its thread,
    // which runs `f` here; nothing but shared references to it exists. (`STATE.with(f)` would do,
    // if the optimiser saw that it can't fail.)
    f(unsafe { &*state })
}

thread_local! {
    /// The objects of the host language's context; a slice of them, as long as somebody is inside
    /// `with_ambient_data`.
    static AMBIENT_DATA: Cell<*const [LocalData]> =
        const { Cell::new(std::ptr::slice_from_raw_parts(std::ptr::null(), 0)) };
}

/// Runs `f` with these as the host context's objects.
pub(crate) fn with_ambient_data<R>(data: &[LocalData], f: impl FnOnce() -> R) -> R {
    struct Restore(*const [LocalData]);
    impl Drop for Restore {
        fn drop(&mut self) {
            AMBIENT_DATA.set(self.0);
        }
    }
    let _restore = Restore(AMBIENT_DATA.replace(std::ptr::from_ref(data)));
    f()
}

/// Shows the host context's objects to `f`, outermost first.
pub(crate) fn ambient_data<R>(f: impl FnOnce(&[LocalData]) -> R) -> R {
    let data = AMBIENT_DATA.get();
    if data.is_null() {
        return f(&[]);
    }
    // SAFETY: not null, so this runs inside a `with_ambient_data` of this thread, which borrows
    // the slice until it has put the one before back.
    f(unsafe { &*data })
}

/// The address that the stack has reached.
#[inline(always)]
fn stack_address() -> usize {
    let marker = 0u8;
    std::ptr::from_ref(&marker) as usize
}

impl ThreadState {
    /// Enters one nesting level, which the frame ends; `None` where [`enter`](Self::enter) is
    /// needed: on the first call of a thread, where a limit is near, or where readers fence.
    #[inline(always)]
    pub(crate) fn enter_fast(&self) -> Option<Frame<'_>> {
        let slot = self.next_slot();
        if slot.is_slow(stack_address()) {
            return None;
        }
        Some(self.take(slot))
    }

    /// Enters one nesting level, which the frame ends.
    ///
    /// # Errors
    /// [`ErrorKind::Recursion`] when calls nest too deep or the stack is nearly used up.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter(&self) -> Result<Frame<'_>> {
        let slots = self.slots_or_start()?;
        let depth = self.depth();
        // Not with slots that were just taken: their margin is measured from here. So a thread after
        // its end, which gives slots back at the end of its outermost call, keeps none by failing.
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
        slots.pass_on();
        if slots.is_fenced() {
            // The frame's own announcement, which follows, has no fence.
            frame.slot.announce(false);
        }
        Ok(frame)
    }

    #[inline(always)]
    fn next_slot(&self) -> &Slot {
        // SAFETY: one of this thread's slots, their end included, which live until `leave` puts
        // the static one in their place.
        unsafe { &*self.next.get() }
    }

    #[inline(always)]
    fn take<'t>(&'t self, slot: &'t Slot) -> Frame<'t> {
        self.next.set(std::ptr::from_ref(slot).wrapping_add(1));
        Frame { state: self, slot }
    }

    /// The thread's slots, if it has some.
    fn slots(&self) -> Option<&Slots> {
        // SAFETY: null or given by the domain, which keeps them until `leave`.
        unsafe { self.slots.get().as_ref() }
    }

    /// The thread's slots, taken if it has none.
    fn slots_or_start(&self) -> Result<&Slots> {
        if let Some(slots) = self.slots() {
            return Ok(slots);
        }
        end::prepare_for_fork()?;
        // Where the size isn't known, depth alone is the limit.
        if let Some(left) = stacker::remaining_stack() {
            let margin = STACK_MARGIN.min(left / 2);
            self.margin.set(margin);
            self.margin_top.set(stack_address().saturating_sub(left) + margin);
        }
        let entry = match self.ending.notice(self) {
            true => Entry::FastAbove(self.margin_top.get()),
            // Nothing would give the slots back but the end of the outermost call.
            false => Entry::Attended,
        };
        let slots = Arc::as_ptr(&DOMAIN.join(barrier::is_asymmetric(), entry));
        self.slots.set(slots);
        // SAFETY: the domain keeps them until `leave`.
        let slots = unsafe { &*slots };
        self.next.set(slots.below(0).as_ptr());
        Ok(slots)
    }

    /// Gives the thread's slots back.
    fn leave(&self) {
        self.next.set(Slot::nobodys());
        let slots = self.slots.replace(std::ptr::null());
        if !slots.is_null() {
            DOMAIN.leave(slots);
        }
    }

    /// Gives slots back that a call took after the thread's end.
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

    /// Whether what the thread keeps is given back when it ends: asked before something is kept.
    pub(crate) fn notices_end(&self) -> bool {
        self.ending.notice(self)
    }

    fn is_stack_low(&self) -> bool {
        // Not a plain comparison: on another stack than the thread's own (a coroutine's),
        // addresses say nothing, and then they rarely fall into the margin.
        self.margin_top.get().wrapping_sub(stack_address()) < self.margin.get()
    }

    /// Keys that calls on this thread gain.
    #[inline(always)]
    pub(crate) fn include(&self) -> DispatchKeySet {
        self.include.get()
    }

    /// The other keys than those that calls on this thread lose.
    #[inline(always)]
    pub(crate) fn keep(&self) -> DispatchKeySet {
        self.keep.get()
    }

    /// Keys that calls on this thread lose.
    pub(crate) fn exclude(&self) -> DispatchKeySet {
        self.keep.get().complement()
    }

    /// Recomputes what applies, after a source changed.
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

    /// Keys of the layers that run now.
    pub(crate) fn layers(&self) -> DispatchKeySet {
        self.layers.get()
    }

    pub(crate) fn set_layers(&self, layers: DispatchKeySet) {
        self.layers.set(layers);
        self.refresh();
    }

    /// The tables (as addresses) and keys of the calls in progress, outermost first.
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

/// One nesting level of one call.
pub(crate) struct Frame<'t> {
    state: &'t ThreadState,
    slot: &'t Slot,
}

impl Frame<'_> {
    /// Reads a snapshot, which lives until the frame ends.
    #[inline(always)]
    pub(crate) fn protect<T>(&self, source: &crate::sync::AtomicPtr<T>) -> &T {
        // Without a fence: where one is needed, `enter` has announced, too, and fenced.
        let snapshot = self.slot.protect(source, true);
        // SAFETY: the sources here are never null, and what they held when they were read stays
        // valid until `release` in `drop`. The slot is this frame's alone: it isn't `Send` (it
        // borrows thread-local state), and `next` has moved on.
        unsafe { &*snapshot }
    }

    /// Says which snapshot and key this frame uses, and lets others be freed.
    #[inline(always)]
    pub(crate) fn hold<T>(&self, snapshot: &T, key: DispatchKey) {
        self.slot.hold(std::ptr::from_ref(snapshot), key.bit());
    }

    /// Ends the frame of a call that gives this result.
    ///
    /// As the frame's drop would, but for the code that follows from it: a result that fits into
    /// registers is handed through the rare case instead of being kept for it.
    #[inline(always)]
    pub(crate) fn end_with<R>(self, result: R) -> R {
        #[cold]
        #[inline(never)]
        fn attend_with<R>(result: R) -> R {
            attend();
            result
        }
        let frame = ManuallyDrop::new(self);
        frame.pop();
        let is_noted = frame.slot.is_noted();
        if is_noted { attend_with(result) } else { result }
    }

    /// Ends the frame for another one that takes the same slot at once, and looks at its end.
    #[inline(always)]
    pub(crate) fn hand_over(self) {
        ManuallyDrop::new(self).pop();
    }

    /// Ends the frame without a look whether somebody waits for its slot: for a caller that may
    /// hold locks, which the destructors of kernels must not run under.
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

impl Drop for Frame<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Snapshots borrowed from the frame ended before it.
        self.pop();
        if self.slot.is_noted() {
            attend();
        }
    }
}

/// A layer's key is excluded while this lives.
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
