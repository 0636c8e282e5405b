//! The memory layout of a view, as a type.

use std::fmt::Debug;

use keyfold_core::{Error, ErrorKind, Result};
use smallvec::smallvec;

use super::ShortVec;
use crate::axes::{Contiguity, Contiguous, Has, Strided};

/// The most dimensions of a strided flat view, after dimensions of size 1 were dropped and evenly spaced
/// ones merged. More dimensions would need over 2^32 elements.
pub const FLAT_DIMS: usize = 32;

/// Sizes and strides, in the form that the engine uses.
#[derive(Debug)]
pub struct Dimensions(pub(crate) ShortVec<(usize, isize)>);

mod sealed {
    pub trait Sealed {}
}

/// The memory layouts, the values of the axis [`Contiguity`] as types: [`Contiguous`] (row-major order
/// without gaps) or [`Strided`] (any strides, negative and zero included). Sealed.
pub trait Layout: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The layout data of a flat view, stored beside its address and count.
    type Flat: Copy + Debug + Send + Sync;
    /// The layout data of a ranked view, stored beside its address and sizes.
    type Ranked<const R: usize>: Copy + Debug + Send + Sync;
    /// Whether elements are in row-major order without gaps.
    const CONTIGUOUS: bool;

    /// The layout data of a flat view. For [`Contiguous`] the strides were checked.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if more than [`FLAT_DIMS`] dimensions are left.
    fn flat(shape: &[usize], strides: &[isize]) -> Result<Self::Flat>;

    /// The offset of a linear index below the count, in elements.
    fn flat_offset(flat: &Self::Flat, index: usize) -> isize;

    /// The sizes and strides of a flat view of `count` elements, outermost first, none of size 1.
    #[doc(hidden)]
    fn flat_dims(flat: &Self::Flat, count: usize) -> Dimensions;

    /// The layout data of a ranked view.
    fn ranked<const R: usize>(strides: [isize; R]) -> Self::Ranked<R>;

    /// The strides of a ranked view.
    fn strides<const R: usize>(sizes: &[usize; R], ranked: &Self::Ranked<R>) -> [isize; R];

    /// The offset of an index inside the sizes, in elements.
    #[inline(always)]
    fn offset<const R: usize>(
        sizes: &[usize; R],
        ranked: &Self::Ranked<R>,
        index: [usize; R],
    ) -> isize {
        let strides = Self::strides(sizes, ranked);
        let mut offset = 0;
        for d in 0..R {
            offset += index[d] as isize * strides[d];
        }
        offset
    }
}

/// Coordinates that have a memory layout: [`Layout`](HasLayout::Layout) is the type that views take.
pub trait HasLayout: Has<Contiguity, Value = <Self as HasLayout>::Layout> {
    /// [`Contiguous`] or [`Strided`].
    type Layout: Layout;
}

impl<C, L: Layout> HasLayout for C
where
    C: Has<Contiguity, Value = L>,
{
    type Layout = L;
}

/// The strides of a contiguous view: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NoStrides {
    none: [u64; 0],
}

/// One dimension of a strided flat view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Dim {
    /// The number of elements; at least 2.
    pub size: usize,
    /// The distance from one element to the next, in elements.
    pub stride: isize,
    /// `ceil(2^(64 + shift) / size)`: dividing by `size` is multiplying by this and shifting the
    /// product's high word right by `shift`.
    pub magic: u64,
    /// The shift of `magic`'s division.
    pub shift: u32,
    /// Padding, so that the struct has the same size in every language.
    pub reserved: u32,
}

impl Dim {
    /// A dimension of at least 2 elements.
    ///
    /// With `l = ceil(log2(size))` and `m = ceil(2^(63 + l) / size)`, `n * m >> (63 + l)` is `n / size`
    /// for every `n` below 2^63: the rounding error of `m`, below `size <= 2^l` in units of `1 / size`,
    /// grows to `n * 2^l / size / 2^(63 + l)`, which is less than `1 / size`.
    fn new(size: usize, stride: isize) -> Dim {
        let log = usize::BITS - (size - 1).leading_zeros();
        let magic = (1_u128 << (63 + log)).div_ceil(size as u128) as u64;
        Dim { size, stride, magic, shift: log - 1, reserved: 0 }
    }

    /// `index / size`, for an index below 2^63.
    #[inline(always)]
    fn divide(&self, index: usize) -> usize {
        ((u128::from(index as u64) * u128::from(self.magic)) >> 64) as usize >> self.shift
    }
}

