//! Lanes of dense numbers, each combined.
//!
//! A lane is cut into blocks of [`BLOCK`] numbers. Those of a block are combined in many independent
//! ways, which vectors do, down to [`FEW`]; then the few of sixteen blocks, which may be sixteen
//! lanes, are combined together, each with its neighbour, until one of each block is left. So short
//! lanes are vectors' work, too. The ways don't depend on the level, so neither does a sum; and the
//! error of sums grows with the logarithm of their length, but for the [`BLOCK`] / 64 numbers that are
//! added one after the other.

use std::marker::PhantomData;
use std::ops::Range;

use keyfold_kit::eval::memory::prefetch;
use keyfold_kit::isa::{self, Isa, Work};

use super::convert::{Convert, To};
use super::monoid::Monoid;

/// Numbers that are combined, or converted, at a time: they stay in the first-level cache.
pub(crate) const BLOCK: usize = 1024;

/// Blocks of the longest lane.
pub(crate) const BLOCKS: usize = 64;

/// Numbers that a block is combined into first, and blocks that are done together from then on.
pub(crate) const FEW: usize = 16;

/// Bytes from what is read to what is asked for: the processor's own guesses end with the page.
pub(crate) const AHEAD: isize = 4096;

struct Lanes<'a, C: Convert, M, R> {
    from: *const C::From,
    step: isize,
    len: usize,
    results: &'a mut [R],
    how: PhantomData<(C, M)>,
}

impl<C: Convert, M: Monoid<Number = C::To>, R> Work for Lanes<'_, C, M, R>
where
    M::Number: To<R>,
{
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Lanes { from, step, len, results, .. } = self;
        if step == len as isize && len < FEW {
            // SAFETY: the caller of `lanes` says that the lanes are there, and they adjoin.
            let x = unsafe { std::slice::from_raw_parts(from, len * results.len()) };
            return match len {
                2 => fixed::<C, M, R, 2>(x, results),
                3 => fixed::<C, M, R, 3>(x, results),
                4 => fixed::<C, M, R, 4>(x, results),
                8 => fixed::<C, M, R, 8>(x, results),
                _ => {
                    for (x, result) in x.chunks_exact(len).zip(results) {
                        *result = in_turn::<C, M>(x).convert();
                    }
                }
            };
        }
        let lane = |lane: usize| from.wrapping_offset(lane as isize * step);
        if len <= BLOCK {
            for (group, results) in results.chunks_mut(FEW).enumerate() {
                let from = lane(group * FEW);
                // SAFETY: the caller of `lanes` says that each lane has so many numbers there.
                let group = unsafe { Group::<C, M>::new(from, step, results.len(), len) };
                let numbers = together::<I, C, M>(group);
                for (result, number) in results.iter_mut().zip(numbers) {
                    *result = number.convert();
                }
            }
        } else {
            for (at, result) in results.iter_mut().enumerate() {
                // SAFETY: as above.
                let lane = unsafe { std::slice::from_raw_parts(lane(at), len) };
                *result = I::call(Long::<C, M>(lane, PhantomData)).convert();
            }
        }
    }
}

/// Combines the numbers of each lane, `len` dense ones a step after those of the lane before: at
/// least one, and at most [`BLOCKS`] times [`BLOCK`]. They are converted on the way, in registers.
///
/// # Safety
/// They can be read there.
pub(crate) unsafe fn lanes<C: Convert, M: Monoid<Number = C::To>, R>(
    from: *const C::From,
    step: isize,
    len: usize,
    results: &mut [R],
) where
    M::Number: To<R>,
{
    debug_assert!(len > 0 && len <= BLOCKS * BLOCK);
    isa::dispatch(Lanes::<C, M, R> { from, step, len, results, how: PhantomData });
}

/// Dense numbers, combined: as a lane is; at least one, and at most [`BLOCKS`] times [`BLOCK`].
#[inline(always)]
pub(crate) fn dense<I: Isa, C: Convert, M: Monoid<Number = C::To>>(x: &[C::From]) -> M::Number {
    if x.len() <= BLOCK {
        // SAFETY: one lane, the slice.
        let group = unsafe { Group::<C, M>::new(x.as_ptr(), 0, 1, x.len()) };
        return together::<I, C, M>(group)[0];
    }
    I::call(Long::<C, M>(x, PhantomData))
}

