//! Reductions of dense lanes.
//!
//! A lane is divided into blocks of [`BLOCK`] elements. A block's elements are combined in many
//! independent accumulators, which vectorises, then folded to [`PARTIALS`] partial results. The partial
//! results of up to sixteen blocks, which may belong to sixteen lanes, are folded together, neighbour
//! with neighbour, to one result per block; so short lanes are vectorised, too. The order of combination
//! depends only on the lane's length: not on the instruction level, nor on the number of lanes. The
//! rounding error of sums grows with the logarithm of the length, except for the [`BLOCK`] / 64 numbers
//! that each accumulator adds in order.

use std::marker::PhantomData;
use std::ops::Range;

use keyfold_kit::interpreter::access::prefetch;
use keyfold_kit::isa::{self, Isa, Work};

use super::convert::{Convert, To};
use super::monoid::Monoid;

/// Elements that are combined, or converted, at a time: they stay in the L1 cache.
pub(crate) const BLOCK: usize = 1024;

/// The most blocks of a lane.
pub(crate) const MAX_BLOCKS: usize = 64;

/// Partial results of a block, and blocks that are folded together.
pub(crate) const PARTIALS: usize = 16;

/// The prefetch distance in bytes; the processor's own prefetching ends with the page.
pub(crate) const PREFETCH_BYTES: isize = 4096;

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
            return match len {
                2 => lanes_of_length::<C, M, R, 2>(x, results),
                3 => lanes_of_length::<C, M, R, 3>(x, results),
                4 => lanes_of_length::<C, M, R, 4>(x, results),
                8 => lanes_of_length::<C, M, R, 8>(x, results),
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

#[inline(always)]
fn fold_in_order<C: Convert, M: Monoid<Number = C::To>>(x: &[C::From]) -> M::Number {
    x.iter().fold(M::IDENTITY, |all, x| M::combine(all, C::one(*x)))
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

/// At most [`PARTIALS`] lanes of dense elements, a step apart: at least one element each, and at most
/// [`BLOCK`].
pub(crate) struct Group<C: Convert, M> {
    from: *const C::From,
    step: isize,
    count: usize,
    len: usize,
    marker: PhantomData<M>,
}

impl<C: Convert, M> Group<C, M> {
    /// # Safety
    /// The elements can be read until the group is reduced.
    #[inline(always)]
    pub(crate) unsafe fn new(from: *const C::From, step: isize, count: usize, len: usize) -> Self {
        Group { from, step, count, len, marker: PhantomData }
    }
}

/// Reduces each lane of a group; compiled once per level for all callers.
#[inline(always)]
pub(crate) fn reduce_group<I: Isa, C: Convert, M: Monoid<Number = C::To>>(
    group: Group<C, M>,
) -> [M::Number; PARTIALS] {
    I::call(group)
}

impl<C: Convert, M: Monoid<Number = C::To>> Work for Group<C, M> {
    type Output = [M::Number; PARTIALS];

    #[inline(always)]
    fn run<I: Isa>(self) -> [M::Number; PARTIALS] {
        let Group { from, step, count, len, .. } = self;
        // SAFETY: the caller of `Group::new` says that each lane has so many elements there.
        let lane = |lane: usize| unsafe {
            std::slice::from_raw_parts(from.wrapping_offset(lane as isize * step), len)
        };
        let mut results = [M::IDENTITY; PARTIALS];
        if len < PARTIALS {
            for (at, result) in results.iter_mut().enumerate().take(count) {
                *result = fold_in_order::<C, M>(lane(at));
            }
        } else if count == 1 {
            // In the order of `fold_groups`, so that equal lanes have equal sums in groups of any size.
            results[0] = fold_neighbours::<M>(&partials_of::<I, C, M, 1>(1, len, lane)[0]);
        } else {
            results = fold_groups::<I, M>(&partials_of::<I, C, M, PARTIALS>(count, len, lane));
        }
        results
    }
}

/// Combines the elements of each of `count` lanes into partial results; the rows after them are
/// unspecified. The tails of all lanes, which don't fill the accumulators, are loaded side by side and
/// combined in one loop.
#[inline(always)]
fn partials_of<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>, const ROWS: usize>(
    count: usize,
    len: usize,
    lane: impl Fn(usize) -> &'a [C::From],
) -> [[M::Number; PARTIALS]; ROWS] {
    let mut at = PARTIALS;
    let mut all = if len >= accumulators::<M>() {
        at = len - len % accumulators::<M>();
        let mut all = [[M::IDENTITY; PARTIALS]; ROWS];
        for (row, all) in all.iter_mut().enumerate().take(count) {
            let vectors = Vectors::<C, M>(&lane(row)[..at], PhantomData);
            // A call per lane would take longer than a short lane does.
            *all = if ROWS == 1 { I::call(vectors) } else { vectors.run::<I>() };
        }
        all
    } else {
        load_partials::<I, C, M, ROWS>(count, |at| &lane(at)[..PARTIALS])
    };
    if at < len {
        combine_tail::<I, C, M, ROWS>(&mut all, count, at..len, lane);
    }
    all
}

/// Loads [`PARTIALS`] elements of each lane as numbers: side by side, so that one loop of constant length
/// converts them.
#[inline(always)]
fn load_partials<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>, const ROWS: usize>(
    count: usize,
    few: impl Fn(usize) -> &'a [C::From],
) -> [[C::To; PARTIALS]; ROWS] {
    let mut to = [[M::IDENTITY; PARTIALS]; ROWS];
    if size_of::<C::From>() == size_of::<C::To>() && size_of::<C::To>() >= 8 {
        // Conversions between types of 8 bytes and more are cheap enough without the copy.
        for (at, to) in to.iter_mut().enumerate().take(count) {
            C::all::<I>(few(at), to);
        }
        return to;
    }
    let mut elements = [[few(0)[0]; PARTIALS]; ROWS];
    for (at, elements) in elements.iter_mut().enumerate().take(count) {
        elements.copy_from_slice(few(at));
    }
    C::all::<I>(elements.as_flattened(), to.as_flattened_mut());
    to
}

/// Combines the elements in a range of each lane with the lane's partial results.
#[inline(always)]
fn combine_tail<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>, const ROWS: usize>(
    all: &mut [[M::Number; PARTIALS]; ROWS],
    count: usize,
    range: Range<usize>,
    lane: impl Fn(usize) -> &'a [C::From],
) {
    let (mut at, len) = (range.start, range.end);
    while at < len {
        // The last step loads the lane's last elements; those combined before are replaced by the
        // identity.
        let start = at.min(len - PARTIALS);
        let mut next =
            load_partials::<I, C, M, ROWS>(count, |at| &lane(at)[start..start + PARTIALS]);
        if start < at {
            let seen = at - start;
            for (i, x) in next.as_flattened_mut().iter_mut().enumerate() {
                *x = if i % PARTIALS < seen { M::IDENTITY } else { *x };
            }
        }
        for (all, x) in all.as_flattened_mut().iter_mut().zip(next.as_flattened()) {
            *all = M::combine(*all, *x);
        }
        at = start + PARTIALS;
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

/// The number of independent accumulators: 256 bytes, four of the widest vectors.
#[inline(always)]
const fn accumulators<M: Monoid>() -> usize {
    match size_of::<M::Number>() {
        1 => 256,
        2 => 128,
        4 => 64,
        8 => 32,
        _ => 16,
    }
}

/// The whole multiples of [`accumulators`] elements of a lane.
struct Vectors<'a, C: Convert, M>(&'a [C::From], PhantomData<M>);

impl<C: Convert, M: Monoid<Number = C::To>> Work for Vectors<'_, C, M> {
    type Output = [M::Number; PARTIALS];
    #[inline(always)]
    fn run<I: Isa>(self) -> [M::Number; PARTIALS] {
        match accumulators::<M>() {
            256 => accumulate_blocks::<I, C, M, 256>(self.0),
            128 => accumulate_blocks::<I, C, M, 128>(self.0),
            64 => accumulate_blocks::<I, C, M, 64>(self.0),
            32 => accumulate_blocks::<I, C, M, 32>(self.0),
            _ => accumulate_blocks::<I, C, M, 16>(self.0),
        }
    }
}

#[inline(always)]
fn accumulate_blocks<I: Isa, C: Convert, M: Monoid<Number = C::To>, const ACCUMULATORS: usize>(
    x: &[C::From],
) -> [M::Number; PARTIALS] {
    if M::HAS_SPECIAL
        && let Some(few) = accumulate_ordinary::<I, C, M, ACCUMULATORS>(x)
    {
        return few;
    }
    let mut all = [M::IDENTITY; ACCUMULATORS];
    let mut at = 0;
    // With an iterator of chunks the accumulators would live in memory instead of registers.
    while x.len() - at >= ACCUMULATORS {
        let x = &x[at..at + ACCUMULATORS];
        for line in (0..ACCUMULATORS * size_of::<C::From>()).step_by(64) {
            prefetch(x.as_ptr().cast::<u8>().wrapping_offset(PREFETCH_BYTES + line as isize));
        }
        if C::IN_GROUPS {
            let mut numbers = [M::IDENTITY; ACCUMULATORS];
            C::all::<I>(x, &mut numbers);
            for i in 0..ACCUMULATORS {
                all[i] = M::combine(all[i], numbers[i]);
            }
        } else {
            for i in 0..ACCUMULATORS {
                all[i] = M::combine(all[i], C::one(x[i]));
            }
        }
        at += ACCUMULATORS;
    }
    fold_to_partials::<M, ACCUMULATORS>(all)
}

/// As [`accumulate_blocks`] for elements without special numbers, which is the usual case; `None` if there is one.
#[inline(always)]
fn accumulate_ordinary<I: Isa, C: Convert, M: Monoid<Number = C::To>, const ACCUMULATORS: usize>(
    x: &[C::From],
) -> Option<[M::Number; PARTIALS]> {
    let mut all = [M::IDENTITY; ACCUMULATORS];
    let mut at = 0;
    while x.len() - at >= ACCUMULATORS {
        let x = &x[at..at + ACCUMULATORS];
        for line in (0..ACCUMULATORS * size_of::<C::From>()).step_by(64) {
            prefetch(x.as_ptr().cast::<u8>().wrapping_offset(PREFETCH_BYTES + line as isize));
        }
        let mut special = false;
        if C::IN_GROUPS {
            let mut numbers = [M::IDENTITY; ACCUMULATORS];
            C::all::<I>(x, &mut numbers);
            for i in 0..ACCUMULATORS {
                all[i] = M::combine_ordinary(all[i], numbers[i]);
                special |= M::is_special(numbers[i]);
            }
        } else {
            for i in 0..ACCUMULATORS {
                let x = C::one(x[i]);
                all[i] = M::combine_ordinary(all[i], x);
                special |= M::is_special(x);
            }
        }
        if special {
            return None;
        }
        at += ACCUMULATORS;
    }
    Some(fold_to_partials::<M, ACCUMULATORS>(all))
}

#[inline(always)]
fn fold_to_partials<M: Monoid, const ACCUMULATORS: usize>(
    mut all: [M::Number; ACCUMULATORS],
) -> [M::Number; PARTIALS] {
    let mut half = ACCUMULATORS / 2;
    while half >= PARTIALS {
        for i in 0..half {
            all[i] = M::combine(all[i], all[i + half]);
        }
        half /= 2;
    }
    // Copied as a whole: indexed one by one, the accumulators would live in memory.
    let mut few = [M::IDENTITY; PARTIALS];
    few.copy_from_slice(&all[..PARTIALS]);
    few
}

/// Folds the partial results of each row; compiled once per level for all callers.
#[inline(always)]
pub(crate) fn fold_groups<I: Isa, M: Monoid>(
    rows: &[[M::Number; PARTIALS]; PARTIALS],
) -> [M::Number; PARTIALS] {
    I::call(FoldGroups::<M>(rows))
}

struct FoldGroups<'a, M: Monoid>(&'a [[M::Number; PARTIALS]; PARTIALS]);

impl<M: Monoid> Work for FoldGroups<'_, M> {
    type Output = [M::Number; PARTIALS];
    #[inline(always)]
    fn run<I: Isa>(self) -> [M::Number; PARTIALS] {
        let mut results = [M::IDENTITY; PARTIALS];
        let (mut a, mut b, mut c) = ([M::IDENTITY; 128], [M::IDENTITY; 64], [M::IDENTITY; 32]);
        combine_neighbours::<M>(self.0.as_flattened(), &mut a);
        combine_neighbours::<M>(&a, &mut b);
        combine_neighbours::<M>(&b, &mut c);
        combine_neighbours::<M>(&c, &mut results);
        results
    }
}

/// Folds the partial results of one lane, neighbour with neighbour.
#[inline(always)]
fn fold_neighbours<M: Monoid>(partials: &[M::Number; PARTIALS]) -> M::Number {
    let (mut a, mut b, mut c) = ([M::IDENTITY; 8], [M::IDENTITY; 4], [M::IDENTITY; 2]);
    combine_neighbours::<M>(partials, &mut a);
    combine_neighbours::<M>(&a, &mut b);
    combine_neighbours::<M>(&b, &mut c);
    M::combine(c[0], c[1])
}

/// Combines each pair of neighbours.
#[inline(always)]
fn combine_neighbours<M: Monoid>(x: &[M::Number], results: &mut [M::Number]) {
    for (result, x) in results.iter_mut().zip(x.chunks_exact(2)) {
        *result = M::combine(x[0], x[1]);
    }
}
