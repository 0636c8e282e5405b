//! The loop planner for several strided operands: order, direction and merging of dimensions.

use std::cmp::Reverse;

use smallvec::SmallVec;

/// Nested loops over several operands, outermost first, with the step of each operand along each
/// dimension. The unit of steps is the caller's, elements or bytes, and may differ between
/// operands.
///
/// All walks in keyfold plan their loops here: dimensions of size 1 are left out; if the order of
/// elements doesn't matter, a leading operand is walked at ascending addresses ([`Loops::ascend`])
/// with its smallest steps innermost ([`Loops::sort_by_key`]); dimensions that all operands step
/// through evenly are merged ([`Loops::merge`]).
///
/// ```
/// use keyfold_tensor::Loops;
///
/// // Two operands of shape (4, 3): the first is transposed, the second flipped along both.
/// let mut loops = Loops::new(2);
/// loops.push(4, [1, -3]);
/// loops.push(3, [4, -1]);
/// let mut start = [0, 0];
/// loops.ascend(1, &mut start);
/// assert_eq!(start, [3 + 8, -9 - 2]);
/// loops.sort_by_key(|steps| steps[1].unsigned_abs());
/// assert_eq!((loops.sizes(), loops.row(0), loops.row(1)), (&[4, 3][..], &[-1, 3][..], &[-4, 1][..]));
///
/// let mut dense = Loops::new(2);
/// dense.push(4, [3, 30]);
/// dense.push(3, [1, 10]);
/// dense.merge(|_, _| true);
/// assert_eq!((dense.sizes(), dense.row(0)), (&[12][..], &[1, 10][..]));
/// ```
#[derive(Clone, Debug)]
pub struct Loops {
    operands: usize,
    sizes: SmallVec<[usize; 6]>,
    /// The steps of all operands along the first dimension, then along the second, ...
    steps: SmallVec<[isize; 24]>,
    /// The number of each pushed dimension; of a merged one, the innermost's.
    numbers: SmallVec<[u8; 8]>,
    pushed: u8,
}

impl Loops {
    /// Returns loops without dimensions.
    #[inline]
    pub fn new(operands: usize) -> Self {
        let (sizes, steps, numbers) = (SmallVec::new(), SmallVec::new(), SmallVec::new());
        Loops { operands, sizes, steps, numbers, pushed: 0 }
    }

    /// Adds an innermost dimension, with the step of each operand. One of size 1 is left out.
    #[inline]
    pub fn push(&mut self, size: usize, steps: impl IntoIterator<Item = isize>) {
        if size == 1 {
            self.pushed += 1;
        } else {
            self.push_sized(size, steps);
        }
    }

    /// Adds an innermost dimension of size 1, for walks that need at least one.
    pub fn push_one(&mut self, steps: impl IntoIterator<Item = isize>) {
        self.push_sized(1, steps);
    }

    fn push_sized(&mut self, size: usize, steps: impl IntoIterator<Item = isize>) {
        self.sizes.push(size);
        self.steps.extend(steps);
        self.numbers.push(self.pushed);
        self.pushed += 1;
        debug_assert_eq!(self.steps.len(), self.sizes.len() * self.operands);
    }

    /// Returns the sizes.
    #[inline]
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the steps of all operands along a dimension.
    #[inline]
    pub fn row(&self, dim: usize) -> &[isize] {
        &self.steps[dim * self.operands..(dim + 1) * self.operands]
    }

    /// Returns the number of a dimension among the pushed ones, including those of size 1; of a
    /// merged dimension, that of the innermost.
    #[inline]
    pub fn number(&self, dim: usize) -> usize {
        self.numbers[dim].into()
    }

    /// Reverses each dimension along which the operand `lead` has a negative step, for all
    /// operands. `start` holds each operand's first offset and is updated.
    #[inline]
    pub fn ascend(&mut self, lead: usize, start: &mut [isize]) {
        for (size, steps) in self.sizes.iter().zip(self.steps.chunks_exact_mut(self.operands)) {
            if steps[lead] >= 0 || *size == 0 {
                continue;
            }
            for (start, step) in start.iter_mut().zip(steps) {
                // The last element of the dimension becomes the first.
                *start = start.wrapping_add(*step * (*size as isize - 1));
                *step = -*step;
            }
        }
    }

