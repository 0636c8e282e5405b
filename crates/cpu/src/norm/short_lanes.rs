//! Lanes of at most a block, several at a time, so that sums along them are added up side by side, and what
//! is computed once a lane is computed for all of them in one loop.

use std::ops::Range;

use keyfold_kit::isa::Isa;

pub(super) use crate::reduce::group::PARTIALS;
use crate::reduce::group::fold_groups;
use crate::reduce::monoid::Sum;

use super::memory::{BLOCK, Float};

/// The most elements of a group: those of two inputs and a result leave half of the L1 cache to what is
/// fetched next.
const GROUP: usize = BLOCK / 2;

/// The longest lane that is computed in groups.
const LONGEST: usize = GROUP / 4;

/// Chunks of a lane that are added up apart.
const SEVERAL: usize = 4;

/// A number for each lane of a group.
pub(super) type PerLane<T> = [T; PARTIALS];

/// Some elements of a lane, side by side.
pub(super) type Chunk<A> = [A; PARTIALS];

/// Whether lanes of that many elements are computed in groups.
pub(super) fn are_short(len: usize) -> bool {
    (PARTIALS..=LONGEST).contains(&len)
}

/// Divides lanes of `len` elements into groups of at most [`PARTIALS`] lanes.
#[inline(always)]
pub(super) fn groups(lanes: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let most = (GROUP / len).min(PARTIALS);
    lanes.clone().step_by(most).map(move |first| first..lanes.end.min(first + most))
}

/// Returns a chunk of elements.
#[inline(always)]
pub(super) fn chunk<A: Copy>(x: &[A], at: usize) -> Chunk<A> {
    let mut own = [x[at]; PARTIALS];
    own.copy_from_slice(&x[at..at + PARTIALS]);
    own
}

/// Returns the last chunk of a lane whose elements don't fill chunks, and how many of its elements the chunk
/// before it has, too.
#[inline(always)]
pub(super) fn last_chunk(len: usize) -> Option<(usize, usize)> {
    (!len.is_multiple_of(PARTIALS)).then(|| (len - PARTIALS, PARTIALS - len % PARTIALS))
}

/// `N` functions of elements that are added up along each lane.
pub(super) trait Terms<A, const N: usize> {
    /// Adds the terms of the chunk at a position of a lane to the sums.
    fn add<I: Isa>(&self, lane: usize, at: usize, sums: [Chunk<A>; N]) -> [Chunk<A>; N];
}

/// Adds up terms along each of at most [`PARTIALS`] lanes of [short](are_short) length.
#[inline(always)]
pub(super) fn sums<I: Isa, A: Float, const N: usize>(
    lanes: usize,
    len: usize,
    terms: impl Terms<A, N>,
) -> [PerLane<A>; N] {
    let mut all = [[[A::ZERO; PARTIALS]; PARTIALS]; N];
    for lane in 0..lanes {
        // Independent sums, so that additions of a lane don't wait for each other.
        let mut several = [[[A::ZERO; PARTIALS]; N]; SEVERAL];
        let whole = len / (SEVERAL * PARTIALS) * SEVERAL * PARTIALS;
        for at in (0..whole).step_by(SEVERAL * PARTIALS) {
            for (i, own) in several.iter_mut().enumerate() {
                *own = terms.add::<I>(lane, at + i * PARTIALS, *own);
            }
        }
        let [mut a, b, mut c, d] = several;
        let mut own = [[A::ZERO; PARTIALS]; N];
        for n in 0..N {
            // Three loops, since the compiler makes scalar code of one.
            for i in 0..PARTIALS {
                a[n][i] = a[n][i] + b[n][i];
            }
            for i in 0..PARTIALS {
                c[n][i] = c[n][i] + d[n][i];
            }
            for i in 0..PARTIALS {
                own[n][i] = a[n][i] + c[n][i];
            }
        }
        for at in (whole..len / PARTIALS * PARTIALS).step_by(PARTIALS) {
            own = terms.add::<I>(lane, at, own);
        }
        if let Some((at, seen)) = last_chunk(len) {
            let with_seen = terms.add::<I>(lane, at, own);
            for (own, with_seen) in own.iter_mut().zip(with_seen) {
                for (i, (own, with_seen)) in own.iter_mut().zip(with_seen).enumerate() {
                    *own = if i < seen { *own } else { with_seen };
                }
            }
        }
        for (all, own) in all.iter_mut().zip(own) {
            all[lane] = own;
        }
    }
    all.map(|rows| fold_groups::<I, Sum<A>>(&rows))
}