/// A lane of more than one block.
struct Long<'a, C: Convert, M>(&'a [C::From], PhantomData<M>);

impl<C: Convert, M: Monoid<Number = C::To>> Work for Long<'_, C, M> {
    type Output = M::Number;
    #[inline(always)]
    fn run<I: Isa>(self) -> M::Number {
        folded::<M, BLOCKS>(by_block::<I, C, M>(self.0))
    }
}

#[inline(always)]
fn in_turn<C: Convert, M: Monoid<Number = C::To>>(x: &[C::From]) -> M::Number {
    x.iter().fold(M::IDENTITY, |all, x| M::combine(all, C::one(*x)))
}

/// Of lanes of this length one after the other.
#[inline(always)]
fn fixed<C: Convert, M: Monoid<Number = C::To>, R, const LEN: usize>(
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

/// Some lanes, at most [`FEW`], of dense elements, a step apart: at least one element each, and at
/// most [`BLOCK`].
pub(crate) struct Group<C: Convert, M> {
    from: *const C::From,
    step: isize,
    count: usize,
    len: usize,
    how: PhantomData<M>,
}

impl<C: Convert, M> Group<C, M> {
    /// # Safety
    /// The elements can be read until the group is reduced.
    #[inline(always)]
    pub(crate) unsafe fn new(from: *const C::From, step: isize, count: usize, len: usize) -> Self {
        Group { from, step, count, len, how: PhantomData }
    }
}

/// The numbers of each lane, combined: compiled once per level for all that reduce lanes.
#[inline(always)]
pub(crate) fn together<I: Isa, C: Convert, M: Monoid<Number = C::To>>(
    group: Group<C, M>,
) -> [M::Number; FEW] {
    I::call(group)
}

impl<C: Convert, M: Monoid<Number = C::To>> Work for Group<C, M> {
    type Output = [M::Number; FEW];

    #[inline(always)]
    fn run<I: Isa>(self) -> [M::Number; FEW] {
        let Group { from, step, count, len, .. } = self;
        // SAFETY: the caller of `Group::new` says that each lane has so many elements there.
        let lane = |lane: usize| unsafe {
            std::slice::from_raw_parts(from.wrapping_offset(lane as isize * step), len)
        };
        let mut results = [M::IDENTITY; FEW];
        if len < FEW {
            for (at, result) in results.iter_mut().enumerate().take(count) {
                *result = in_turn::<C, M>(lane(at));
            }
        } else if count == 1 {
            results[0] = folded::<M, FEW>(few_of::<I, C, M, 1>(1, len, lane)[0]);
        } else {
            results = across::<I, M>(&few_of::<I, C, M, FEW>(count, len, lane));
        }
        results
    }
}

/// The numbers of each of `count` lanes, combined into a few; those behind them are of no use.
///
/// What doesn't fill vectors is laid side by side first, and then combined in one loop.
#[inline(always)]
fn few_of<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>, const ROWS: usize>(
    count: usize,
    len: usize,
    lane: impl Fn(usize) -> &'a [C::From],
) -> [[M::Number; FEW]; ROWS] {
    let mut at = FEW;
    let mut all = if len >= ways::<M>() {
        at = len - len % ways::<M>();
        let mut all = [[M::IDENTITY; FEW]; ROWS];
        for (row, all) in all.iter_mut().enumerate().take(count) {
            let vectors = Vectors::<C, M>(&lane(row)[..at], PhantomData);
            // A call per lane would take longer than a short lane does.
            *all = if ROWS == 1 { I::call(vectors) } else { vectors.run::<I>() };
        }
        all
    } else {
        convert_few::<I, C, M, ROWS>(count, |at| &lane(at)[..FEW])
    };
    if at < len {
        rest::<I, C, M, ROWS>(&mut all, count, at..len, lane);
    }
    all
}

/// A few elements of each lane as numbers: laid side by side first, so that one loop, always of the
/// same length, converts them.
#[inline(always)]
fn convert_few<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>, const ROWS: usize>(
    count: usize,
    few: impl Fn(usize) -> &'a [C::From],
) -> [[C::To; FEW]; ROWS] {
    let mut to = [[M::IDENTITY; FEW]; ROWS];
    if size_of::<C::From>() == size_of::<C::To>() && size_of::<C::To>() >= 8 {
        // There is next to nothing to convert.
        for (at, to) in to.iter_mut().enumerate().take(count) {
            C::all::<I>(few(at), to);
        }
        return to;
    }
    let mut elements = [[few(0)[0]; FEW]; ROWS];
    for (at, elements) in elements.iter_mut().enumerate().take(count) {
        elements.copy_from_slice(few(at));
    }
    C::all::<I>(elements.as_flattened(), to.as_flattened_mut());
    to
}

/// Combines the numbers in a range of each lane with the few that there are of it.
#[inline(always)]
fn rest<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>, const ROWS: usize>(
    all: &mut [[M::Number; FEW]; ROWS],
    count: usize,
    range: Range<usize>,
    lane: impl Fn(usize) -> &'a [C::From],
) {
    let (mut at, len) = (range.start, range.end);
    while at < len {
        // At the end the last few, without those that were there already.
        let start = at.min(len - FEW);
        let mut next = convert_few::<I, C, M, ROWS>(count, |at| &lane(at)[start..start + FEW]);
        if start < at {
            let seen = at - start;
            for (i, x) in next.as_flattened_mut().iter_mut().enumerate() {
                *x = if i % FEW < seen { M::IDENTITY } else { *x };
            }
        }
        for (all, x) in all.as_flattened_mut().iter_mut().zip(next.as_flattened()) {
            *all = M::combine(*all, *x);
        }
        at = start + FEW;
    }
}

/// Each block's numbers combined, and what changes nothing for those that aren't there.
#[inline(always)]
pub(crate) fn by_block<I: Isa, C: Convert, M: Monoid<Number = C::To>>(
    x: &[C::From],
) -> [M::Number; BLOCKS] {
    let mut all = [M::IDENTITY; BLOCKS];
    let mut start = 0;
    while start < x.len() {
        // Whole blocks together; the last one, if it is shorter, alone.
        let left = x.len() - start;
        let (count, len) = if left < BLOCK { (1, left) } else { (FEW.min(left / BLOCK), BLOCK) };
        // SAFETY: the lanes are blocks of the slice.
        let group = unsafe { Group::<C, M>::new(x[start..].as_ptr(), BLOCK as isize, count, len) };
        let some = together::<I, C, M>(group);
        all[start / BLOCK..][..count].copy_from_slice(&some[..count]);
        if M::DECIDES && some[..count].iter().any(|x| M::is_final(*x)) {
            break;
        }
        start += count * len;
    }
    all
}

/// All of them, combined.
#[inline(always)]
fn folded<M: Monoid, const COUNT: usize>(mut numbers: [M::Number; COUNT]) -> M::Number {
    let mut half = COUNT / 2;
    while half > 0 {
        for i in 0..half {
            numbers[i] = M::combine(numbers[i], numbers[i + half]);
        }
        half /= 2;
    }
    numbers[0]
}

/// Numbers in 256 bytes, four of the widest vectors: so many independent ways there are.
#[inline(always)]
const fn ways<M: Monoid>() -> usize {
    match size_of::<M::Number>() {
        1 => 256,
        2 => 128,
        4 => 64,
        8 => 32,
        _ => 16,
    }
}

/// Elements that fill [`ways`] once or more.
struct Vectors<'a, C: Convert, M>(&'a [C::From], PhantomData<M>);

