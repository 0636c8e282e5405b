//! Size classes: eight between a power of two and the next.

/// The block size of the smallest class, in bytes.
pub(super) const SMALLEST: usize = 1 << SMALLEST_LOG;
const SMALLEST_LOG: usize = 12;
/// The base-2 logarithm of the largest class, which exceeds any address space.
const LARGEST_LOG: usize = 47;
const STEPS_LOG: usize = 3;
const STEPS: usize = 1 << STEPS_LOG;

/// The number of classes.
pub(super) const COUNT: usize = (LARGEST_LOG - SMALLEST_LOG) * STEPS + 1;

/// A size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::buffer) struct Class(usize);

impl Class {
    /// Returns the class for blocks of that many bytes, which wastes at most an eighth of them;
    /// `None` above the largest. Up to [`SMALLEST`] it is the first.
    #[inline]
    pub(super) fn of(bytes: usize) -> Option<Class> {
        if bytes <= SMALLEST {
            return Some(Class(0));
        }
        if bytes > 1 << LARGEST_LOG {
            return None;
        }
        // Steps of an eighth of the power of two below, rounded up.
        let log = (bytes - 1).ilog2() as usize;
        let steps = ((bytes - 1) >> (log - STEPS_LOG)) + 1;
        Some(Class((log - SMALLEST_LOG) * STEPS + steps - STEPS))
    }

    /// Returns the class of that index, in the order of sizes.
    #[inline]
    pub(in crate::buffer) fn from_index(index: usize) -> Class {
        debug_assert!(index < COUNT);
        Class(index)
    }

    /// Returns its index in the order of sizes.
    #[inline]
    pub(in crate::buffer) fn index(self) -> usize {
        self.0
    }

    /// Returns the size of its blocks.
    #[inline]
    pub(super) fn bytes(self) -> usize {
        (STEPS + self.0 % STEPS) << (self.0 / STEPS + SMALLEST_LOG - STEPS_LOG)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_class_holds_what_was_asked_for_and_an_eighth_more_at_most(
            bits in 0_u32..=47, fraction in 0.0_f64..1.0,
        ) {
            let bytes = ((fraction * (1_u64 << bits) as f64) as usize + (1 << bits)).min(1 << 47);
            let class = Class::of(bytes).unwrap();
            prop_assert!(class.bytes() >= bytes);
            prop_assert!(class.bytes() == SMALLEST || class.bytes() - bytes <= bytes / 8);
            prop_assert_eq!(Class::of(class.bytes()), Some(class));
            prop_assert_eq!(Class::from_index(class.index()), class);
        }
    }

    #[test]
    fn classes_grow_and_cover_everything() {
        let sizes: Vec<_> = (0..COUNT).map(|index| Class::from_index(index).bytes()).collect();
        assert!(sizes.is_sorted_by(|a, b| a < b));
        assert_eq!((sizes[0], sizes[COUNT - 1]), (4096, 1 << 47));
        assert!(sizes.iter().all(|size| size % 64 == 0));
        for (index, pair) in sizes.windows(2).enumerate() {
            assert_eq!(Class::of(pair[0] + 1).unwrap().index(), index + 1);
        }
        assert_eq!(Class::of((1 << 47) + 1), None);
        assert_eq!(Class::of(0).unwrap().index(), 0);
    }
}
