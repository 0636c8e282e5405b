//! Sharing work out among threads.

use std::marker::PhantomData;
use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::pool::{Schedule, parallel_for};

/// Below so many elements one thread is faster than several.
const SERIAL: usize = 1 << 16;

/// Calls `f` with parts of `0..count` that are `grain` long, by several threads if there are enough
/// elements for it to pay.
pub(crate) fn for_parts(
    count: usize,
    grain: usize,
    elements: usize,
    f: impl Fn(Range<usize>) -> Result<()> + Sync,
) -> Result<()> {
    if elements < SERIAL || count <= grain {
        return f(0..count);
    }
    parallel_for(Schedule::Adaptive, 0..count, grain, f)
}

/// A slice that several threads write to, each at places of its own.
pub(crate) struct Shared<'a, A> {
    base: *mut A,
    len: usize,
    lent: PhantomData<&'a mut [A]>,
}

// SAFETY: writers promise to have places of their own.
unsafe impl<A: Send> Sync for Shared<'_, A> {}

impl<'a, A> Shared<'a, A> {
    pub(crate) fn new(slice: &'a mut [A]) -> Self {
        Shared { base: slice.as_mut_ptr(), len: slice.len(), lent: PhantomData }
    }

    /// # Safety
    /// No other thread uses this place at the same time.
    pub(crate) unsafe fn write(&self, at: usize, value: A) {
        assert!(at < self.len);
        // SAFETY: it is inside, and the caller's alone.
        unsafe { self.base.add(at).write(value) };
    }

    /// # Safety
    /// No other thread uses these places at the same time.
    #[allow(clippy::mut_from_ref, reason = "callers promise that the parts don't overlap")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [A] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: it is inside, and the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(range.start), range.len()) }
    }
}
