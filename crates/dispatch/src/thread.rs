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
use crate::reclaim::{Domain, MAX_DEPTH, Slots};
use crate::sync::Arc;

/// The process's readers and retired tables, of all dispatchers.
#[cfg(not(loom))]
pub(crate) static DOMAIN: Domain = Domain::new();
#[cfg(loom)]
loom::lazy_static! {
    pub(crate) static ref DOMAIN: Domain = Domain::new();
}

/// Stack that must be left for the kernel that is entered.
const STACK_MARGIN: usize = 256 * 1024;

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
    slots: Cell<*const Slots>,
    depth: Cell<usize>,
    /// Depths below this one are reserved; 0 until the first call.
    reserved: Cell<usize>,
    asymmetric: Cell<bool>,
    /// Stack addresses in the `STACK_MARGIN` bytes below this one are too deep.
    stack_limit: Cell<usize>,
    /// What applies to calls: the unions of the sources below.
    effective: LocalSets,
    /// From open guards (see `local`).
    pub(crate) guards: LocalSets,
    /// From the host language's context (Python's contextvars).
    pub(crate) ambient: LocalSets,
    /// Keys of the layers that run now.
    layers: Cell<DispatchKeySet>,
}

thread_local! {
    static STATE: ThreadState = const {
        ThreadState {
            slots: Cell::new(std::ptr::null()),
            depth: Cell::new(0),
            reserved: Cell::new(0),
            asymmetric: Cell::new(false),
            stack_limit: Cell::new(0),
            effective: LocalSets::new(),
            guards: LocalSets::new(),
            ambient: LocalSets::new(),
            layers: Cell::new(DispatchKeySet::EMPTY),
        }
    };
    static OWNER: SlotsOwner = SlotsOwner(DOMAIN.join());
}

/// Gives the slots back when the thread ends.
struct SlotsOwner(Arc<Slots>);

impl Drop for SlotsOwner {
    fn drop(&mut self) {
        // Later destructors of this thread may still call operators: they start anew.
        let _ = STATE.try_with(|state| {
            state.slots.set(std::ptr::null());
            state.reserved.set(0);
        });
        DOMAIN.leave(&self.0);
    }
}

/// Runs `f` with the calling thread's state.
#[inline(always)]
pub(crate) fn with<R>(f: impl FnOnce(&ThreadState) -> R) -> R {
    STATE.with(f)
}

impl ThreadState {
    /// Enters one nesting level; the frame ends it.
    ///
    /// # Errors
    /// [`ErrorKind::Recursion`] when calls nest too deep or the stack is nearly used up.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Result<Frame<'_>> {
        let depth = self.depth.get();
        if depth >= self.reserved.get() || self.is_stack_low() {
            self.make_room(depth)?;
        }
        self.depth.set(depth + 1);
        // SAFETY: not null, since `reserved` is above `depth`, which only `make_room` brings
        // about, having set the pointer; the slots live as long as the process's domain.
        let slots = unsafe { &*self.slots.get() };
        Ok(Frame { state: self, slots, depth })
    }

    #[inline(always)]
    fn is_stack_low(&self) -> bool {
        let marker = 0u8;
        let here = std::ptr::from_ref(&marker) as usize;
        // Not a plain comparison: on another stack than the thread's own (a coroutine's),
        // addresses say nothing, and then they rarely fall into the margin.
        self.stack_limit.get().wrapping_sub(here) < STACK_MARGIN / 2
    }

    #[cold]
    #[inline(never)]
    fn make_room(&self, depth: usize) -> Result<()> {
        if self.slots.get().is_null() {
            // After the thread's destructors ran there is no owner; such slots stay taken.
            let slots =
                OWNER.try_with(|owner| Arc::clone(&owner.0)).unwrap_or_else(|_| DOMAIN.join());
            self.slots.set(Arc::as_ptr(&slots));
            self.asymmetric.set(barrier::is_asymmetric());
            let marker = 0u8;
            let here = std::ptr::from_ref(&marker) as usize;
            let left = stacker::remaining_stack().unwrap_or(usize::MAX);
            // Where the size isn't known, or the stack is tiny, depth alone is the limit.
            let limit =
                if left > 2 * STACK_MARGIN && left < here { here - left + STACK_MARGIN } else { 0 };
            self.stack_limit.set(limit);
        }
        if depth >= MAX_DEPTH || self.is_stack_low() {
            return Err(Error::new(
                ErrorKind::Recursion,
                format!(
                    "operator calls nest {depth} deep on this thread and the limit is near \
                     ({MAX_DEPTH} calls, or the end of the stack); does a kernel call its own \
                     operator, or redispatch without removing its key?"
                ),
            ));
        }
        let reserved = (depth + 16).min(MAX_DEPTH).max(self.reserved.get());
        // SAFETY: set above or on an earlier call; the domain keeps slots for ever.
        unsafe { &*self.slots.get() }.reserve(reserved);
        self.reserved.set(reserved);
        Ok(())
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
        (0..self.depth.get())
            .filter_map(|depth| slots.held(depth))
            .map(|(pointer, bit)| (pointer, DispatchKey::from_bit(bit)))
            .collect()
    }
}

/// One nesting level of one call.
pub(crate) struct Frame<'t> {
    pub(crate) state: &'t ThreadState,
    slots: &'t Slots,
    depth: usize,
}

impl Frame<'_> {
    /// Reads a snapshot, which lives until the frame ends.
    #[inline(always)]
    pub(crate) fn protect<T>(&self, source: &crate::sync::AtomicPtr<T>) -> &T {
        // SAFETY: `enter` reserved this depth, and the frame is the only one at it on this
        // thread (it isn't `Send`: it borrows thread-local state). The pointer is never null,
        // and stays valid until `release` in `drop`.
        unsafe { &*self.slots.protect(self.depth, source, self.state.asymmetric.get()) }
    }

    /// Says which snapshot and key this frame uses, and lets others be freed.
    #[inline(always)]
    pub(crate) fn hold<T>(&self, snapshot: &T, key: DispatchKey) {
        // SAFETY: as in `protect`, which the snapshot came from.
        unsafe { self.slots.hold(self.depth, std::ptr::from_ref(snapshot), key.bit()) };
    }
}

impl Drop for Frame<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as in `protect`; snapshots borrowed from the frame ended before it.
        unsafe { self.slots.release(self.depth) };
        self.state.depth.set(self.depth);
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
