//! A thread's registers, kept from call to call.

use std::cell::Cell;

/// A cache line, with its alignment.
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

/// The most bytes that a thread keeps; a larger scratch is freed after use.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// Calls `f` with `bytes` of memory, aligned to a cache line, and an empty list; nested calls get memory
/// of their own.
#[inline]
pub(super) fn with<R>(bytes: usize, f: impl FnOnce(*mut u8, &mut Vec<*mut u8>) -> R) -> R {
    // In a destructor of the thread that runs after this one's, nothing is kept.
    let kept = SCRATCH.try_with(Cell::take).ok().flatten();
    let mut scratch = kept.unwrap_or_default();
    let lines = bytes.div_ceil(64);
    if scratch.memory.len() < lines {
        scratch.memory.resize(lines, Line { _bytes: [0; 64] });
    }
    let memory = scratch.memory.as_mut_ptr().cast();
    let result = f(memory, &mut scratch.slots);
    if scratch.memory.len() * 64 <= MAX_KEPT_BYTES {
        let _ = SCRATCH.try_with(|kept| kept.set(Some(scratch)));
    }
    result
}
