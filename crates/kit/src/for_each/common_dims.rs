//! Dimensions that several flat views have in common.
//!
//! Flat views are stored with merged dimensions, which differ from view to view. All enumerate the same
//! number of elements in row-major order, so common dimensions are found from the innermost outwards:
//! sizes that divide those of every view.

use smallvec::smallvec;

use crate::view::ShortVec;

/// Common dimensions, outermost first, none of size 1.
#[derive(Debug, PartialEq)]
pub(super) struct CommonDims {
    pub(super) sizes: ShortVec<usize>,
    /// The strides of each view.
    pub(super) strides: ShortVec<ShortVec<isize>>,
    /// For each dimension, the dimension of the last view that it is a part of.
    pub(super) axes: ShortVec<usize>,
}

/// The remaining dimensions of a view: the innermost one that isn't used up, and those outside it.
struct RemainingDims<'a> {
    dims: &'a [(usize, isize)],
    size: usize,
    stride: isize,
}

impl RemainingDims<'_> {
    /// Advances to the next dimension with more than one element.
    fn advance(&mut self) {
        while self.size == 1
            && let Some((&(size, stride), outer)) = self.dims.split_last()
        {
            (self.dims, self.size, self.stride) = (outer, size, stride);
        }
    }
}

/// Returns the common dimensions of views with the same number of elements, which isn't 0; `None` if
/// there are none, as for 2 x 6 and 3 x 4.
pub(super) fn common_dims(views: &[&[(usize, isize)]]) -> Option<CommonDims> {
    let mut rests: ShortVec<RemainingDims<'_>> =
        views.iter().map(|dims| RemainingDims { dims, size: 1, stride: 0 }).collect();
    let mut common = CommonDims {
        sizes: ShortVec::new(),
        strides: smallvec![ShortVec::new(); views.len()],
        axes: ShortVec::new(),
    };
    loop {
        rests.iter_mut().for_each(RemainingDims::advance);
        let size = rests.iter().map(|rest| rest.size).min()?;
        if size == 1 {
            break;
        }
        if rests.iter().any(|rest| !rest.size.is_multiple_of(size)) {
            return None;
        }
        common.sizes.push(size);
        common.axes.push(rests.last()?.dims.len());
        for (rest, strides) in rests.iter_mut().zip(&mut common.strides) {
            strides.push(rest.stride);
            rest.size /= size;
            // The stride after the last element is computed, but never used.
            rest.stride = rest.stride.wrapping_mul(size as isize);
        }
    }
    common.sizes.reverse();
    common.axes.reverse();
    common.strides.iter_mut().for_each(|strides| strides.reverse());
    Some(common)
}

#[cfg(test)]
mod tests {
    use super::common_dims;

    #[test]
    fn dimensions_are_split_where_another_view_needs_it() {
        let common =
            common_dims(&[&[(24, 1)], &[(2, 50), (3, -4), (4, 0)], &[(6, 8), (4, 1)]]).unwrap();
        assert_eq!(common.sizes[..], [2, 3, 4]);
        let strides: Vec<_> = common.strides.iter().map(|strides| strides.to_vec()).collect();
        assert_eq!(strides, [[12, 4, 1], [50, -4, 0], [24, 8, 1]]);
        assert_eq!(common.axes[..], [0, 0, 1]);
    }

    #[test]
    fn sizes_of_1_are_dropped_and_scalars_have_none() {
        assert_eq!(common_dims(&[&[(1, 5), (3, 1), (1, 9)], &[(3, 2)]]).unwrap().sizes[..], [3]);
        assert!(common_dims(&[&[], &[(1, 7)]]).unwrap().sizes.is_empty());
    }

    #[test]
    fn shapes_that_no_dimensions_divide_have_none_in_common() {
        assert_eq!(common_dims(&[&[(2, 1), (6, 2)], &[(3, 1), (4, 3)]]), None);
    }
}
