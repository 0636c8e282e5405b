//! Pairwise combination of blocks.
//!
//! Adding numbers in order makes an error that grows with their count; adding them pairwise makes one
//! that grows with its logarithm (N. Higham, "The accuracy of floating point summation", 1993). Adding a
//! block is like incrementing a binary number: bit `i` of the count says whether a sum of `2^i` blocks
//! is pending.

/// Combines the first number with the second, which comes after it.
pub(crate) type Join<A> = fn(&mut A, &A);

/// A cascade of blocks that are a single number each.
pub(crate) struct Cascade<A> {
    waiting: [A; LEVELS],
    count: u64,
    combine: Join<A>,
}

/// More than the levels of any count that fits in memory.
const LEVELS: usize = 48;

impl<A: Copy> Cascade<A> {
    #[inline]
    pub(crate) fn new(identity: A, combine: Join<A>) -> Self {
        Cascade { waiting: [identity; LEVELS], count: 0, combine }
    }

    #[inline]
    pub(crate) fn push(&mut self, mut sum: A) {
        let level = self.count.trailing_ones() as usize;
        for &(mut partner) in &self.waiting[..level] {
            (self.combine)(&mut partner, &sum);
            sum = partner;
        }
        self.waiting[level] = sum;
        self.count += 1;
    }

    /// Combines all pending blocks; `None` if there are none.
    pub(crate) fn finish(&self) -> Option<A> {
        let mut all: Option<A> = None;
        for (level, &(mut partial)) in self.waiting.iter().enumerate() {
            if self.count >> level == 0 {
                break;
            }
            if self.count >> level & 1 == 1 {
                if let Some(all) = all {
                    (self.combine)(&mut partial, &all);
                }
                all = Some(partial);
            }
        }
        all
    }
}

/// Combines rows of `width` numbers, stored one after another, pairwise into the first row.
pub(crate) fn fold_rows<A: Copy>(rows: &mut [A], width: usize, combine: impl Fn(&mut [A], &[A])) {
    let count = rows.len() / width;
    let mut step = 1;
    while step < count {
        for at in (0..count - step).step_by(2 * step) {
            let (a, b) = rows.split_at_mut((at + step) * width);
            combine(&mut a[at * width..(at + 1) * width], &b[..width]);
        }
        step *= 2;
    }
}
