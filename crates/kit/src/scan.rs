//! Inclusive scans: each element becomes the sum, or another associative reduction, of all elements up
//! to it.
//!
//! The result has the same bits for any number of threads: floats are summed within blocks of a fixed
//! size, and the blocks' sums in order. Memory is read and written once.
//!
//! ```
//! use keyfold_kit::scan::inclusive_scan;
//!
//! let mut counts = [3_u32, 1, 4, 1, 5];
//! inclusive_scan(&mut counts, |x| x, u32::wrapping_add, |sum| sum)?;
//! assert_eq!(counts, [3, 4, 8, 9, 14]);
//!
//! // float16 summed in float32, each sum rounded once.
//! use keyfold_core::f16;
//! let mut ones = vec![f16::ONE; 4096];
//! inclusive_scan(&mut ones, f16::to_f32, |a, b| a + b, f16::from_f32)?;
//! assert_eq!(ones[4095].to_f32(), 4096.0);
//! # Ok::<(), keyfold_core::Error>(())
//! ```

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_core::Result;

use crate::pool::{Schedule, num_threads, parallel_for};

/// Elements of a block, which are summed in order.
const BLOCK: usize = 1024;

/// Blocks of a group, which are summed in interleaved order: an addition takes several cycles, and the
/// next addition of the same block waits for it.
const INTERLEAVED: usize = 8;

const GROUP: usize = BLOCK * INTERLEAVED;

/// Groups per thread, at least, for a thread to be worth its cost.
const MIN_GROUPS: usize = 4;

/// Replaces each element by the sum of all up to it.
///
/// `widen` converts an element to the type of the sums, `plus` adds two sums, the earlier one first, and
/// `narrow` converts a sum to an element. `plus` has to be associative, at least as nearly as float
/// addition is.
///
/// # Errors
/// As [`parallel_for`]. A panic of one of the functions is resumed in the caller; the elements are then
/// partly sums.
pub fn inclusive_scan<T, S>(
    items: &mut [T],
    widen: impl Fn(T) -> S + Sync,
    plus: impl Fn(S, S) -> S + Sync,
    narrow: impl Fn(S) -> T + Sync,
) -> Result<()>
where
    T: Copy + Send,
    S: Copy + Send + Sync,
{
    let scan = Scan { widen, plus, narrow };
    let all = Items { base: items.as_mut_ptr(), len: items.len() };
    chained_groups(
        all.len.div_ceil(GROUP),
        // SAFETY: each group is one thread's.
        |group| Sums::of(&scan, unsafe { all.group(group) }),
        |sums, before| sums.replace_by_sums_before(&scan, before),
        // SAFETY: as above.
        |group, sums| sums.write_sums(&scan, unsafe { all.group(group) }),
    )
}

/// The elements of all groups.
struct Items<T> {
    base: *mut T,
    len: usize,
}

// SAFETY: each group's elements are used by the one thread that began it.
unsafe impl<T: Send> Sync for Items<T> {}

impl<T> Items<T> {
    /// Returns the elements of a group.
    ///
    /// # Safety
    /// Nothing else uses that group's elements meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the elements are those of a slice that was lent")]
    unsafe fn group(&self, group: usize) -> &mut [T] {
        let start = group * GROUP;
        // SAFETY: within the elements, and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), GROUP.min(self.len - start)) }
    }
}

/// Scans groups of elements on several threads, where each group needs the sum of all groups before it.
///
/// `begin` reads a group and returns its state. `carry` gets the state and the sum of the groups before
/// (`None` for the first) and returns the sum with this group's; these calls are in the groups' order, and
/// other threads wait for them. `finish` writes the group's results. All three are called once for each
/// group, on one thread, so that the group's memory is still in its cache.
///
/// # Errors
/// As [`parallel_for`]. A panic of one of the functions is resumed in the caller; groups are then left out.
pub fn chained_groups<L, S: Copy + Send + Sync>(
    groups: usize,
    begin: impl Fn(usize) -> L + Sync,
    carry: impl Fn(&mut L, Option<S>) -> S + Sync,
    finish: impl Fn(usize, L) + Sync,
) -> Result<()> {
    let chain = Chain::new(groups);
    let threads = num_threads()?.min(groups / MIN_GROUPS).max(1);
    // No part waits for a group that hasn't begun: groups are begun in order.
    parallel_for(Schedule::Uniform, 0..threads, 1, |parts| {
        parts.into_iter().for_each(|_| chain.work(&begin, &carry, &finish));
        Ok(())
    })
}

/// The progress of groups.
struct Chain<S> {
    /// The sum of all elements up to the end of each group.
    sums: Box<[UnsafeCell<MaybeUninit<S>>]>,
    /// The next group to begin.
    next: AtomicUsize,
    /// The number of groups whose sum is known, or [`FAILED`].
    summed: AtomicUsize,
}

/// The state after a function panicked.
const FAILED: usize = usize::MAX;

// SAFETY: each sum is written by the one thread that began its group; it is read only after `summed`
// counts it.
unsafe impl<S: Send + Sync> Sync for Chain<S> {}

