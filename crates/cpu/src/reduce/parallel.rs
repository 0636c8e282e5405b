//! Dividing work among threads.

use std::marker::PhantomData;
use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::pool::{Schedule, parallel_for};

/// For fewer elements one thread is faster than several.
const SERIAL_ELEMENTS: usize = 1 << 16;

/// Calls `f` with parts of `0..count` of length `grain`, on several threads if there are enough elements
/// for that to pay.
pub(crate) fn for_parts(
    count: usize,
    grain: usize,
    elements: usize,
    f: impl Fn(Range<usize>) -> Result<()> + Sync,
) -> Result<()> {
    if elements < SERIAL_ELEMENTS || count <= grain {
        return f(0..count);
    }
    parallel_for(Schedule::Adaptive, 0..count, grain, f)
}

/// A slice that several threads write to, each to its own elements.
pub(crate) struct DisjointSlice<'a, A> {
    base: *mut A,
    len: usize,
    lent: PhantomData<&'a mut [A]>,
}

// SAFETY: callers of the unsafe methods promise to access separate elements.
unsafe impl<A: Send> Sync for DisjointSlice<'_, A> {}

impl<'a, A> DisjointSlice<'a, A> {
    pub(crate) fn new(slice: &'a mut [A]) -> Self {
        DisjointSlice { base: slice.as_mut_ptr(), len: slice.len(), lent: PhantomData }
    }

    /// # Safety
    /// No other thread accesses this element at the same time.
    pub(crate) unsafe fn write(&self, at: usize, value: A) {
        assert!(at < self.len);
        // SAFETY: the element is inside, and the caller's alone.
        unsafe { self.base.add(at).write(value) };
    }

    /// # Safety
    /// No other thread accesses these elements at the same time.
    #[allow(clippy::mut_from_ref, reason = "callers promise that the parts don't overlap")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [A] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the elements are inside, and the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(range.start), range.len()) }
    }
}
