//! Random layouts, and their naive traversal.

use proptest::prelude::*;

/// A shape and the memory layout of its elements.
#[derive(Clone, Debug)]
pub(crate) struct MemoryLayout {
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<isize>,
    pub(crate) offset: usize,
    /// The number of elements of the memory.
    pub(crate) elements: usize,
}

impl MemoryLayout {
    /// The offsets of all elements, in row-major order.
    pub(crate) fn offsets(&self) -> Vec<usize> {
        let mut offsets = vec![self.offset as isize];
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let along = |p: isize| (0..size as isize).map(move |i| p + i * stride);
            offsets = offsets.iter().flat_map(|p| along(*p)).collect();
        }
        offsets.into_iter().map(|place| place as usize).collect()
    }
}

/// The layout of one dimension.
#[derive(Clone, Debug)]
pub(crate) struct Dimension {
    /// The dimension's position in memory order.
    rank: u32,
    /// Every `step`-th element of the dimension is taken.
    step: usize,
    /// Whether the dimension is reversed.
    backward: bool,
    /// Whether the dimension is broadcast.
    repeated: bool,
}

pub(crate) fn dimension(may_repeat: bool) -> impl Strategy<Value = Dimension> {
    (any::<u32>(), prop_oneof![3 => Just(1_usize), 1 => 2_usize..4], 0..4, 0..5).prop_map(
        move |(rank, step, backward, repeated)| Dimension {
            // Usually in order.
            rank: if rank % 3 == 0 { rank } else { u32::MAX / 2 },
            step,
            backward: backward == 0,
            repeated: may_repeat && repeated == 0,
        },
    )
}

pub(crate) fn layout(shape: &[usize], dims: &[Dimension], before: usize) -> MemoryLayout {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    order.sort_by_key(|&d| dims[d].rank);
    let mut strides = vec![0_isize; shape.len()];
    let (mut step, mut offset) = (1_usize, before);
    for d in order.into_iter().rev() {
        if dims[d].repeated {
            continue;
        }
        let each = step * dims[d].step;
        strides[d] = each as isize;
        if dims[d].backward {
            strides[d] = -(each as isize);
            offset += each * shape[d].saturating_sub(1);
        }
        step = each * shape[d].max(1);
    }
    MemoryLayout { shape: shape.to_vec(), strides, offset, elements: step + before + 3 }
}

/// A shape of rank 0 to 6 with a layout for writing and two for reading.
pub(crate) fn layouts(largest: usize) -> impl Strategy<Value = [MemoryLayout; 3]> {
    let dims = (0..=largest, dimension(false), dimension(true), dimension(true));
    (proptest::collection::vec(dims, 0..=6), 0_usize..4).prop_map(|(dims, before)| {
        let shape: Vec<usize> = dims.iter().map(|d| d.0).collect();
        let pick = |f: fn(&(usize, Dimension, Dimension, Dimension)) -> Dimension| {
            dims.iter().map(f).collect::<Vec<_>>()
        };
        [
            layout(&shape, &pick(|d| d.1.clone()), before),
            layout(&shape, &pick(|d| d.2.clone()), 0),
            layout(&shape, &pick(|d| d.3.clone()), before),
        ]
    })
}
