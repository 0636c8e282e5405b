//! Which batches are open: one frame per `vmap` that runs, found through the local data of guards,
//! so that it follows a thread, or Python's context.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_dispatch::{DispatchKey, DispatchKeySet, LocalGuard, include_keys_with, local_data};

/// What random numbers are inside a `vmap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Randomness {
    /// Drawing is an error: nobody said which of the other two is meant.
    #[default]
    Error,
    /// Each example has its own numbers.
    Different,
    /// All examples have the same numbers.
    Same,
}

/// One `vmap` that runs: its level (1 is outermost), how many examples it has, and what random
/// numbers are in it.
#[derive(Debug)]
pub struct Frame {
    level: usize,
    size: usize,
    randomness: Randomness,
    outer: Option<Arc<Frame>>,
    ended: AtomicBool,
}

impl Frame {
    /// A frame inside those that are open here. It applies once it is among the local data.
    pub fn nested(size: usize, randomness: Randomness) -> Arc<Frame> {
        let outer = innermost();
        let level = outer.as_ref().map_or(0, |frame| frame.level) + 1;
        Arc::new(Frame { level, size, randomness, outer, ended: AtomicBool::new(false) })
    }

    /// The keys of a guard that keeps a frame open: calls that no example is part of reach the layer
    /// too, for they may draw random numbers.
    pub fn keys() -> DispatchKeySet {
        DispatchKey::Vmap.into()
    }

    /// What random numbers are in it.
    pub fn randomness(&self) -> Randomness {
        self.randomness
    }

    /// How deep it is nested, from 1.
    pub fn level(&self) -> usize {
        self.level
    }

    /// How many examples its batch has.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether its `vmap` has returned, so that nothing may use its examples any more.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Says that its `vmap` returns.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

/// Keeps a frame open on this thread, and ends it.
pub(crate) struct OpenFrame {
    pub(crate) frame: Arc<Frame>,
    _guard: LocalGuard,
}

impl OpenFrame {
    pub(crate) fn new(size: usize, randomness: Randomness) -> Self {
        let frame = Frame::nested(size, randomness);
        let _guard = include_keys_with(Frame::keys(), Arc::clone(&frame) as _);
        OpenFrame { frame, _guard }
    }
}

impl Drop for OpenFrame {
    fn drop(&mut self) {
        self.frame.end();
    }
}

/// The innermost frame that is open here.
pub fn innermost() -> Option<Arc<Frame>> {
    local_data::<Frame>()
}

/// The frames that are open here, innermost first.
pub(crate) fn open() -> impl Iterator<Item = Arc<Frame>> {
    std::iter::successors(innermost(), |frame| frame.outer.clone())
}

/// The open frame of that level.
pub(crate) fn at(level: usize) -> Option<Arc<Frame>> {
    open().find(|frame| frame.level == level)
}

/// How deep `vmap` is nested here; 0 outside of it.
pub fn current_level() -> usize {
    innermost().map_or(0, |frame| frame.level)
}
