//! Argument reductions of dense lanes. First each block's best number is found, then the position in the
//! first block that has it. Both steps are vectorised, and the second reads a single block, which is
//! still in the cache.

use std::marker::PhantomData;

use keyfold_kit::isa::{self, Isa, Work};

use super::{Best, is_better};
use crate::reduce::convert::{Converted, To};
use crate::reduce::group::{BLOCK, Group, PARTIALS, fold_groups, reduce_group};
use crate::reduce::lanes::reduce_blocks;
use crate::reduce::monoid::{Extreme, Monoid, Ordered};

struct Lanes<'a, M: Monoid, S, const MIN: bool> {
    from: *const S,
    step: isize,
    len: usize,
    results: &'a mut [Best<M::Number>],
    marker: PhantomData<M>,
}

impl<M, S, const MIN: bool> Work for Lanes<'_, M, S, MIN>
where
    M: Monoid,
    M::Number: Ordered,
    S: To<M::Number> + Copy + 'static,
{
    type Output = ();
    const AVX512: bool = false;
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Lanes { from, step, len, results, .. } = self;
        // SAFETY: the caller of `lanes` promises that each lane has that many elements.
        let lane = |lane: usize| unsafe {
            std::slice::from_raw_parts(from.wrapping_offset(lane as isize * step), len)
        };
        if len < PARTIALS {
            for (at, result) in results.iter_mut().enumerate() {
                *result = fold_in_order::<S, M::Number, MIN>(lane(at));
            }
        } else if len <= BLOCK {
            for (group, results) in results.chunks_mut(PARTIALS).enumerate() {
                let lane = |at: usize| lane(group * PARTIALS + at);
                let (from, count) = (lane(0).as_ptr(), results.len());
                // SAFETY: the caller of `lanes` promises that each lane has that many elements.
                let some =
                    unsafe { Group::<Converted<S, M::Number>, M>::new(from, step, count, len) };
                let numbers = reduce_group::<I, _, _>(some);
                let mut indices = [[u32::MAX; PARTIALS]; PARTIALS];
                for (at, indices) in indices.iter_mut().enumerate().take(results.len()) {
                    *indices = candidates(lane(at), numbers[at]);
                }
                let indices = fold_groups::<I, First>(&indices);
                for ((best, number), index) in results.iter_mut().zip(numbers).zip(indices) {
                    *best = Best { number, index: i64::from(index) };
                }
            }
        } else {
            for (at, result) in results.iter_mut().enumerate() {
                *result = search_blocks::<I, M, S, MIN>(lane(at));
            }
        }
    }
}

/// Finds the best number of each lane and its index; the lanes are given as to
/// [`crate::reduce::lanes::lanes`].
///
/// # Safety
/// As for that function.
pub(super) unsafe fn lanes<M, S, const MIN: bool>(
    from: *const S,
    step: isize,
    len: usize,
    results: &mut [Best<M::Number>],
) where
    M: Monoid,
    M::Number: Ordered,
    S: To<M::Number> + Copy + 'static,
{
    isa::dispatch(Lanes::<M, S, MIN> { from, step, len, results, marker: PhantomData });
}

#[inline(always)]
fn fold_in_order<S: To<T> + Copy, T: Ordered, const MIN: bool>(x: &[S]) -> Best<T> {
    let mut best = Best { number: x[0].convert(), index: 0 };
    for (index, number) in x.iter().enumerate().skip(1) {
        let number = number.convert();
        let better = is_better::<T, MIN>(best.number, number);
        best.number = if better { number } else { best.number };
        best.index = if better { index as i64 } else { best.index };
    }
    best
}

#[inline(always)]
fn search_blocks<I, M, S, const MIN: bool>(x: &[S]) -> Best<M::Number>
where
    I: Isa,
    M: Monoid,
    M::Number: Ordered,
    S: To<M::Number> + Copy + 'static,
{
    let numbers = reduce_blocks::<I, Converted<S, M::Number>, M>(x);
    let blocks = x.len().div_ceil(BLOCK);
    let mut first = 0;
    for (block, number) in numbers.iter().enumerate().take(blocks) {
        if is_better::<M::Number, MIN>(numbers[first], *number) {
            first = block;
        }
    }
    let number = numbers[first];
    let start = first * BLOCK;
    // The last block may be shorter than a chunk of the comparison. It is extended backwards: the
    // elements before it are known not to be equal to the number.
    let end = x.len().min(start + BLOCK);
    let start = start.min(end - PARTIALS);
    let index = candidates(&x[start..end], number).into_iter().fold(u32::MAX, u32::min);
    Best { number, index: start as i64 + i64::from(index) }
}

/// The minimum of two positions.
type First = Extreme<u32, true>;

/// Returns candidate positions of a number in at least [`PARTIALS`] elements; the first position is among
/// them.
#[inline(always)]
fn candidates<S: To<T> + Copy, T: Ordered>(x: &[S], number: T) -> [u32; PARTIALS] {
    if number.is_nan() {
        candidates_of::<S, T, true>(x, number)
    } else {
        candidates_of::<S, T, false>(x, number)
    }
}

#[inline(always)]
fn candidates_of<S: To<T> + Copy, T: Ordered, const NAN: bool>(
    x: &[S],
    number: T,
) -> [u32; PARTIALS] {
    const CHUNK: usize = 4 * PARTIALS;
    let mut start = 0;
    // Skip chunks without the number.
    while x.len() - start > CHUNK {
        let chunk = &x[start..start + CHUNK];
        if chunk.iter().fold(false, |hit, x| hit | same::<T, NAN>(x.convert(), number)) {
            break;
        }
        start += CHUNK;
    }
    let end = x.len().min(start + CHUNK);
    let mut indices = [u32::MAX; PARTIALS];
    let mut at = start;
    while at < end {
        // The last chunk overlaps the one before it.
        at = at.min(end - PARTIALS);
        let x = &x[at..at + PARTIALS];
        for i in 0..PARTIALS {
            let hit = same::<T, NAN>(x[i].convert(), number);
            let index = if hit { (at + i) as u32 } else { u32::MAX };
            indices[i] = indices[i].min(index);
        }
        at += PARTIALS;
    }
    indices
}

#[inline(always)]
fn same<T: Ordered, const NAN: bool>(x: T, number: T) -> bool {
    if NAN { x.is_nan() } else { x == number }
}