    /// Sorts dimensions by a key of their steps, the greatest outermost. The sort is stable.
    #[inline]
    pub fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&[isize]) -> K) {
        let sorted = (1..self.sizes.len()).all(|d| key(self.row(d - 1)) >= key(self.row(d)));
        if sorted {
            return;
        }
        let mut order: SmallVec<[usize; 8]> = (0..self.sizes.len()).collect();
        order.sort_by_key(|&dim| Reverse(key(self.row(dim))));
        self.take(&order);
    }

    /// Keeps these dimensions, in this order.
    pub fn take(&mut self, order: &[usize]) {
        let (sizes, steps, numbers) = (&self.sizes, &self.steps, &self.numbers);
        let count = self.operands;
        let row = |dim: &usize| steps[dim * count..(dim + 1) * count].iter().copied();
        let taken = order.iter().flat_map(row).collect();
        let numbers = order.iter().map(|dim| numbers[*dim]).collect();
        self.sizes = order.iter().map(|dim| sizes[*dim]).collect();
        (self.steps, self.numbers) = (taken, numbers);
    }

    /// Merges neighbouring dimensions if each operand's outer step equals its inner step times the
    /// inner size, and `may`, called with the dimensions' numbers, allows it.
    #[inline]
    pub fn merge(&mut self, may: impl Fn(usize, usize) -> bool) {
        let count = self.operands;
        let mut kept = 0;
        for dim in 1..self.sizes.len() {
            let (size, way) = (self.sizes[dim], self.sizes[dim] as isize);
            let (before, now) = self.steps.split_at(dim * count);
            let outer = &before[kept * count..(kept + 1) * count];
            let evenly = outer
                .iter()
                .zip(&now[..count])
                .all(|(outer, inner)| inner.checked_mul(way) == Some(*outer));
            let all = match evenly && may(self.number(kept), self.number(dim)) {
                true => self.sizes[kept].checked_mul(size),
                false => None,
            };
            if all.is_none() {
                kept += 1;
            }
            self.sizes[kept] = all.unwrap_or(size);
            self.numbers[kept] = self.numbers[dim];
            self.steps.copy_within(dim * count..(dim + 1) * count, kept * count);
        }
        let left = self.sizes.len().min(kept + 1);
        self.sizes.truncate(left);
        self.numbers.truncate(left);
        self.steps.truncate(left * count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the offsets of all operands at each index, in the order of the walk.
    fn visited(loops: &Loops, start: &[isize]) -> Vec<Vec<isize>> {
        let mut all = vec![start.to_vec()];
        for (dim, &size) in loops.sizes().iter().enumerate() {
            let row = loops.row(dim).to_vec();
            let at = |offsets: &Vec<isize>, i: isize| -> Vec<isize> {
                offsets.iter().zip(&row).map(|(offset, step)| offset + i * step).collect()
            };
            all = all.iter().flat_map(|o| (0..size as isize).map(|i| at(o, i))).collect();
        }
        all
    }

    proptest! {
        #[test]
        fn planning_changes_the_order_only(
            dims in proptest::collection::vec(
                (0_usize..4, prop_oneof![-5_isize..6, Just(12), Just(3)], -5_isize..6), 0..6),
        ) {
            let mut loops = Loops::new(2);
            let mut naive = Loops::new(2);
            for &(size, a, b) in &dims {
                loops.push(size, [a, b]);
                naive.push(size, [a, b]);
            }
            let mut expected = visited(&naive, &[0, 0]);
            // Merging preserves the order of elements.
            naive.merge(|_, _| true);
            prop_assert_eq!(&visited(&naive, &[0, 0]), &expected);
            let mut start = [0, 0];
            loops.ascend(0, &mut start);
            loops.sort_by_key(|steps| steps[0].unsigned_abs());
            loops.merge(|_, _| true);
            for dim in 0..loops.sizes().len() {
                prop_assert!(loops.row(dim)[0] >= 0 || loops.sizes()[dim] == 0);
                prop_assert!(dim == 0 || loops.row(dim - 1)[0] >= loops.row(dim)[0] || loops.sizes().contains(&0));
            }
            let mut found = visited(&loops, &start);
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn sizes_that_overflow_are_not_merged_and_refused_pairs_neither() {
        let mut loops = Loops::new(1);
        loops.push(usize::MAX, [0]);
        loops.push(2, [0]);
        loops.merge(|_, _| true);
        assert_eq!(loops.sizes().len(), 2);
        let mut loops = Loops::new(1);
        for (size, step) in [(2, 24), (1, 7), (3, 8), (8, 1)] {
            loops.push(size, [step]);
        }
        // The second dimension, of size 1, is left out but numbered.
        loops.merge(|outer, inner| (outer, inner) == (2, 3));
        assert_eq!((loops.sizes(), loops.number(0), loops.number(1)), (&[2, 24][..], 0, 3));
    }
}
