//! Dimensions that suit all views at once.
//!
//! Flat views keep merged dimensions, each its own. All count the same elements in row-major order,
//! so dimensions are found, from the innermost outwards, that divide those of every view.

use smallvec::smallvec;

use crate::view::Few;

/// Common sizes, outermost first, none of them 1.
#[derive(Debug, PartialEq)]
pub(super) struct Joint {
    pub(super) sizes: Few<usize>,
    /// For each view its strides.
    pub(super) strides: Few<Few<isize>>,
    /// For each dimension the one of the last view that it is a piece of.
    pub(super) axes: Few<usize>,
}

/// What is left of a view: the innermost dimension that isn't used up, and those outside it.
struct Rest<'a> {
    dims: &'a [(usize, isize)],
    size: usize,
    stride: isize,
}

impl Rest<'_> {
    /// Goes on to the next dimension with more than one element.
    fn advance(&mut self) {
        while self.size == 1
            && let Some((&(size, stride), outer)) = self.dims.split_last()
        {
            (self.dims, self.size, self.stride) = (outer, size, stride);
        }
    }
}

/// The common dimensions of views with the same number of elements, which isn't 0; `None` where
/// there are none, as for 2 x 6 and 3 x 4.
pub(super) fn refine(views: &[&[(usize, isize)]]) -> Option<Joint> {
    let mut rests: Few<Rest<'_>> =
        views.iter().map(|dims| Rest { dims, size: 1, stride: 0 }).collect();
    let mut joint =
        Joint { sizes: Few::new(), strides: smallvec![Few::new(); views.len()], axes: Few::new() };
    loop {
        rests.iter_mut().for_each(Rest::advance);
        let size = rests.iter().map(|rest| rest.size).min()?;
        if size == 1 {
            break;
        }
        if rests.iter().any(|rest| !rest.size.is_multiple_of(size)) {
            return None;
        }
        joint.sizes.push(size);
        joint.axes.push(rests.last()?.dims.len());
        for (rest, strides) in rests.iter_mut().zip(&mut joint.strides) {
            strides.push(rest.stride);
            rest.size /= size;
            // Beyond the last element nobody looks.
            rest.stride = rest.stride.wrapping_mul(size as isize);
        }
    }
    joint.sizes.reverse();
    joint.axes.reverse();
    joint.strides.iter_mut().for_each(|strides| strides.reverse());
    Some(joint)
}

#[cfg(test)]
mod tests {
    use super::refine;

    #[test]
    fn dimensions_are_split_where_another_view_needs_it() {
        let joint = refine(&[&[(24, 1)], &[(2, 50), (3, -4), (4, 0)], &[(6, 8), (4, 1)]]).unwrap();
        assert_eq!(joint.sizes[..], [2, 3, 4]);
        let strides: Vec<_> = joint.strides.iter().map(|strides| strides.to_vec()).collect();
        assert_eq!(strides, [[12, 4, 1], [50, -4, 0], [24, 8, 1]]);
        assert_eq!(joint.axes[..], [0, 0, 1]);
    }

    #[test]
    fn sizes_of_1_are_dropped_and_scalars_have_none() {
        assert_eq!(refine(&[&[(1, 5), (3, 1), (1, 9)], &[(3, 2)]]).unwrap().sizes[..], [3]);
        assert!(refine(&[&[], &[(1, 7)]]).unwrap().sizes.is_empty());
    }

    #[test]
    fn shapes_that_no_dimensions_divide_have_none_in_common() {
        assert_eq!(refine(&[&[(2, 1), (6, 2)], &[(3, 1), (4, 3)]]), None);
    }
}
