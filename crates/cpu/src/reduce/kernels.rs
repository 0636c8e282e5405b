//! A reduction's loops, compiled for each level, as function pointers: so that the traversal of memory
//! is compiled once per element and result type.

use super::accumulate_rows::accumulate;
use super::convert::{Convert, Converted, To};
use super::lanes::lanes;
use super::monoid::Monoid;

/// The loops over lanes of elements of type `S`, with results of type `R`.
pub(crate) struct LaneKernels<S, R> {
    /// The result of an empty lane.
    pub(crate) empty: R,
    /// Reduces lanes of dense elements, a step apart, of at most [`super::rows::PART`] elements each.
    pub(crate) lanes: unsafe fn(*const S, isize, usize, &mut [R]),
    /// Joins the results of two consecutive parts of a lane.
    pub(crate) join: fn(R, R) -> R,
    /// Adjusts a result for the number of elements before its part.
    pub(crate) add_offset: fn(R, usize) -> R,
    /// Whether a result is absorbing, so that the rest of the lane can't change it.
    pub(crate) is_absorbing: fn(R) -> bool,
    /// Whether there are absorbing results.
    pub(crate) has_absorbing: bool,
}

/// The loops that combine numbers of type `R`, converted from elements of type `S`.
pub(crate) struct ReductionKernels<S, R> {
    pub(crate) loops: LaneKernels<S, R>,
    /// Combines each of the numbers with the element at its position in each of the rows, a step apart.
    pub(crate) accumulate: unsafe fn(*const S, isize, usize, &mut [R]),
    /// As `accumulate`, for rows of numbers.
    pub(crate) merge: unsafe fn(*const R, isize, usize, &mut [R]),
}

impl<S, R: Copy + 'static> ReductionKernels<S, R> {
    /// The loops for elements that are converted by `C` and combined by `M` within a part of up to
    /// [`super::rows::PART`] elements, which is exact; parts are combined by `J`.
    pub(crate) fn of<C, M, J>() -> Self
    where
        C: Convert<From = S>,
        M: Monoid<Number = C::To>,
        J: Monoid<Number = R>,
        C::To: To<R>,
        R: To<R>,
    {
        let loops = LaneKernels {
            empty: J::IDENTITY,
            lanes: lanes::<C, M, R>,
            join: J::combine,
            add_offset: |result, _| result,
            is_absorbing: J::is_absorbing,
            has_absorbing: J::HAS_ABSORBING,
        };
        let merge = accumulate::<Converted<R, R>, J, J>;
        ReductionKernels { loops, accumulate: accumulate::<C, M, J>, merge }
    }

    /// The reduction identity.
    pub(crate) fn identity(&self) -> R {
        self.loops.empty
    }
}
