//! A reduction's loops, compiled for each level, as functions: so that what walks the memory is
//! compiled once per type of number.

use super::accumulate::accumulate;
use super::lanes::lanes;
use super::monoid::Monoid;

/// What is done with lanes of numbers of type `A`; each gives an `R`.
pub(crate) struct Loops<A, R> {
    /// Any number: what room for numbers is filled with at first.
    pub(crate) number: A,
    /// The result of nothing.
    pub(crate) none: R,
    /// Of lanes of dense numbers, a step apart, of at most [`super::rows::PART`] each.
    pub(crate) lanes: unsafe fn(*const A, isize, usize, &mut [R]),
    /// Of a part of a lane, and of what comes after it.
    pub(crate) join: fn(R, R) -> R,
    /// The result had the part begun so many elements further on.
    pub(crate) forward: fn(R, usize) -> R,
    /// Whether nothing that is still to come can change it.
    pub(crate) is_final: fn(R) -> bool,
}

/// Loops that combine numbers.
pub(crate) struct Ops<A> {
    pub(crate) loops: Loops<A, A>,
    /// Combines each of the numbers with the one at its place in each of the rows, a step apart.
    pub(crate) accumulate: unsafe fn(*const A, isize, usize, &mut [A]),
}

impl<A: Copy> Ops<A> {
    pub(crate) fn of<M: Monoid<Number = A>>() -> Self {
        let loops = Loops {
            number: M::IDENTITY,
            none: M::IDENTITY,
            lanes: lanes::<M>,
            join: M::combine,
            forward: |result, _| result,
            is_final: M::is_final,
        };
        Ops { loops, accumulate: accumulate::<M> }
    }

    /// What combined with a number changes nothing.
    pub(crate) fn identity(&self) -> A {
        self.loops.none
    }
}
