//! A walk over several strided operands of one shape.

use std::ops::Range;

use keyfold_core::{Error, ErrorKind, Result};
use smallvec::SmallVec;

use super::Loops;

/// A walk over all indices of a shape, for `N` operands with strides of their own.
///
/// Dimensions that all operands step through evenly are merged, so that the innermost run is as
/// long as the layouts allow, and no element costs a division. Offsets are in elements, relative to
/// each operand's first element.
#[derive(Clone, Debug)]
pub struct Walk<const N: usize> {
    loops: Loops,
    empty: bool,
}

impl<const N: usize> Walk<N> {
    /// Returns a walk in logical (row-major) order.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the numbers of strides and sizes differ.
    pub fn new(shape: &[usize], strides: [&[isize]; N]) -> Result<Self> {
        Walk::planned(shape, strides, |_| {})
    }

    /// Returns a walk in the best order for memory: the first operand's smallest steps are
    /// innermost. For work whose order of elements doesn't matter.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the numbers of strides and sizes differ.
    pub fn unordered(shape: &[usize], strides: [&[isize]; N]) -> Result<Self> {
        Walk::planned(shape, strides, |loops| {
            loops.sort_by_key(|steps| -> [usize; N] {
                std::array::from_fn(|n| steps[n].unsigned_abs())
            });
        })
    }

    fn planned(
        shape: &[usize],
        strides: [&[isize]; N],
        order: impl FnOnce(&mut Loops),
    ) -> Result<Self> {
        if let Some(wrong) = strides.iter().find(|s| s.len() != shape.len()) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("strides {wrong:?} don't fit shape {shape:?}: one per dimension is needed"),
            ));
        }
        let mut loops = Loops::new(N);
        for (d, &size) in shape.iter().enumerate() {
            loops.push(size, strides.map(|s| s[d]));
        }
        order(&mut loops);
        loops.merge(|_, _| true);
        Ok(Walk { loops, empty: shape.contains(&0) })
    }

    /// Returns the length of the runs of [`Walk::runs`].
    pub fn run_len(&self) -> usize {
        if self.empty { 0 } else { self.loops.sizes().last().copied().unwrap_or(1) }
    }

    /// Returns the step of each operand along a run.
    pub fn run_steps(&self) -> [isize; N] {
        match self.loops.sizes().len() {
            0 => [1; N],
            dims => self.row(dims - 1),
        }
    }

    /// Returns the step of each operand along a dimension.
    fn row(&self, dim: usize) -> [isize; N] {
        std::array::from_fn(|n| self.loops.row(dim)[n])
    }

    /// Calls `f` with the operands' offsets at the start of each run. A run has
    /// [`Walk::run_len`] elements, [`Walk::run_steps`] apart.
    pub fn runs(&self, mut f: impl FnMut([isize; N])) {
        if self.empty {
            return;
        }
        let mut index = self.first_run();
        let mut offsets = [0_isize; N];
        loop {
            f(offsets);
            if !self.next_run(&mut index, &mut offsets) {
                return;
            }
        }
    }

    /// Calls `f` with the offsets and the length of each run of the elements in a range of indices
    /// along the walk. The first and the last run may be shortened.
    pub fn runs_of(&self, elements: Range<usize>, mut f: impl FnMut([isize; N], usize)) {
        if elements.is_empty() {
            return;
        }
        let (len, steps) = (self.run_len(), self.run_steps());
        let (mut left, mut at) = (elements.len(), elements.start % len);
        let mut index = self.first_run();
        let mut offsets = [0_isize; N];
        let mut run = elements.start / len;
        for (d, index) in index.iter_mut().enumerate().rev() {
            *index = run % self.loops.sizes()[d];
            run /= self.loops.sizes()[d];
            for (offset, step) in offsets.iter_mut().zip(self.loops.row(d)) {
                *offset += step * *index as isize;
            }
        }
        loop {
            let count = left.min(len - at);
            f(std::array::from_fn(|n| offsets[n] + steps[n] * at as isize), count);
            left -= count;
            at = 0;
            if left == 0 || !self.next_run(&mut index, &mut offsets) {
                return;
            }
        }
    }

    /// Returns the index of the first run in the outer dimensions.
    #[inline]
    fn first_run(&self) -> SmallVec<[usize; 6]> {
        SmallVec::from_elem(0, self.loops.sizes().len().saturating_sub(1))
    }

    /// Advances to the next run: increments the index of the last outer dimension and carries.
    /// Returns false after the last run.
    #[inline]
    fn next_run(&self, index: &mut [usize], offsets: &mut [isize; N]) -> bool {
        let sizes = self.loops.sizes();
        for d in (0..index.len()).rev() {
            index[d] += 1;
            if index[d] < sizes[d] {
                for (offset, step) in offsets.iter_mut().zip(self.loops.row(d)) {
                    *offset += step;
                }
                return true;
            }
            index[d] = 0;
            for (offset, step) in offsets.iter_mut().zip(self.loops.row(d)) {
                *offset -= step * (sizes[d] - 1) as isize;
            }
        }
        false
    }
}

