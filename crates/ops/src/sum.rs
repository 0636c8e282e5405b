//! Pairwise summation.
//!
//! Adding numbers one after the other makes an error that grows with their count; adding halves of
//! halves makes one that grows with its logarithm (N. Higham, "The accuracy of floating point
//! summation", 1993). As in NumPy, blocks of up to 128 are added directly, in eight independent
//! sums, which is exact enough and as fast as memory.

use crate::element::Number;
use crate::lanes::{Lane, LaneRun};

/// Elements that are added directly.
const BLOCK: usize = 128;

/// Independent sums within a block.
const WAYS: usize = 8;

/// Adds a lane's elements pairwise.
pub(crate) fn pairwise<T: Number>(lane: Lane<'_, T>) -> T {
    let mut sum = Cascade::new();
    lane.runs(|run| sum.add_run(&run));
    sum.finish()
}

/// Block sums waiting for a partner of their size: bit `i` of the count says whether there is one
/// of `2^i` blocks. Adding a block is like incrementing a binary number.
struct Cascade<T> {
    waiting: [T; 64],
    count: u64,
}

impl<T: Number> Cascade<T> {
    fn new() -> Self {
        Cascade { waiting: [T::ZERO; 64], count: 0 }
    }

    #[inline]
    fn push(&mut self, mut sum: T) {
        let level = self.count.trailing_ones() as usize;
        for &partner in &self.waiting[..level] {
            sum = partner.add(sum);
        }
        self.waiting[level] = sum;
        self.count += 1;
    }

    fn add_run(&mut self, run: &LaneRun<'_, T>) {
        if let Some(dense) = run.dense() {
            dense.chunks(BLOCK).for_each(|block| self.push(block_sum(block)));
            return;
        }
        let (mut sum, mut count) = (T::NEUTRAL, 0);
        run.for_each(|x| {
            sum = sum.add(x);
            count += 1;
            if count == BLOCK {
                self.push(sum);
                (sum, count) = (T::NEUTRAL, 0);
            }
        });
        if count > 0 {
            self.push(sum);
        }
    }

    fn finish(self) -> T {
        let mut sum = None;
        for (level, &partial) in self.waiting.iter().enumerate() {
            if self.count >> level & 1 == 1 {
                sum = Some(sum.map_or(partial, |sum| partial.add(sum)));
            }
        }
        sum.unwrap_or(T::ZERO)
    }
}

#[inline]
fn block_sum<T: Number>(block: &[T::Stored]) -> T {
    let mut chunks = block.chunks_exact(WAYS);
    let mut sums = [T::NEUTRAL; WAYS];
    for chunk in &mut chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum = sum.add(T::load(*x));
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let sum = a.add(b).add(c.add(d)).add(e.add(f).add(g.add(h)));
    chunks.remainder().iter().fold(sum, |sum, x| sum.add(T::load(*x)))
}
