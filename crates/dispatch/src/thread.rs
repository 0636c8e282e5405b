//! What a thread knows while it calls: nesting depth, slots, local key sets.
//!
//! One block of cells in thread-local storage without a destructor, so that
//! reaching it costs one address computation. A second thread-local, touched
//! once, gives the slots back when the thread ends.

use std::cell::Cell;

use keyfold_core::{Error, ErrorKind, Result};

use crate::barrier;
use crate::key::DispatchKey;
use crate::keyset::DispatchKeySet;
use crate::local::LocalData;
use crate::reclaim::{Domain, MAX_DEPTH, Slot, Slots};
use crate::sync::Arc;

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
    /// The slot that the next call takes: its distance from the first is the nesting depth.
    next: Cell<*const Slot>,
    /// The end of the reserved slots. Null, as `next` is, until the first call.
    end: Cell<*const Slot>,
    /// Calls that find the stack below this address take the slow way in.
    slow_below: Cell<usize>,
    /// What applies to calls: the unions of the sources below.
    effective: LocalSets,
    /// Keys of the layers that run now.
    layers: Cell<DispatchKeySet>,
    /// From open guards (see `local`).
    pub(crate) guards: LocalSets,
    /// From the host language's context (Python's contextvars).
    pub(crate) ambient: LocalSets,
    slots: Cell<*const Slots>,
    first: Cell<*const Slot>,
    /// Whether the thread's announcements need no fence (see `barrier`).
    asymmetric: Cell<bool>,
    /// Stack addresses in the `margin` bytes below `margin_top` are too deep.
    margin_top: Cell<usize>,
    margin: Cell<usize>,
}

thread_local! {
    static STATE: ThreadState = const {
        ThreadState {
            next: Cell::new(std::ptr::null()),
            end: Cell::new(std::ptr::null()),
            slow_below: Cell::new(0),
            effective: LocalSets::new(),
            layers: Cell::new(DispatchKeySet::EMPTY),
            guards: LocalSets::new(),
            ambient: LocalSets::new(),
            slots: Cell::new(std::ptr::null()),
            first: Cell::new(std::ptr::null()),
            asymmetric: Cell::new(false),
            margin_top: Cell::new(0),
            margin: Cell::new(0),
        }
    };
    static OWNER: SlotsOwner = SlotsOwner(DOMAIN.join());
}

// A destructor would make `STATE` unusable in the destructors of other thread-locals, and `with`
// unsound.
const _: () = assert!(!std::mem::needs_drop::<ThreadState>());

/// Gives the slots back when the thread ends.
struct SlotsOwner(Arc<Slots>);

impl Drop for SlotsOwner {
    fn drop(&mut self) {
        // Later destructors of this thread may still call operators: they start anew.
        let _ = STATE.try_with(|state| {
            state.slots.set(std::ptr::null());
            state.next.set(std::ptr::null());
            state.end.set(std::ptr::null());
        });
        DOMAIN.leave(&self.0);
    }
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
    /// needed: on the first call of a thread, or where a limit is near.
    #[inline(always)]
    pub(crate) fn enter_fast(&self) -> Option<Frame<'_>> {
        let slot = self.next.get();
        if slot >= self.end.get() || stack_address() < self.slow_below.get() {
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
        if self.slots.get().is_null() {
            self.start();
        }
        let depth = self.depth();
        if depth >= MAX_DEPTH || self.is_stack_low() {
            return Err(Error::new(
                ErrorKind::Recursion,
                format!(
                    "operator calls nest {depth} deep on this thread and the limit is near \
                     ({MAX_DEPTH} calls, or the end of the stack)"
                ),
            ));
        }
        if self.next.get() >= self.end.get() {
            // SAFETY: `start` set the pointer; the domain keeps slots for ever.
            let slots = unsafe { &*self.slots.get() };
            let reserved = slots.reserve((depth + RESERVED_AT_ONCE).min(MAX_DEPTH));
            self.end.set(reserved.as_ptr_range().end);
        }
        let frame = self.take(self.next.get());
        if !self.asymmetric.get() {
            // The frame's own announcement, which follows, has no fence.
            frame.slot.announce(false);
        }
        Ok(frame)
    }

    #[inline(always)]
    fn take(&self, slot: *const Slot) -> Frame<'_> {
        self.next.set(slot.wrapping_add(1));
        // SAFETY: the callers saw that it is below `end`, so it is one of this thread's reserved
        // slots, which live as long as the process's domain.
        Frame { state: self, slot: unsafe { &*slot } }
    }

    /// The thread's first call: takes slots and looks where the stack ends.
    fn start(&self) {
        // After the thread's destructors ran there is no owner; such slots stay taken.
        let slots = OWNER.try_with(|owner| Arc::clone(&owner.0)).unwrap_or_else(|_| DOMAIN.join());
        let first = slots.reserve(0).as_ptr();
        self.first.set(first);
        self.next.set(first);
        self.end.set(first);
        self.slots.set(Arc::as_ptr(&slots));
        self.asymmetric.set(barrier::is_asymmetric());
        // Where the size isn't known, depth alone is the limit.
        if let Some(left) = stacker::remaining_stack() {
            let margin = STACK_MARGIN.min(left / 2);
            self.margin.set(margin);
            self.margin_top.set(stack_address().saturating_sub(left) + margin);
        }
        // The slow way in fences.
        let always = !self.asymmetric.get();
        self.slow_below.set(if always { usize::MAX } else { self.margin_top.get() });
    }

    fn depth(&self) -> usize {
        let distance = self.next.get() as usize - self.first.get() as usize;
        distance / size_of::<Slot>()
    }

    fn is_stack_low(&self) -> bool {
        // Not a plain comparison: on another stack than the thread's own (a coroutine's),
        // addresses say nothing, and then they rarely fall into the margin.
        self.margin_top.get().wrapping_sub(stack_address()) < self.margin.get()
    }

    /// Keys that calls on this thread gain.
    #[inline(always)]
    pub(crate) fn include(&self) -> DispatchKeySet {
        self.effective.include.get()
    }

    /// Keys that calls on this thread lose.
    #[inline(always)]
    pub(crate) fn exclude(&self) -> DispatchKeySet {
        self.effective.exclude.get()
    }

    /// Recomputes what applies, after a source changed.
    pub(crate) fn refresh(&self) {
        self.effective.include.set(self.guards.include.get() | self.ambient.include.get());
        self.effective
            .exclude
            .set(self.guards.exclude.get() | self.ambient.exclude.get() | self.layers.get());
    }

    /// Excludes a layer's key from calls until the guard is dropped.
    #[inline]
    pub(crate) fn run_layer(&self, key: DispatchKey) -> LayerGuard<'_> {
        let before = self.layers.get();
        self.layers.set(before.insert(key));
        self.effective.exclude.set(self.effective.exclude.get().insert(key));
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
        if self.slots.get().is_null() {
            return Vec::new();
        }
        // SAFETY: not null, and the domain keeps slots for ever.
        let slots = unsafe { &*self.slots.get() };
        slots
            .reserve(self.depth())
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
}

impl Drop for Frame<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Snapshots borrowed from the frame ended before it.
        self.slot.release();
        self.state.next.set(self.slot);
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
