//! The open batches: one frame per running `vmap`. Frames are local data of guards, so that they
//! follow a thread, or Python's context.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_dispatch::{DispatchKey, DispatchKeySet, LocalGuard, include_keys_with, local_data};

/// The treatment of random numbers inside a `vmap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Randomness {
    /// Drawing is an error, since neither of the other two was chosen.
    #[default]
    Error,
    /// Each example draws its own numbers.
    Different,
    /// All examples share the same numbers.
    Same,
}

/// A running `vmap`: its level (1 is outermost), its number of examples, and its treatment of
/// random numbers.
#[derive(Debug)]
pub struct VmapFrame {
    level: usize,
    size: usize,
    randomness: Randomness,
    outer: Option<Arc<VmapFrame>>,
    ended: AtomicBool,
}

impl VmapFrame {
    /// Returns a frame inside the open ones here. It applies once it is local data.
    pub fn nested(size: usize, randomness: Randomness) -> Arc<VmapFrame> {
        let outer = innermost();
        let level = outer.as_ref().map_or(0, |frame| frame.level) + 1;
        Arc::new(VmapFrame { level, size, randomness, outer, ended: AtomicBool::new(false) })
    }

    /// Returns the keys of a guard that keeps a frame open. Calls without batched arguments must
    /// reach the layer too, since they may draw random numbers.
    pub fn keys() -> DispatchKeySet {
        DispatchKey::Vmap.into()
    }

    /// Returns the treatment of random numbers.
    pub fn randomness(&self) -> Randomness {
        self.randomness
    }

    /// Returns the nesting level, from 1.
    pub fn level(&self) -> usize {
        self.level
    }

    /// Returns the number of examples.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns whether its `vmap` has returned, which invalidates its examples.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Marks its `vmap` as returned.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

/// Keeps a frame open on this thread, and ends it when dropped.
pub(crate) struct OpenFrame {
    pub(crate) frame: Arc<VmapFrame>,
    _guard: LocalGuard,
}

impl OpenFrame {
    pub(crate) fn new(size: usize, randomness: Randomness) -> Self {
        let frame = VmapFrame::nested(size, randomness);
        let _guard = include_keys_with(VmapFrame::keys(), Arc::clone(&frame) as _);
        OpenFrame { frame, _guard }
    }
}

impl Drop for OpenFrame {
    fn drop(&mut self) {
        self.frame.end();
    }
}

/// Returns the innermost open frame here.
pub fn innermost() -> Option<Arc<VmapFrame>> {
    local_data::<VmapFrame>()
}

/// Iterates over the open frames here, innermost first.
pub(crate) fn open() -> impl Iterator<Item = Arc<VmapFrame>> {
    std::iter::successors(innermost(), |frame| frame.outer.clone())
}

/// Returns the open frame of that level.
pub(crate) fn at(level: usize) -> Option<Arc<VmapFrame>> {
    open().find(|frame| frame.level == level)
}

/// Returns the nesting level of `vmap` here; 0 outside of it.
pub fn current_level() -> usize {
    innermost().map_or(0, |frame| frame.level)
}