/// Calls `f` with the operands' offsets at every index of the shape, in logical order.
///
/// # Errors
/// [`ErrorKind::Shape`] if the numbers of strides and sizes differ.
#[inline]
pub fn for_each_offset<const N: usize>(
    shape: &[usize],
    strides: [&[isize]; N],
    mut f: impl FnMut([isize; N]),
) -> Result<()> {
    let walk = Walk::new(shape, strides)?;
    let (len, steps) = (walk.run_len(), walk.run_steps());
    walk.runs(|start| {
        let mut offsets = start;
        for _ in 0..len {
            f(offsets);
            for (offset, step) in offsets.iter_mut().zip(steps) {
                // The offset past the last element may overflow; it isn't used.
                *offset = offset.wrapping_add(step);
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn collect<const N: usize>(shape: &[usize], strides: [&[isize]; N]) -> Vec<[isize; N]> {
        let mut all = Vec::new();
        for_each_offset(shape, strides, |o| all.push(o)).unwrap();
        all
    }

    #[test]
    fn dense_dimensions_become_one_run() {
        let walk = Walk::new(&[2, 3, 4], [&[12, 4, 1], &[12, 4, 1]]).unwrap();
        assert_eq!((walk.run_len(), walk.run_steps()), (24, [1, 1]));
        let walk = Walk::new(&[2, 3, 4], [&[12, 4, 1], &[0, 4, 1]]).unwrap();
        assert_eq!(walk.run_len(), 12);
        let walk = Walk::unordered(&[3, 4], [&[1, 3], &[1, 3]]).unwrap();
        assert_eq!((walk.run_len(), walk.run_steps()), (12, [1, 1]));
    }

    #[test]
    fn empty_and_scalar_shapes() {
        assert_eq!(collect(&[], [&[]]), [[0]]);
        assert_eq!(collect(&[2, 0], [&[1, 1]]), [[0_isize; 1]; 0]);
        assert_eq!(collect(&[1, 1], [&[7, 9]]), [[0]]);
        assert_eq!(Walk::new(&[0, 5], [&[5, 1]]).unwrap().run_len(), 0);
        let error = Walk::new(&[2], [&[1, 1]]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(Walk::unordered(&[2], [&[]]).is_err());
    }

    proptest! {
        #[test]
        fn walks_visit_what_a_naive_loop_visits(
            dims in proptest::collection::vec((0_usize..4, -5_isize..6, -5_isize..6), 0..5),
            from in 0_usize..40,
        ) {
            let shape: Vec<usize> = dims.iter().map(|d| d.0).collect();
            let a: Vec<isize> = dims.iter().map(|d| d.1).collect();
            let b: Vec<isize> = dims.iter().map(|d| d.2).collect();
            let mut naive = vec![[0, 0]];
            for (size, sa, sb) in dims {
                let step = |o: [isize; 2], i: isize| [o[0] + i * sa, o[1] + i * sb];
                naive = naive
                    .iter()
                    .flat_map(|&o| (0..size as isize).map(move |i| step(o, i)))
                    .collect();
            }
            prop_assert_eq!(&collect(&shape, [&a, &b]), &naive);
            let walk = Walk::new(&shape, [&a, &b]).unwrap();
            for (start, end) in [(0, naive.len()), (from.min(naive.len()), naive.len()), (0, from)] {
                let (end, mut some) = (end.min(naive.len()), Vec::new());
                walk.runs_of(start..end, |at, len| {
                    let steps = walk.run_steps();
                    let element = |i| [at[0] + i * steps[0], at[1] + i * steps[1]];
                    some.extend((0..len as isize).map(element));
                });
                prop_assert_eq!(&some, &naive[start..end]);
            }
            let walk = Walk::unordered(&shape, [&a, &b]).unwrap();
            let mut any_order = Vec::new();
            walk.runs(|start| {
                for i in 0..walk.run_len() as isize {
                    let steps = walk.run_steps();
                    any_order.push([start[0] + i * steps[0], start[1] + i * steps[1]]);
                }
            });
            any_order.sort_unstable();
            naive.sort_unstable();
            prop_assert_eq!(any_order, naive);
        }
    }
}
