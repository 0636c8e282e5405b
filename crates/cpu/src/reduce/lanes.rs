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
        // SAFETY: the caller of `lanes` says that each lane has so many numbers there.
        let lane = |lane: usize| unsafe {
            std::slice::from_raw_parts(from.wrapping_offset(lane as isize * step), len)
        };
        if len < FEW {
            for (at, result) in results.iter_mut().enumerate() {
                *result = in_turn::<C, M>(lane(at)).convert();
            }
        } else if len <= BLOCK {
            for (group, results) in results.chunks_mut(FEW).enumerate() {
                let numbers = together::<I, C, M>(results.len(), len, |at| lane(group * FEW + at));
                for (result, number) in results.iter_mut().zip(numbers) {
                    *result = number.convert();
                }
            }
        } else {
            for (at, result) in results.iter_mut().enumerate() {
                *result = folded::<M, BLOCKS>(by_block::<I, C, M>(lane(at)))[0].convert();
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

/// Dense numbers, combined: as a lane is.
#[inline(always)]
pub(crate) fn dense<I: Isa, C: Convert, M: Monoid<Number = C::To>>(x: &[C::From]) -> M::Number {
    match x.len() {
        0..FEW => in_turn::<C, M>(x),
        FEW..=BLOCK => together::<I, C, M>(1, x.len(), |_| x)[0],
        _ => folded::<M, BLOCKS>(by_block::<I, C, M>(x))[0],
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

/// Of some lanes, at most [`FEW`], which have at least that many numbers each, and at most a block.
///
/// What doesn't fill vectors is laid side by side first, and then combined in one loop.
#[inline(always)]
pub(crate) fn together<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>>(
    count: usize,
    len: usize,
    lane: impl Fn(usize) -> &'a [C::From],
) -> [M::Number; FEW] {
    let mut all = [[M::IDENTITY; FEW]; FEW];
    let mut at = FEW;
    if len >= ways::<M>() {
        at = len - len % ways::<M>();
        for (all, lane) in all.iter_mut().zip((0..count).map(&lane)) {
            *all = whole_vectors::<I, C, M>(lane, at);
        }
    } else {
        convert_few::<I, C>(&mut all[..count], |at| &lane(at)[..FEW]);
    }
    if at < len {
        rest::<I, C, M>(&mut all[..count], at..len, lane);
    }
    if count == 1 { folded::<M, FEW>(all[0]) } else { across::<M>(&all) }
}

/// A few elements of each lane as numbers: laid side by side first, so that one loop converts them.
#[inline(always)]
fn convert_few<'a, I: Isa, C: Convert>(
    to: &mut [[C::To; FEW]],
    few: impl Fn(usize) -> &'a [C::From],
) {
    if size_of::<C::From>() == size_of::<C::To>() && size_of::<C::To>() >= 8 {
        // There is next to nothing to convert.
        for (at, to) in to.iter_mut().enumerate() {
            C::all::<I>(few(at), to);
        }
        return;
    }
    let mut elements = [[few(0)[0]; FEW]; FEW];
    for (at, elements) in elements.iter_mut().enumerate().take(to.len()) {
        elements.copy_from_slice(few(at));
    }
    C::all::<I>(elements[..to.len()].as_flattened(), to.as_flattened_mut());
}

/// Combines the numbers in a range of each lane with the few that there are of it.
#[inline(always)]
fn rest<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>>(
    all: &mut [[M::Number; FEW]],
    range: Range<usize>,
    lane: impl Fn(usize) -> &'a [C::From],
) {
    let count = all.len();
    let mut next = [[M::IDENTITY; FEW]; FEW];
    let (mut at, len) = (range.start, range.end);
    while at < len {
        // At the end the last few, without those that were there already.
        let start = at.min(len - FEW);
        convert_few::<I, C>(&mut next[..count], |at| &lane(at)[start..start + FEW]);
        let next = next[..count].as_flattened_mut();
        if start < at {
            let seen = at - start;
            for (i, x) in next.iter_mut().enumerate() {
                *x = if i % FEW < seen { M::IDENTITY } else { *x };
            }
        }
        for (all, x) in all.as_flattened_mut().iter_mut().zip(next) {
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
    let (whole, rest) = x.as_chunks::<BLOCK>();
    for (numbers, blocks) in all.chunks_exact_mut(FEW).zip(whole.chunks(FEW)) {
        let some = together::<I, C, M>(blocks.len(), BLOCK, |at| &blocks[at]);
        let some = &some[..blocks.len()];
        numbers[..blocks.len()].copy_from_slice(some);
        if M::DECIDES && some.iter().any(|x| M::is_final(*x)) {
            return all;
        }
    }
    match rest.len() {
        0 => {}
        1..FEW => all[whole.len()] = in_turn::<C, M>(rest),
        len => all[whole.len()] = together::<I, C, M>(1, len, |_| rest)[0],
    }
    all
}

/// All combined into the first.
#[inline(always)]
fn folded<M: Monoid, const COUNT: usize>(mut numbers: [M::Number; COUNT]) -> [M::Number; COUNT] {
    let mut half = COUNT / 2;
    while half > 0 {
        for i in 0..half {
            numbers[i] = M::combine(numbers[i], numbers[i + half]);
        }
        half /= 2;
    }
    numbers
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

/// The numbers up to a place, which fill [`ways`] once or more, combined into a few.
#[inline(always)]
fn whole_vectors<I: Isa, C: Convert, M: Monoid<Number = C::To>>(
    x: &[C::From],
    end: usize,
) -> [M::Number; FEW] {
    match ways::<M>() {
        256 => in_ways::<I, C, M, 256>(x, end),
        128 => in_ways::<I, C, M, 128>(x, end),
        64 => in_ways::<I, C, M, 64>(x, end),
        32 => in_ways::<I, C, M, 32>(x, end),
        _ => in_ways::<I, C, M, 16>(x, end),
    }
}

#[inline(always)]
fn in_ways<I: Isa, C: Convert, M: Monoid<Number = C::To>, const WAYS: usize>(
    x: &[C::From],
    end: usize,
) -> [M::Number; FEW] {
    if M::SPECIAL
        && let Some(few) = quickly::<I, C, M, WAYS>(x, end)
    {
        return few;
    }
    let mut all = [M::IDENTITY; WAYS];
    let mut at = 0;
    // With an iterator of chunks all the ways live in memory instead of registers.
    while end - at >= WAYS {
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
    end: usize,
) -> Option<[M::Number; FEW]> {
    let mut all = [M::IDENTITY; WAYS];
    let mut at = 0;
    while end - at >= WAYS {
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

/// The numbers of each row, combined.
#[inline(always)]
pub(crate) fn across<M: Monoid>(rows: &[[M::Number; FEW]; FEW]) -> [M::Number; FEW] {
    let mut results = [M::IDENTITY; FEW];
    let (mut a, mut b, mut c) = ([M::IDENTITY; 128], [M::IDENTITY; 64], [M::IDENTITY; 32]);
    pairs::<M>(rows.as_flattened(), &mut a);
    pairs::<M>(&a, &mut b);
    pairs::<M>(&b, &mut c);
    pairs::<M>(&c, &mut results);
    results
}

#[inline(always)]
fn pairs<M: Monoid>(x: &[M::Number], results: &mut [M::Number]) {
    for (result, x) in results.iter_mut().zip(x.chunks_exact(2)) {
        *result = M::combine(x[0], x[1]);
    }
}