impl<C: Convert, M: Monoid<Number = C::To>> Work for Vectors<'_, C, M> {
    type Output = [M::Number; FEW];
    #[inline(always)]
    fn run<I: Isa>(self) -> [M::Number; FEW] {
        match ways::<M>() {
            256 => in_ways::<I, C, M, 256>(self.0),
            128 => in_ways::<I, C, M, 128>(self.0),
            64 => in_ways::<I, C, M, 64>(self.0),
            32 => in_ways::<I, C, M, 32>(self.0),
            _ => in_ways::<I, C, M, 16>(self.0),
        }
    }
}

#[inline(always)]
fn in_ways<I: Isa, C: Convert, M: Monoid<Number = C::To>, const WAYS: usize>(
    x: &[C::From],
) -> [M::Number; FEW] {
    if M::SPECIAL
        && let Some(few) = quickly::<I, C, M, WAYS>(x)
    {
        return few;
    }
    let mut all = [M::IDENTITY; WAYS];
    let mut at = 0;
    // With an iterator of chunks all the ways live in memory instead of registers.
    while x.len() - at >= WAYS {
        let x = &x[at..at + WAYS];
        for line in (0..WAYS * size_of::<C::From>()).step_by(64) {
            prefetch(x.as_ptr().cast::<u8>().wrapping_offset(AHEAD + line as isize));
        }
        if C::IN_GROUPS {
            let mut numbers = [M::IDENTITY; WAYS];
            C::all::<I>(x, &mut numbers);
            for i in 0..WAYS {
                all[i] = M::combine(all[i], numbers[i]);
            }
        } else {
            for i in 0..WAYS {
                all[i] = M::combine(all[i], C::one(x[i]));
            }
        }
        at += WAYS;
    }
    into_few::<M, WAYS>(all)
}

