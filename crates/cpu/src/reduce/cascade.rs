//! Combining blocks pairwise.
//!
//! Adding numbers one after the other makes an error that grows with their count; adding halves of
//! halves makes one that grows with its logarithm (N. Higham, "The accuracy of floating point
//! summation", 1993). Adding a block is like incrementing a binary number: bit `i` of the count says
//! whether a sum of `2^i` blocks waits for a partner of its size.

/// Blocks of one number each.
pub(crate) struct Cascade<A> {
    waiting: [A; LEVELS],
    count: u64,
    combine: fn(A, A) -> A,
}

/// No memory holds `2^LEVELS` blocks.
const LEVELS: usize = 48;

impl<A: Copy> Cascade<A> {
    #[inline]
    pub(crate) fn new(identity: A, combine: fn(A, A) -> A) -> Self {
        Cascade { waiting: [identity; LEVELS], count: 0, combine }
    }

    #[inline]
    pub(crate) fn push(&mut self, mut sum: A) {
        let level = self.count.trailing_ones() as usize;
        for &partner in &self.waiting[..level] {
            sum = (self.combine)(partner, sum);
        }
        self.waiting[level] = sum;
        self.count += 1;
    }

    /// All of them, if there are any.
    pub(crate) fn finish(&self) -> Option<A> {
        let mut all = None;
        for (level, &partial) in self.waiting.iter().enumerate() {
            if self.count >> level == 0 {
                break;
            }
            if self.count >> level & 1 == 1 {
                all = Some(all.map_or(partial, |all| (self.combine)(partial, all)));
            }
        }
        all
    }
}

/// Combines rows of `width` numbers, laid one after the other, pairwise into the first.
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
