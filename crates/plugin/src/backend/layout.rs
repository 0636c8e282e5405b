//! Where a tensor's elements are in its buffer.

use crate::types::DType;

/// A tensor's dtype and shape, and the offset of each element from its buffer's start. It borrows
/// nothing, so that a queued operation can keep it.
#[derive(Clone, Debug)]
pub struct Layout {
    dtype: DType,
    shape: Vec<usize>,
    /// The offset of the element at index zero.
    start: isize,
    /// The step along each dimension, in bytes.
    steps: Vec<isize>,
}

impl Layout {
    pub(super) fn new(dtype: DType, start: usize, shape: &[i64], strides: &[i64]) -> Layout {
        let size = dtype.size() as isize;
        Layout {
            dtype,
            shape: shape.iter().map(|size| *size as usize).collect(),
            start: start as isize,
            steps: strides.iter().map(|stride| *stride as isize * size).collect(),
        }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the size of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the index of each element, in row-major order.
    pub fn indices(&self) -> impl Iterator<Item = Vec<usize>> + use<> {
        let shape = self.shape.clone();
        (0..self.numel()).map(move |mut at| {
            let mut index = shape.clone();
            for size in index.iter_mut().rev() {
                (*size, at) = (at % *size, at / *size);
            }
            index
        })
    }

    /// Returns the byte offset of the element at an index.
    ///
    /// # Panics
    /// If the index isn't inside the shape.
    pub fn offset_of(&self, index: &[usize]) -> usize {
        let inside = index.len() == self.shape.len()
            && index.iter().zip(&self.shape).all(|(index, size)| index < size);
        assert!(inside, "there is no element {index:?} in a tensor of shape {:?}", self.shape);
        let steps = index.iter().zip(&self.steps);
        (self.start + steps.map(|(index, step)| *index as isize * step).sum::<isize>()) as usize
    }

    /// Returns the byte offset of each element, in row-major order.
    pub fn offsets(&self) -> ByteOffsets {
        let axes = self.shape.iter().copied().zip(self.steps.iter().copied());
        ByteOffsets::new(self.start, axes.collect())
    }

    /// Returns the byte offsets of the elements along some dimensions (bit `d` for dimension `d`),
    /// for each index of the other dimensions, both in row-major order: what a reduction combines
    /// to one element each.
    ///
    /// ```
    /// # use keyfold_plugin::{ByteOffsets, Layout};
    /// fn columns(matrix: &Layout) -> Vec<ByteOffsets> {
    ///     matrix.lanes(0b01).collect()
    /// }
    /// ```
    pub fn lanes(&self, dims: u64) -> impl Iterator<Item = ByteOffsets> + use<> {
        let (mut inner, mut outer) = (Vec::new(), Vec::new());
        for (dim, (size, step)) in self.shape.iter().zip(&self.steps).enumerate() {
            if dims >> dim & 1 == 1 { &mut inner } else { &mut outer }.push((*size, *step));
        }
        let starts = ByteOffsets::new(self.start, outer);
        starts.map(move |start| ByteOffsets::new(start as isize, inner.clone()))
    }

    /// Returns the layout with another shape, whose last dimensions are these; those of size 1 are
    /// repeated.
    ///
    /// # Panics
    /// If the shapes don't broadcast.
    #[must_use]
    pub fn broadcast_to(&self, shape: &[usize]) -> Layout {
        let own = self.shape.iter().copied().zip(self.steps.iter().copied());
        let missing = shape.len().checked_sub(self.shape.len());
        let missing = missing.unwrap_or_else(|| panic!("{:?} broadcast to {shape:?}", self.shape));
        let own = std::iter::repeat_n((1, 0), missing).chain(own);
        let steps = own.zip(shape).map(|((size, step), wanted)| {
            assert!(size == *wanted || size == 1, "{:?} broadcast to {shape:?}", self.shape);
            if size == *wanted { step } else { 0 }
        });
        Layout { steps: steps.collect(), shape: shape.to_vec(), ..*self }
    }
}

/// Iterates over the byte offsets of a tensor's elements; it doesn't borrow the tensor.
#[derive(Clone, Debug)]
pub struct ByteOffsets {
    at: isize,
    /// The size of each dimension and the step along it, in bytes.
    axes: Vec<(usize, isize)>,
    index: Vec<usize>,
    left: usize,
}

impl ByteOffsets {
    fn new(at: isize, axes: Vec<(usize, isize)>) -> ByteOffsets {
        let (index, left) = (vec![0; axes.len()], axes.iter().map(|(size, _)| size).product());
        ByteOffsets { at, axes, index, left }
    }
}

impl Iterator for ByteOffsets {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.left == 0 {
            return None;
        }
        let at = self.at as usize;
        self.left -= 1;
        for (index, (size, step)) in self.index.iter_mut().zip(&self.axes).rev() {
            *index += 1;
            self.at += step;
            if *index < *size {
                break;
            }
            self.at -= step * *size as isize;
            *index = 0;
        }
        Some(at)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ByteOffsets {}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(offsets: impl Iterator<Item = ByteOffsets>) -> Vec<Vec<usize>> {
        offsets.map(Iterator::collect).collect()
    }

    #[test]
    fn lanes_are_in_row_major_order_over_any_strides() {
        let layout = Layout::new(DType::I16, 100, &[2, 3, 2], &[1, -4, 2]);
        assert_eq!(all(layout.lanes(0b010))[1], [104, 96, 88]);
        assert_eq!(
            all(layout.lanes(0b101)),
            [[100, 104, 102, 106], [92, 96, 94, 98], [84, 88, 86, 90]]
        );
        assert_eq!(all(layout.lanes(0b111)), [layout.offsets().collect::<Vec<_>>()]);
        assert_eq!(all(layout.lanes(0)).concat(), layout.offsets().collect::<Vec<_>>());
        let empty = Layout::new(DType::I16, 0, &[2, 0], &[0, 1]);
        assert_eq!(all(empty.lanes(0b10)), [[], []] as [[usize; 0]; 2]);
        assert_eq!(all(empty.lanes(0b01)).len(), 0);
        let scalar = Layout::new(DType::I16, 6, &[], &[]);
        assert_eq!((all(scalar.lanes(0)), scalar.numel()), (vec![vec![6]], 1));
    }

    #[test]
    fn an_index_has_an_offset() {
        let layout = Layout::new(DType::I16, 100, &[2, 2], &[1, -4]);
        assert_eq!(layout.indices().collect::<Vec<_>>(), [[0, 0], [0, 1], [1, 0], [1, 1]]);
        let offsets: Vec<usize> = layout.indices().map(|index| layout.offset_of(&index)).collect();
        assert_eq!(offsets, layout.offsets().collect::<Vec<_>>());
        let wrong = std::panic::catch_unwind(|| layout.offset_of(&[0, 2])).unwrap_err();
        let said = wrong.downcast_ref::<String>().unwrap();
        assert_eq!(said, "there is no element [0, 2] in a tensor of shape [2, 2]");
    }

    #[test]
    fn broadcasting_repeats_dimensions_of_size_1() {
        let layout = Layout::new(DType::I16, 10, &[1, 2], &[9, 1]).broadcast_to(&[2, 2, 2]);
        assert_eq!(layout.offsets().collect::<Vec<_>>(), [10, 12, 10, 12, 10, 12, 10, 12]);
        assert_eq!(layout.shape(), [2, 2, 2]);
    }

    #[test]
    #[should_panic(expected = "[2] broadcast to [3]")]
    fn other_sizes_dont_broadcast() {
        let _ = Layout::new(DType::I16, 0, &[2], &[1]).broadcast_to(&[3]);
    }
}
