//! Which batches are open: one frame per `vmap` that runs, found through the local data of guards,
//! so that it follows a thread, or Python's context.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_dispatch::{DispatchKeySet, LocalGuard, include_keys_with, local_data};

/// One `vmap` that runs: its level (1 is outermost) and how many examples it has.
#[derive(Debug)]
pub struct Frame {
    level: usize,
    size: usize,
    outer: Option<Arc<Frame>>,
    ended: AtomicBool,
}

impl Frame {
    /// A frame inside those that are open here. It applies once it is among the local data.
    pub fn nested(size: usize) -> Arc<Frame> {
        let outer = innermost();
        let level = outer.as_ref().map_or(0, |frame| frame.level) + 1;
        Arc::new(Frame { level, size, outer, ended: AtomicBool::new(false) })
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
    pub(crate) fn new(size: usize) -> Self {
        let frame = Frame::nested(size);
        let _guard = include_keys_with(DispatchKeySet::EMPTY, Arc::clone(&frame) as _);
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

/// The open frame of that level.
pub(crate) fn at(level: usize) -> Option<Arc<Frame>> {
    let mut frame = innermost()?;
    while frame.level != level {
        frame = Arc::clone(frame.outer.as_ref()?);
    }
    Some(frame)
}

/// How deep `vmap` is nested here; 0 outside of it.
pub fn current_level() -> usize {
    innermost().map_or(0, |frame| frame.level)
}
