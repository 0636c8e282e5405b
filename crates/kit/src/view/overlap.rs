//! Whether two strided views have memory in common.

use super::ShortVec;

/// The memory of a view: base address, sizes and strides.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    /// The address of the first element (index zero).
    pub(crate) base: usize,
    /// Bytes per element.
    pub(crate) size: usize,
    /// Sizes and strides in elements, outermost first; none of size 1, evenly spaced dimensions merged.
    pub(crate) dims: ShortVec<(usize, isize)>,
}

impl Extent {
    fn is_empty(&self) -> bool {
        self.dims.iter().any(|dim| dim.0 == 0)
    }

    /// Whether both have the same elements in the same order.
    pub(crate) fn is_same(&self, other: &Extent) -> bool {
        (self.base, self.size, &self.dims) == (other.base, other.size, &other.dims)
    }

    /// The lowest address; and for each dimension a positive step in bytes, with the number of times
    /// that it can be taken.
    fn upward(&self) -> (i128, impl Iterator<Item = (i128, i128)>) {
        let bytes = |stride: isize| stride as i128 * self.size as i128;
        let low = self.dims.iter().map(|&(size, stride)| bytes(stride).min(0) * (size as i128 - 1));
        let steps =
            self.dims.iter().map(move |&(size, stride)| (bytes(stride).abs(), size as i128 - 1));
        (self.base as i128 + low.sum::<i128>(), steps)
    }

    /// The first address and the one after the last.
    pub(crate) fn span(&self) -> (usize, usize) {
        if self.is_empty() {
            return (self.base, self.base);
        }
        let (low, steps) = self.upward();
        let reach: i128 = steps.map(|(step, times)| step * times).sum();
        (low as usize, (low + reach) as usize + self.size)
    }

    /// Whether a byte belongs to both. Exact for layouts made by slicing and transposing; true if the
    /// search would take too long.
    pub(crate) fn touches(&self, other: &Extent) -> bool {
        if self.is_empty() || other.is_empty() {
            return false;
        }
        let (a, b) = (self.span(), other.span());
        if a.1 <= b.0 || b.1 <= a.0 {
            return false;
        }
        // Elements at x of this view and y of the other share a byte if -size_a < x - y < size_b. With
        // the other's steps counted downwards from its highest address, all terms have one sign: x - y =
        // low_a + (sum a) - (high_b - (sum b)), so the sums must come near high_b - low_a.
        let (low_a, steps_a) = self.upward();
        let (low_b, steps_b) = other.upward();
        let steps_b: Vec<_> = steps_b.collect();
        let high_b = low_b + steps_b.iter().map(|(step, times)| step * times).sum::<i128>();
        let mut terms: Vec<(i128, i128)> =
            steps_a.chain(steps_b).filter(|(step, times)| step * times != 0).collect();
        terms.sort_unstable_by_key(|term| std::cmp::Reverse(term.0));
        // Equal steps are merged to one term that can be taken more often.
        terms.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        let from = high_b - low_a - self.size as i128 + 1;
        let to = high_b - low_a + other.size as i128 - 1;
        search(&terms, from, to, &mut 20_000)
    }
}

/// Whether some sum of at most the given number of each step lies in `from..=to`. Steps are positive and
/// descending. True when the budget is exhausted.
fn search(terms: &[(i128, i128)], from: i128, to: i128, budget: &mut u32) -> bool {
    if to < 0 {
        return false;
    }
    if from <= 0 {
        return true;
    }
    let Some((&(step, times), rest)) = terms.split_first() else { return false };
    *budget = budget.saturating_sub(1);
    if *budget == 0 {
        return true;
    }
    let reach: i128 = rest.iter().map(|(step, times)| step * times).sum();
    let first = (from - reach).max(0);
    let first = first / step + i128::from(first % step != 0);
    let last = (to / step).min(times);
    (first..=last).any(|n| search(rest, from - n * step, to - n * step, budget))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::Extent;

    fn bytes(extent: &Extent) -> HashSet<usize> {
        let mut places = vec![extent.base as isize];
        for &(size, stride) in &extent.dims {
            let step = |p: isize, i: usize| p + i as isize * stride * extent.size as isize;
            places = places.iter().flat_map(|&p| (0..size).map(move |i| step(p, i))).collect();
        }
        places.into_iter().flat_map(|p| p as usize..p as usize + extent.size).collect()
    }

    fn any_extent() -> impl Strategy<Value = Extent> {
        let dims = proptest::collection::vec((0_usize..5, -9_isize..10), 0..4);
        (2000_usize..2100, prop_oneof![Just(1_usize), Just(2), Just(4)], dims)
            .prop_map(|(base, size, dims)| Extent { base, size, dims: dims.into() })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn touching_is_having_a_byte_in_common(a in any_extent(), b in any_extent()) {
            let (mine, theirs) = (bytes(&a), bytes(&b));
            prop_assert_eq!(a.touches(&b), !mine.is_disjoint(&theirs));
            prop_assert_eq!(a.touches(&a), !mine.is_empty());
            let (low, high) = a.span();
            prop_assert!(mine.iter().all(|byte| (low..high).contains(byte)));
        }
    }

    #[test]
    fn disjoint_slices_of_large_tensors_are_found_quickly() {
        let part = |base, dims: &[(usize, isize)]| Extent { base, size: 4, dims: dims.into() };
        let n = 1 << 14;
        // The left and the right half of the columns; odd and even rows; odd and even elements.
        let row = n as isize;
        assert!(!part(0, &[(n, row), (n / 2, 1)]).touches(&part(2 * n, &[(n, row), (n / 2, 1)])));
        assert!(
            !part(0, &[(n / 2, 2 * row), (n, 1)])
                .touches(&part(4 * n, &[(n / 2, 2 * row), (n, 1)]))
        );
        assert!(!part(0, &[(n * n / 2, 2)]).touches(&part(4, &[(n * n / 2, 2)])));
        assert!(
            part(0, &[(n, row), (n / 2, 1)]).touches(&part(2 * n - 4, &[(n, row), (n / 2, 1)]))
        );
    }
}