impl<S: Copy> Chain<S> {
    fn new(groups: usize) -> Chain<S> {
        let empty = || UnsafeCell::new(MaybeUninit::uninit());
        Chain {
            sums: (0..groups).map(|_| empty()).collect(),
            next: AtomicUsize::new(0),
            summed: AtomicUsize::new(0),
        }
    }

    /// Runs groups until all are begun.
    fn work<L>(
        &self,
        begin: impl Fn(usize) -> L,
        carry: impl Fn(&mut L, Option<S>) -> S,
        finish: impl Fn(usize, L),
    ) {
        let mut guard = FailureGuard { summed: &self.summed, done: false };
        loop {
            let group = self.next.fetch_add(1, Ordering::Relaxed);
            if group >= self.sums.len() {
                break;
            }
            let mut state = begin(group);
            while self.summed.load(Ordering::Acquire) < group {
                std::hint::spin_loop();
            }
            if self.summed.load(Ordering::Relaxed) == FAILED {
                break;
            }
            // SAFETY: the previous group's sum is known, and this one's sum is this thread's to write.
            unsafe {
                let before = group.checked_sub(1).map(|at| (*self.sums[at].get()).assume_init());
                let sum = carry(&mut state, before);
                (*self.sums[group].get()).write(sum);
            }
            // `summed` is still `group`, unless a function panicked on another thread; then it stays
            // [`FAILED`].
            let order = (Ordering::Release, Ordering::Relaxed);
            let _ = self.summed.compare_exchange(group, group + 1, order.0, order.1);
            finish(group, state);
        }
        guard.done = true;
    }
}

/// Tells waiting threads that no more sums will come, if a function panics.
struct FailureGuard<'a> {
    summed: &'a AtomicUsize,
    /// Whether all of this thread's groups are done.
    done: bool,
}

impl Drop for FailureGuard<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.summed.store(FAILED, Ordering::Release);
        }
    }
}

struct Scan<W, P, N> {
    widen: W,
    plus: P,
    narrow: N,
}

/// For each block of a group its sum, and after [`Sums::replace_by_sums_before`] the sum of all elements before it.
struct Sums<S>([Option<S>; INTERLEAVED]);

impl<S: Copy> Sums<S> {
    /// Computes the sum of each block.
    #[inline]
    #[expect(clippy::needless_range_loop, reason = "blocks are walked side by side")]
    fn of<T: Copy>(
        scan: &Scan<impl Fn(T) -> S, impl Fn(S, S) -> S, impl Fn(S) -> T>,
        items: &[T],
    ) -> Sums<S> {
        let (blocks, _) = items.as_chunks::<BLOCK>();
        if let Ok(blocks) = <&[[T; BLOCK]; INTERLEAVED]>::try_from(blocks) {
            let mut sums: [S; INTERLEAVED] = std::array::from_fn(|at| (scan.widen)(blocks[at][0]));
            for index in 1..BLOCK {
                for at in 0..INTERLEAVED {
                    sums[at] = (scan.plus)(sums[at], (scan.widen)(blocks[at][index]));
                }
            }
            return Sums(sums.map(Some));
        }
        let mut blocks = items.chunks(BLOCK);
        Sums(std::array::from_fn(|_| {
            blocks.next()?.iter().map(|item| (scan.widen)(*item)).reduce(&scan.plus)
        }))
    }

    /// Replaces each block's sum by the sum of all elements before it, and returns the sum of all.
    fn replace_by_sums_before<T>(
        &mut self,
        scan: &Scan<impl Fn(T) -> S, impl Fn(S, S) -> S, impl Fn(S) -> T>,
        mut before: Option<S>,
    ) -> S {
        for sum in &mut self.0 {
            let Some(own) = *sum else { break };
            let all = before.map_or(own, |before| (scan.plus)(before, own));
            *sum = before;
            before = Some(all);
        }
        before.expect("a group has an element")
    }

    /// Writes the sums of all elements, from the sums before each block.
    #[inline]
    #[expect(clippy::needless_range_loop, reason = "blocks are walked side by side")]
    fn write_sums<T: Copy>(
        &self,
        scan: &Scan<impl Fn(T) -> S, impl Fn(S, S) -> S, impl Fn(S) -> T>,
        items: &mut [T],
    ) {
        let first = |before: Option<S>, item: T| {
            let own = (scan.widen)(item);
            before.map_or(own, |before| (scan.plus)(before, own))
        };
        let (blocks, _) = items.as_chunks_mut::<BLOCK>();
        if let Ok(blocks) = <&mut [[T; BLOCK]; INTERLEAVED]>::try_from(blocks) {
            let mut sums: [S; INTERLEAVED] =
                std::array::from_fn(|at| first(self.0[at], blocks[at][0]));
            for at in 0..INTERLEAVED {
                blocks[at][0] = (scan.narrow)(sums[at]);
            }
            for index in 1..BLOCK {
                for at in 0..INTERLEAVED {
                    sums[at] = (scan.plus)(sums[at], (scan.widen)(blocks[at][index]));
                    blocks[at][index] = (scan.narrow)(sums[at]);
                }
            }
            return;
        }
        for (before, block) in self.0.iter().zip(items.chunks_mut(BLOCK)) {
            let mut sum = *before;
            for item in block {
                let next = first(sum, *item);
                *item = (scan.narrow)(next);
                sum = Some(next);
            }
        }
    }
}
