//! Lanes of dense numbers: first which number is the best, by block, then where in the first block
//! that has it. Both go through vectors, and what is looked at again is one block, still in the cache.

use std::marker::PhantomData;

use keyfold_kit::isa::{self, Isa, Work};

use super::{Best, is_better};
use crate::reduce::convert::{Plain, To};
use crate::reduce::lanes::{BLOCK, FEW, Group, across, by_block, together};
use crate::reduce::monoid::{Extreme, Monoid, Ordered};

struct Lanes<'a, M: Monoid, S, const MIN: bool> {
    from: *const S,
    step: isize,
    len: usize,
    results: &'a mut [Best<M::Number>],
    how: PhantomData<M>,
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
        // SAFETY: the caller of `lanes` says that each lane has so many elements there.
        let lane = |lane: usize| unsafe {
            std::slice::from_raw_parts(from.wrapping_offset(lane as isize * step), len)
        };
        if len < FEW {
            for (at, result) in results.iter_mut().enumerate() {
                *result = in_turn::<S, M::Number, MIN>(lane(at));
            }
        } else if len <= BLOCK {
            for (group, results) in results.chunks_mut(FEW).enumerate() {
                let lane = |at: usize| lane(group * FEW + at);
                let (from, count) = (lane(0).as_ptr(), results.len());
                // SAFETY: the caller of `lanes` says that each lane has so many elements there.
                let some = unsafe { Group::<Plain<S, M::Number>, M>::new(from, step, count, len) };
                let numbers = together::<I, _, _>(some);
                let mut places = [[u32::MAX; FEW]; FEW];
                for (at, places) in places.iter_mut().enumerate().take(results.len()) {
                    *places = candidates(lane(at), numbers[at]);
                }
                let places = across::<I, First>(&places);
                for ((best, number), place) in results.iter_mut().zip(numbers).zip(places) {
                    *best = Best { number, place: i64::from(place) };
                }
            }
        } else {
            for (at, result) in results.iter_mut().enumerate() {
                *result = in_blocks::<I, M, S, MIN>(lane(at));
            }
        }
    }
}

/// The best of each lane and its place; the lanes are as [`crate::reduce::lanes::lanes`] takes them.
///
/// # Safety
/// As for that.
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
    isa::dispatch(Lanes::<M, S, MIN> { from, step, len, results, how: PhantomData });
}

#[inline(always)]
fn in_turn<S: To<T> + Copy, T: Ordered, const MIN: bool>(x: &[S]) -> Best<T> {
    let mut best = Best { number: x[0].convert(), place: 0 };
    for (place, number) in x.iter().enumerate().skip(1) {
        let number = number.convert();
        let better = is_better::<T, MIN>(best.number, number);
        best.number = if better { number } else { best.number };
        best.place = if better { place as i64 } else { best.place };
    }
    best
}

#[inline(always)]
fn in_blocks<I, M, S, const MIN: bool>(x: &[S]) -> Best<M::Number>
where
    I: Isa,
    M: Monoid,
    M::Number: Ordered,
    S: To<M::Number> + Copy + 'static,
{
    let numbers = by_block::<I, Plain<S, M::Number>, M>(x);
    let blocks = x.len().div_ceil(BLOCK);
    let mut first = 0;
    for (block, number) in numbers.iter().enumerate().take(blocks) {
        if is_better::<M::Number, MIN>(numbers[first], *number) {
            first = block;
        }
    }
    let number = numbers[first];
    let start = first * BLOCK;
    // The last block may be shorter than what is looked at together: then with some before it,
    // which have no such number.
    let end = x.len().min(start + BLOCK);
    let start = start.min(end - FEW);
    let place = candidates(&x[start..end], number).into_iter().fold(u32::MAX, u32::min);
    Best { number, place: start as i64 + i64::from(place) }
}

/// The smaller of two places.
type First = Extreme<u32, true>;

/// Places of a number, at least [`FEW`] numbers being there: the first of all is among them.
#[inline(always)]
fn candidates<S: To<T> + Copy, T: Ordered>(x: &[S], number: T) -> [u32; FEW] {
    if number.is_nan() {
        candidates_of::<S, T, true>(x, number)
    } else {
        candidates_of::<S, T, false>(x, number)
    }
}

#[inline(always)]
fn candidates_of<S: To<T> + Copy, T: Ordered, const NAN: bool>(x: &[S], number: T) -> [u32; FEW] {
    const CHUNK: usize = 4 * FEW;
    let mut start = 0;
    // A chunk without it is passed over.
    while x.len() - start > CHUNK {
        let chunk = &x[start..start + CHUNK];
        if chunk.iter().fold(false, |hit, x| hit | same::<T, NAN>(x.convert(), number)) {
            break;
        }
        start += CHUNK;
    }
    let end = x.len().min(start + CHUNK);
    let mut places = [u32::MAX; FEW];
    let mut at = start;
    while at < end {
        // At the end some are looked at twice.
        at = at.min(end - FEW);
        let x = &x[at..at + FEW];
        for i in 0..FEW {
            let hit = same::<T, NAN>(x[i].convert(), number);
            let place = if hit { (at + i) as u32 } else { u32::MAX };
            places[i] = places[i].min(place);
        }
        at += FEW;
    }
    places
}

#[inline(always)]
fn same<T: Ordered, const NAN: bool>(x: T, number: T) -> bool {
    if NAN { x.is_nan() } else { x == number }
}
