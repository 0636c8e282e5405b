//! A thread's registers, kept from call to call.

use std::cell::Cell;

/// A line of the cache, and aligned like one.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

/// Memory for registers, and the list of pointers to them.
#[derive(Default)]
struct Scratch {
    memory: Vec<Line>,
    slots: Vec<*mut u8>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// What is kept at most; larger ones are freed after use.
const KEEP: usize = 4 << 20;

/// Calls `f` with so many bytes, aligned to a line of the cache, and an empty list; nested calls get
/// others.
#[inline]
pub(super) fn with<R>(bytes: usize, f: impl FnOnce(*mut u8, &mut Vec<*mut u8>) -> R) -> R {
    // A thread's last destructors come after this one's, and do without what is kept.
    let kept = SCRATCH.try_with(Cell::take).ok().flatten();
    let mut scratch = kept.unwrap_or_default();
    let lines = bytes.div_ceil(64);
    if scratch.memory.len() < lines {
        scratch.memory.resize(lines, Line { _bytes: [0; 64] });
    }
    let memory = scratch.memory.as_mut_ptr().cast();
    let result = f(memory, &mut scratch.slots);
    if scratch.memory.len() * 64 <= KEEP {
        let _ = SCRATCH.try_with(|kept| kept.set(Some(scratch)));
    }
    result
}
