//! Random layouts, and the naive way to walk them.

use proptest::prelude::*;

/// A shape and how its elements lie in memory.
#[derive(Clone, Debug)]
pub(crate) struct Lie {
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<isize>,
    pub(crate) offset: usize,
    /// How many elements the memory has.
    pub(crate) room: usize,
}

impl Lie {
    /// The places of all elements, in row-major order.
    pub(crate) fn places(&self) -> Vec<usize> {
        let mut places = vec![self.offset as isize];
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let along = |p: isize| (0..size as isize).map(move |i| p + i * stride);
            places = places.iter().flat_map(|p| along(*p)).collect();
        }
        places.into_iter().map(|place| place as usize).collect()
    }
}

/// What is done to each dimension of a layout.
#[derive(Clone, Debug)]
pub(crate) struct Dimension {
    /// Where it comes in memory.
    rank: u32,
    /// Every how many-th element is taken, and whether from behind.
    step: usize,
    backward: bool,
    /// Whether it is repeated.
    repeated: bool,
}

pub(crate) fn dimension(may_repeat: bool) -> impl Strategy<Value = Dimension> {
    (any::<u32>(), prop_oneof![3 => Just(1_usize), 1 => 2_usize..4], 0..4, 0..5).prop_map(
        move |(rank, step, backward, repeated)| Dimension {
            // Mostly in order.
            rank: if rank % 3 == 0 { rank } else { u32::MAX / 2 },
            step,
            backward: backward == 0,
            repeated: may_repeat && repeated == 0,
        },
    )
}

pub(crate) fn lie(shape: &[usize], dims: &[Dimension], before: usize) -> Lie {
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
    Lie { shape: shape.to_vec(), strides, offset, room: step + before + 3 }
}

/// A shape of rank 0 to 6 with a layout for writing and two for reading.
pub(crate) fn lies(largest: usize) -> impl Strategy<Value = [Lie; 3]> {
    let dims = (0..=largest, dimension(false), dimension(true), dimension(true));
    (proptest::collection::vec(dims, 0..=6), 0_usize..4).prop_map(|(dims, before)| {
        let shape: Vec<usize> = dims.iter().map(|d| d.0).collect();
        let pick = |f: fn(&(usize, Dimension, Dimension, Dimension)) -> Dimension| {
            dims.iter().map(f).collect::<Vec<_>>()
        };
        [
            lie(&shape, &pick(|d| d.1.clone()), before),
            lie(&shape, &pick(|d| d.2.clone()), 0),
            lie(&shape, &pick(|d| d.3.clone()), before),
        ]
    })
}