/// The same if no number is special, since that is hardly ever so.
#[inline(always)]
fn quickly<I: Isa, C: Convert, M: Monoid<Number = C::To>, const WAYS: usize>(
    x: &[C::From],
) -> Option<[M::Number; FEW]> {
    let mut all = [M::IDENTITY; WAYS];
    let mut at = 0;
    while x.len() - at >= WAYS {
        let x = &x[at..at + WAYS];
        for line in (0..WAYS * size_of::<C::From>()).step_by(64) {
            prefetch(x.as_ptr().cast::<u8>().wrapping_offset(AHEAD + line as isize));
        }
        let mut special = false;
        if C::IN_GROUPS {
            let mut numbers = [M::IDENTITY; WAYS];
            C::all::<I>(x, &mut numbers);
            for i in 0..WAYS {
                all[i] = M::quick(all[i], numbers[i]);
                special |= M::is_special(numbers[i]);
            }
        } else {
            for i in 0..WAYS {
                let x = C::one(x[i]);
                all[i] = M::quick(all[i], x);
                special |= M::is_special(x);
            }
        }
        if special {
            return None;
        }
        at += WAYS;
    }
    Some(into_few::<M, WAYS>(all))
}

#[inline(always)]
fn into_few<M: Monoid, const WAYS: usize>(mut all: [M::Number; WAYS]) -> [M::Number; FEW] {
    let mut half = WAYS / 2;
    while half >= FEW {
        for i in 0..half {
            all[i] = M::combine(all[i], all[i + half]);
        }
        half /= 2;
    }
    // Copied as a whole: indexed one by one, all of them would live in memory.
    let mut few = [M::IDENTITY; FEW];
    few.copy_from_slice(&all[..FEW]);
    few
}

/// The numbers of each row, combined: compiled once per level for all that have such rows.
#[inline(always)]
pub(crate) fn across<I: Isa, M: Monoid>(rows: &[[M::Number; FEW]; FEW]) -> [M::Number; FEW] {
    I::call(Across::<M>(rows))
}

struct Across<'a, M: Monoid>(&'a [[M::Number; FEW]; FEW]);

impl<M: Monoid> Work for Across<'_, M> {
    type Output = [M::Number; FEW];
    #[inline(always)]
    fn run<I: Isa>(self) -> [M::Number; FEW] {
        let mut results = [M::IDENTITY; FEW];
        let (mut a, mut b, mut c) = ([M::IDENTITY; 128], [M::IDENTITY; 64], [M::IDENTITY; 32]);
        pairs::<M>(self.0.as_flattened(), &mut a);
        pairs::<M>(&a, &mut b);
        pairs::<M>(&b, &mut c);
        pairs::<M>(&c, &mut results);
        results
    }
}

#[inline(always)]
fn pairs<M: Monoid>(x: &[M::Number], results: &mut [M::Number]) {
    for (result, x) in results.iter_mut().zip(x.chunks_exact(2)) {
        *result = M::combine(x[0], x[1]);
    }
}