/// The dimensions of a strided flat view, the innermost first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FlatDims {
    /// The number of `dims` that are in use.
    pub rank: usize,
    /// The dimensions, padded with zeros.
    pub dims: [Dim; FLAT_DIMS],
}

impl sealed::Sealed for Contiguous {}
impl Layout for Contiguous {
    type Flat = NoStrides;
    type Ranked<const R: usize> = NoStrides;
    const CONTIGUOUS: bool = true;

    fn flat(_: &[usize], _: &[isize]) -> Result<NoStrides> {
        Ok(NoStrides::default())
    }

    #[inline(always)]
    fn flat_offset(_: &NoStrides, index: usize) -> isize {
        index as isize
    }

    fn flat_dims(_: &NoStrides, count: usize) -> Dimensions {
        Dimensions(if count == 1 { smallvec![] } else { smallvec![(count, 1)] })
    }

    fn ranked<const R: usize>(_: [isize; R]) -> NoStrides {
        NoStrides::default()
    }

    #[inline(always)]
    fn strides<const R: usize>(sizes: &[usize; R], _: &NoStrides) -> [isize; R] {
        let mut strides = [1; R];
        for d in (1..R).rev() {
            strides[d - 1] = strides[d] * sizes[d] as isize;
        }
        strides
    }
}

impl sealed::Sealed for Strided {}
impl Layout for Strided {
    type Flat = FlatDims;
    type Ranked<const R: usize> = [isize; R];
    const CONTIGUOUS: bool = false;

    fn flat(shape: &[usize], strides: &[isize]) -> Result<FlatDims> {
        let mut flat = FlatDims { rank: 0, dims: [Dim::default(); FLAT_DIMS] };
        if shape.contains(&0) {
            return Ok(flat);
        }
        let mut merged: Vec<(usize, isize)> = Vec::with_capacity(shape.len());
        for (&size, &stride) in shape.iter().zip(strides).rev().filter(|(size, _)| **size > 1) {
            match merged.last_mut() {
                // This dimension continues the one inside it without a gap.
                Some((inner, step)) if step.checked_mul(*inner as isize) == Some(stride) => {
                    *inner *= size;
                }
                _ => merged.push((size, stride)),
            }
        }
        if merged.len() > FLAT_DIMS {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a flat view of shape {shape:?} and strides {strides:?} has {} dimensions that \
                     can't be merged; there is room for {FLAT_DIMS}",
                    merged.len()
                ),
            ));
        }
        flat.rank = merged.len();
        for (dim, (size, stride)) in flat.dims.iter_mut().zip(merged) {
            *dim = Dim::new(size, stride);
        }
        Ok(flat)
    }

    #[inline(always)]
    fn flat_offset(flat: &FlatDims, index: usize) -> isize {
        let mut rest = index;
        let mut offset = 0;
        let Some((outermost, inner)) = flat.dims[..flat.rank].split_last() else { return 0 };
        for dim in inner {
            let next = dim.divide(rest);
            offset += (rest - next * dim.size) as isize * dim.stride;
            rest = next;
        }
        offset + rest as isize * outermost.stride
    }

    fn flat_dims(flat: &FlatDims, count: usize) -> Dimensions {
        if count == 0 {
            return Dimensions(smallvec![(0, 0)]);
        }
        Dimensions(flat.dims[..flat.rank].iter().rev().map(|dim| (dim.size, dim.stride)).collect())
    }

    fn ranked<const R: usize>(strides: [isize; R]) -> [isize; R] {
        strides
    }

    #[inline(always)]
    fn strides<const R: usize>(_: &[usize; R], ranked: &[isize; R]) -> [isize; R] {
        *ranked
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Dim;

    proptest! {
        #[test]
        fn multiplying_and_shifting_divides(
            size in prop_oneof![2_usize..5000, 2_usize..=(1 << 62), (1_u32..63).prop_map(|b| 1 << b)],
            index in prop_oneof![0_usize..100_000, 0_usize..(1 << 63)],
        ) {
            let dim = Dim::new(size, 1);
            let near = (index / size).saturating_mul(size);
            for n in [index, near, near.saturating_sub(1), near + 1, (1 << 63) - 1] {
                prop_assert_eq!(dim.divide(n), n / size, "{} / {}", n, size);
            }
        }
    }
}
