//! A thread's registers, kept from call to call.

use std::cell::Cell;

/// 64 bytes, aligned like a line of the cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

/// Memory for registers, and the list of pointers to them.
#[derive(Default)]
pub(super) struct Scratch {
    memory: Vec<Line>,
    pub(super) slots: Vec<*mut u8>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// What is kept at most; larger ones are freed after use.
const KEEP: usize = 4 << 20;

impl Scratch {
    /// At least so many bytes.
    #[inline]
    pub(super) fn memory(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(64);
        if self.memory.len() < lines {
            self.memory.resize(lines, Line([0; 64]));
        }
        self.memory.as_mut_ptr().cast()
    }
}

/// Calls `f` with the thread's scratch; nested calls get one of their own.
#[inline]
pub(super) fn with<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let result = f(&mut scratch);
    if scratch.memory.len() * 64 <= KEEP {
        SCRATCH.set(Some(scratch));
    }
    result
}
