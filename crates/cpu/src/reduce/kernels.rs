//! A reduction's loops, compiled for each level, as function pointers: so that the traversal of memory
//! is compiled once for all element and result types of the same sizes.

use std::mem::transmute_copy;

use super::accumulate_rows::accumulate;
use super::cascade::Join;
use super::convert::{Convert, Converted, To};
use super::lanes::lanes;
use super::monoid::Monoid;
use crate::element::HasBits;

/// A type whose values the traversal of memory moves as plain bits.
///
/// # Safety
/// `Bits` has the size and the alignment of the type, and each value of the type is one of `Bits`.
pub(crate) unsafe trait Erased: Copy + 'static {
    type Bits: Copy + Send + Sync + 'static;

    /// Returns the bits of a value.
    #[inline(always)]
    fn bits(self) -> Self::Bits {
        const { assert!(size_of::<Self>() == size_of::<Self::Bits>()) };
        // SAFETY: the trait's contract.
        unsafe { transmute_copy(&self) }
    }
}

// SAFETY: the trait `HasBits` is for types of numbers, whose bits are of the same size.
unsafe impl<T: HasBits> Erased for T {
    type Bits = T::Bits;
}

/// Returns a function of pointers to values as one of pointers to the values' bits.
///
/// # Safety
/// The types are those of function pointers that differ in the types behind pointers only, each by [`Erased`].
#[inline(always)]
pub(crate) unsafe fn erase<F: Copy, G>(function: F) -> G {
    const { assert!(size_of::<F>() == size_of::<fn()>() && size_of::<G>() == size_of::<fn()>()) };
    // SAFETY: pointers to sized types are passed alike, and so are slices.
    unsafe { transmute_copy(&function) }
}

/// The loops over lanes of elements of type `S`, with results of type `R`.
pub(crate) struct LaneKernels<S, R> {
    /// The result of an empty lane.
    pub(crate) empty: R,
    /// Reduces lanes of dense elements, a step apart, of at most [`super::rows::PART`] elements each.
    pub(crate) lanes: unsafe fn(*const S, isize, usize, &mut [R]),
    /// Joins the results of two consecutive parts of a lane.
    pub(crate) join: Join<R>,
    /// Adjusts a result for the number of elements before its part.
    pub(crate) add_offset: fn(&mut R, usize),
    /// Whether a result is absorbing, so that the rest of the lane can't change it.
    pub(crate) is_absorbing: fn(&R) -> bool,
    /// Whether there are absorbing results.
    pub(crate) has_absorbing: bool,
}

impl<S: Erased, R: Erased> LaneKernels<S, R> {
    /// Returns the same loops for the bits of elements and results.
    pub(crate) fn erased(self) -> LaneKernels<S::Bits, R::Bits> {
        // SAFETY: the types differ by `Erased` behind pointers.
        unsafe {
            LaneKernels {
                empty: self.empty.bits(),
                lanes: erase(self.lanes),
                join: erase(self.join),
                add_offset: erase(self.add_offset),
                is_absorbing: erase(self.is_absorbing),
                has_absorbing: self.has_absorbing,
            }
        }
    }
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
            join: |all, part| *all = J::combine(*all, *part),
            add_offset: |_, _| (),
            is_absorbing: |result| J::is_absorbing(*result),
            has_absorbing: J::HAS_ABSORBING,
        };
        let merge = accumulate::<Converted<R, R>, J::Plain, J::Plain>;
        ReductionKernels { loops, accumulate: accumulate::<C, M::Plain, J::Plain>, merge }
    }

    /// Returns the same loops for the bits of elements and results.
    pub(crate) fn erased(self) -> ReductionKernels<S::Bits, R::Bits>
    where
        S: Erased,
        R: Erased,
    {
        let loops = self.loops.erased();
        // SAFETY: the types differ by `Erased` behind pointers.
        unsafe {
            ReductionKernels { loops, accumulate: erase(self.accumulate), merge: erase(self.merge) }
        }
    }
}

impl<S, R: Copy> ReductionKernels<S, R> {
    /// The reduction identity.
    pub(crate) fn identity(&self) -> R {
        self.loops.empty
    }
}
