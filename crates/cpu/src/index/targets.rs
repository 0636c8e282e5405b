//! Sharing of writes among threads by their targets, so that each element's values arrive in order.

use std::ops::Range;

/// For fewer elements one thread is faster than several.
pub(super) const SERIAL_ELEMENTS: usize = 1 << 15;

/// Numbers that are kept before their values are stored.
const BLOCK: usize = 512;

/// The writes of one thread: those whose target is in its range.
pub(super) struct OwnTargets {
    range: Range<usize>,
    kept: [(usize, isize); BLOCK],
    count: usize,
}

impl OwnTargets {
    pub(super) fn new(range: Range<usize>) -> Self {
        OwnTargets { range, kept: [(0, 0); BLOCK], count: 0 }
    }

    /// Keeps a write if its target is in the range, and calls `f` with those kept once they are many. There is
    /// no branch, since a processor can't predict whose a random target is.
    #[inline(always)]
    pub(super) fn push(&mut self, number: usize, target: isize, f: impl FnMut(usize, isize)) {
        self.kept[self.count] = (number, target);
        let is_own = (target as usize).wrapping_sub(self.range.start) < self.range.len();
        self.count += usize::from(is_own);
        if self.count == BLOCK {
            self.flush(f);
        }
    }

    /// Calls `f` with the writes that are kept.
    #[inline(always)]
    pub(super) fn flush(&mut self, mut f: impl FnMut(usize, isize)) {
        let kept = std::mem::take(&mut self.count);
        self.kept[..kept].iter().for_each(|(number, target)| f(*number, *target));
    }
}

/// Returns the part of `0..count` of one of several threads.
pub(super) fn share(count: usize, part: usize, parts: usize) -> Range<usize> {
    let at = |part: usize| (count as u128 * part as u128 / parts as u128) as usize;
    at(part)..at(part + 1)
}
