//! Reductions of dense lanes.
//!
//! A lane is divided into blocks of [`BLOCK`] elements, whose results are folded by halves. Blocks, and
//! lanes of one block, are reduced in groups ([`super::group`]). The order of combination depends only on
//! the lane's length: not on the instruction level, nor on the number of lanes. The rounding error of
//! sums grows with the logarithm of the length, except for the [`BLOCK`] / 64 numbers that each
//! accumulator adds in order.

use std::marker::PhantomData;

use keyfold_kit::isa::{self, Isa, Work};

use super::convert::{Convert, To};
use super::group::{BLOCK, Group, PARTIALS, fold_in_order, reduce_group, side_by_side};
use super::monoid::Monoid;

/// The most blocks of a lane.
pub(crate) const MAX_BLOCKS: usize = 64;

struct Lanes<'a, C: Convert, M, R> {
    from: *const C::From,
    step: isize,
    len: usize,
    results: &'a mut [R],
    marker: PhantomData<(C, M)>,
}

impl<C: Convert, M: Monoid<Number = C::To>, R> Work for Lanes<'_, C, M, R>
where
    M::Number: To<R>,
{
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Lanes { from, step, len, results, .. } = self;
        if step == len as isize && len < PARTIALS {
            // SAFETY: the caller of `lanes` promises that the lanes are readable, and they adjoin.
            let x = unsafe { std::slice::from_raw_parts(from, len * results.len()) };
            let wide = side_by_side::<I>();
            return match len {
                2 if wide => lanes_of_length::<C, M, R, 2>(x, results),
                3 if wide => lanes_of_length::<C, M, R, 3>(x, results),
                4 if wide => lanes_of_length::<C, M, R, 4>(x, results),
                8 if wide => lanes_of_length::<C, M, R, 8>(x, results),
                _ => {
                    for (x, result) in x.chunks_exact(len).zip(results) {
                        *result = fold_in_order::<C, M>(x).convert();
                    }
                }
            };
        }
        let lane = |lane: usize| from.wrapping_offset(lane as isize * step);
        if len <= BLOCK {
            for (group, results) in results.chunks_mut(PARTIALS).enumerate() {
                let from = lane(group * PARTIALS);
                // SAFETY: the caller of `lanes` promises that each lane has that many elements.
                let group = unsafe { Group::<C, M>::new(from, step, results.len(), len) };
                let numbers = reduce_group::<I, C, M>(group);
                for (result, number) in results.iter_mut().zip(numbers) {
                    *result = number.convert();
                }
            }
        } else {
            for (at, result) in results.iter_mut().enumerate() {
                // SAFETY: as above.
                let lane = unsafe { std::slice::from_raw_parts(lane(at), len) };
                *result = I::call(LongLane::<C, M>(lane, PhantomData)).convert();
            }
        }
    }
}

/// Reduces lanes of `len` dense elements, a step apart: at least one element each, and at most
/// [`MAX_BLOCKS`] times [`BLOCK`]. The elements are converted in registers.
///
/// # Safety
/// The lanes' elements are readable.
pub(crate) unsafe fn lanes<C: Convert, M: Monoid<Number = C::To>, R>(
    from: *const C::From,
    step: isize,
    len: usize,
    results: &mut [R],
) where
    M::Number: To<R>,
{
    debug_assert!(len > 0 && len <= MAX_BLOCKS * BLOCK);
    isa::dispatch(Lanes::<C, M, R> { from, step, len, results, marker: PhantomData });
}

/// Reduces dense elements as one lane: at least one, and at most [`MAX_BLOCKS`] times [`BLOCK`].
#[inline(always)]
pub(crate) fn reduce_dense<I: Isa, C: Convert, M: Monoid<Number = C::To>>(
    x: &[C::From],
) -> M::Number {
    if x.len() <= BLOCK {
        // SAFETY: one lane, the slice.
        let group = unsafe { Group::<C, M>::new(x.as_ptr(), 0, 1, x.len()) };
        return reduce_group::<I, C, M>(group)[0];
    }
    I::call(LongLane::<C, M>(x, PhantomData))
}

/// A lane of more than one block.
struct LongLane<'a, C: Convert, M>(&'a [C::From], PhantomData<M>);

impl<C: Convert, M: Monoid<Number = C::To>> Work for LongLane<'_, C, M> {
    type Output = M::Number;
    #[inline(always)]
    fn run<I: Isa>(self) -> M::Number {
        fold_halves::<M, MAX_BLOCKS>(reduce_blocks::<I, C, M>(self.0))
    }
}

/// Reduces adjoining lanes of a constant length.
#[inline(always)]
fn lanes_of_length<C: Convert, M: Monoid<Number = C::To>, R, const LEN: usize>(
    x: &[C::From],
    results: &mut [R],
) where
    M::Number: To<R>,
{
    for (x, result) in x.chunks_exact(LEN).zip(results) {
        let mut all = C::one(x[0]);
        for x in &x[1..] {
            all = M::combine(all, C::one(*x));
        }
        *result = all.convert();
    }
}

/// Reduces each block of a lane; blocks that the lane doesn't have are the identity.
#[inline(always)]
pub(crate) fn reduce_blocks<I: Isa, C: Convert, M: Monoid<Number = C::To>>(
    x: &[C::From],
) -> [M::Number; MAX_BLOCKS] {
    let mut all = [M::IDENTITY; MAX_BLOCKS];
    let mut start = 0;
    while start < x.len() {
        // Whole blocks are reduced in groups; a shorter last block is reduced alone.
        let left = x.len() - start;
        let (count, len) =
            if left < BLOCK { (1, left) } else { (PARTIALS.min(left / BLOCK), BLOCK) };
        // SAFETY: the lanes are blocks of the slice.
        let group = unsafe { Group::<C, M>::new(x[start..].as_ptr(), BLOCK as isize, count, len) };
        let some = reduce_group::<I, C, M>(group);
        all[start / BLOCK..][..count].copy_from_slice(&some[..count]);
        if M::HAS_ABSORBING && some[..count].iter().any(|x| M::is_absorbing(*x)) {
            break;
        }
        start += count * len;
    }
    all
}

/// Folds the numbers by halves.
#[inline(always)]
fn fold_halves<M: Monoid, const COUNT: usize>(mut numbers: [M::Number; COUNT]) -> M::Number {
    let mut half = COUNT / 2;
    while half > 0 {
        for i in 0..half {
            numbers[i] = M::combine(numbers[i], numbers[i + half]);
        }
        half /= 2;
    }
    numbers[0]
}
