//! A reduction's loops, compiled for each level, as functions: so that what walks the memory is
//! compiled once per type of element and of result.

use super::accumulate::accumulate;
use super::convert::{Convert, Plain, To};
use super::lanes::lanes;
use super::monoid::Monoid;

/// What is done with lanes of elements of type `S`; each gives an `R`.
pub(crate) struct Loops<S, R> {
    /// The result of nothing.
    pub(crate) none: R,
    /// Of lanes of dense elements, a step apart, of at most [`super::rows::PART`] each.
    pub(crate) lanes: unsafe fn(*const S, isize, usize, &mut [R]),
    /// Of a part of a lane, and of what comes after it.
    pub(crate) join: fn(R, R) -> R,
    /// The result had the part begun so many elements further on.
    pub(crate) forward: fn(R, usize) -> R,
    /// Whether nothing that is still to come can change it.
    pub(crate) is_final: fn(R) -> bool,
    /// Whether there are such results.
    pub(crate) decides: bool,
}

/// Loops that combine numbers of type `R`, which elements of type `S` stand for.
pub(crate) struct Ops<S, R> {
    pub(crate) loops: Loops<S, R>,
    /// Combines each of the numbers with the element at its place in each of the rows, a step apart.
    pub(crate) accumulate: unsafe fn(*const S, isize, usize, &mut [R]),
    /// The same with rows of numbers.
    pub(crate) merge: unsafe fn(*const R, isize, usize, &mut [R]),
}

impl<S, R: Copy + 'static> Ops<S, R> {
    /// Of elements that are converted by `C`, combined by `M`, and in the end by `J`: up to
    /// [`super::rows::PART`] elements give a number of the former exactly.
    pub(crate) fn of<C, M, J>() -> Self
    where
        C: Convert<From = S>,
        M: Monoid<Number = C::To>,
        J: Monoid<Number = R>,
        C::To: To<R>,
        R: To<R>,
    {
        let loops = Loops {
            none: J::IDENTITY,
            lanes: lanes::<C, M, R>,
            join: J::combine,
            forward: |result, _| result,
            is_final: J::is_final,
            decides: J::DECIDES,
        };
        let merge = accumulate::<Plain<R, R>, J, J>;
        Ops { loops, accumulate: accumulate::<C, M, J>, merge }
    }

    /// What combined with a number changes nothing.
    pub(crate) fn identity(&self) -> R {
        self.loops.none
    }
}
