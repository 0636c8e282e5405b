//! Inclusive scans: each element becomes the sum, or what else an associative operation makes, of all up
//! to it.
//!
//! Threads work side by side, and still the result has the same bits for any number of them: floats are
//! summed within blocks of a fixed size, and the sums of blocks in order. Memory is read and written once.
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

/// Elements that are summed one after the other.
const BLOCK: usize = 1024;

/// Blocks that are summed side by side: an addition takes several cycles, and the next one of the same block
/// waits for it.
const TOGETHER: usize = 8;

const GROUP: usize = BLOCK * TOGETHER;

/// Groups that are worth another thread.
const WORTH: usize = 4;

/// Replaces each element by the sum of all up to it.
///
/// `widen` makes of an element what sums are kept in, `plus` adds two of those, the earlier one first, and
/// `narrow` makes an element of one. `plus` has to be associative, at least as nearly as the additions of
/// floats are.
///
/// # Errors
/// As [`parallel_for`]. A panic of one of the functions goes on in the caller; elements then are sums in part.
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
    let groups = Groups::new(items);
    let threads = num_threads()?.min(groups.sums.len() / WORTH).max(1);
    // No part waits for one that hasn't begun: groups are begun in order.
    parallel_for(Schedule::Uniform, 0..threads, 1, |parts| {
        parts.into_iter().for_each(|_| groups.work(&scan));
        Ok(())
    })
}

/// All elements, and what is known of groups of them.
struct Groups<T, S> {
    items: *mut T,
    len: usize,
    /// The sum of all elements up to the end of each group.
    sums: Box<[UnsafeCell<MaybeUninit<S>>]>,
    /// The next group to begin.
    next: AtomicUsize,
    /// How many groups have their sum, or [`FAILED`].
    known: AtomicUsize,
}

/// A function panicked.
const FAILED: usize = usize::MAX;

// SAFETY: each group's elements and sum are written by the one thread that began it; the sum is read once
// `known` says that it is there.
unsafe impl<T: Send, S: Send + Sync> Sync for Groups<T, S> {}

impl<T: Copy, S: Copy> Groups<T, S> {
    fn new(items: &mut [T]) -> Groups<T, S> {
        let empty = || UnsafeCell::new(MaybeUninit::uninit());
        Groups {
            items: items.as_mut_ptr(),
            len: items.len(),
            sums: (0..items.len().div_ceil(GROUP)).map(|_| empty()).collect(),
            next: AtomicUsize::new(0),
            known: AtomicUsize::new(0),
        }
    }

    /// Does groups until all are begun.
    fn work(&self, scan: &Scan<impl Fn(T) -> S, impl Fn(S, S) -> S, impl Fn(S) -> T>) {
        let mut watch = Watch { known: &self.known, done: false };
        loop {
            let group = self.next.fetch_add(1, Ordering::Relaxed);
            if group >= self.sums.len() {
                break;
            }
            let start = group * GROUP;
            let len = GROUP.min(self.len - start);
            // SAFETY: within the elements, and nobody else has this group.
            let items = unsafe { std::slice::from_raw_parts_mut(self.items.add(start), len) };
            let mut sums = Sums::of(scan, items);
            while self.known.load(Ordering::Acquire) < group {
                std::hint::spin_loop();
            }
            if self.known.load(Ordering::Relaxed) == FAILED {
                break;
            }
            // SAFETY: the group before is known, and this one's sum is this thread's to write.
            unsafe {
                let before = group.checked_sub(1).map(|at| (*self.sums[at].get()).assume_init());
                let sum = sums.begin(scan, before);
                (*self.sums[group].get()).write(sum);
            }
            // It is `group` still, unless a function panicked on another thread, which stays noted.
            let order = (Ordering::Release, Ordering::Relaxed);
            let _ = self.known.compare_exchange(group, group + 1, order.0, order.1);
            sums.spread(scan, items);
        }
        watch.done = true;
    }
}

/// Tells who waits that nothing comes any more, where a function panics.
struct Watch<'a> {
    known: &'a AtomicUsize,
    /// No function panicked.
    done: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.known.store(FAILED, Ordering::Release);
        }
    }
}

struct Scan<W, P, N> {
    widen: W,
    plus: P,
    narrow: N,
}

/// What comes before each block of a group, or is its sum.
struct Sums<S>([Option<S>; TOGETHER]);

impl<S: Copy> Sums<S> {
    /// The sum of each block.
    #[inline]
    #[expect(clippy::needless_range_loop, reason = "blocks are walked side by side")]
    fn of<T: Copy>(
        scan: &Scan<impl Fn(T) -> S, impl Fn(S, S) -> S, impl Fn(S) -> T>,
        items: &[T],
    ) -> Sums<S> {
        let (blocks, _) = items.as_chunks::<BLOCK>();
        if let Ok(blocks) = <&[[T; BLOCK]; TOGETHER]>::try_from(blocks) {
            let mut sums: [S; TOGETHER] = std::array::from_fn(|at| (scan.widen)(blocks[at][0]));
            for index in 1..BLOCK {
                for at in 0..TOGETHER {
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

    /// Makes of each block's sum the sum of what comes before it. Gives the sum of all.
    fn begin<T>(
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

    /// Writes the sums of all elements, from those of what comes before each block.
    #[inline]
    #[expect(clippy::needless_range_loop, reason = "blocks are walked side by side")]
    fn spread<T: Copy>(
        &self,
        scan: &Scan<impl Fn(T) -> S, impl Fn(S, S) -> S, impl Fn(S) -> T>,
        items: &mut [T],
    ) {
        let first = |before: Option<S>, item: T| {
            let own = (scan.widen)(item);
            before.map_or(own, |before| (scan.plus)(before, own))
        };
        let (blocks, _) = items.as_chunks_mut::<BLOCK>();
        if let Ok(blocks) = <&mut [[T; BLOCK]; TOGETHER]>::try_from(blocks) {
            let mut sums: [S; TOGETHER] =
                std::array::from_fn(|at| first(self.0[at], blocks[at][0]));
            for at in 0..TOGETHER {
                blocks[at][0] = (scan.narrow)(sums[at]);
            }
            for index in 1..BLOCK {
                for at in 0..TOGETHER {
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
