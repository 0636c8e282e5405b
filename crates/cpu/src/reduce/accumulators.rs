//! Independent accumulators: the elements of a lane, combined in vector registers.

use std::any::TypeId;
use std::hint::black_box;
use std::marker::PhantomData;

use keyfold_kit::interpreter::access::prefetch;
use keyfold_kit::isa::{Isa, Work};

use super::convert::Convert;
use super::group::PARTIALS;
use super::monoid::Monoid;

/// The prefetch distance in bytes; the processor's own prefetching ends with the page.
pub(crate) const PREFETCH_BYTES: isize = 4096;

/// The number of independent accumulators: 256 bytes, four of the widest vectors.
#[inline(always)]
pub(crate) const fn accumulators<M: Monoid>() -> usize {
    match size_of::<M::Number>() {
        1 => 256,
        2 => 128,
        4 => 64,
        8 => 32,
        _ => 16,
    }
}

/// The whole multiples of [`accumulators`] elements of a lane.
pub(crate) struct WholeVectors<'a, C: Convert, M>(
    pub(crate) &'a [C::From],
    pub(crate) PhantomData<M>,
);

impl<C: Convert, M: Monoid<Number = C::To>> Work for WholeVectors<'_, C, M> {
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

/// As [`accumulate_blocks`] for elements without special numbers, the usual case; `None` if there is
/// one.
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
    if TypeId::of::<M::Number>() == TypeId::of::<i32>() {
        // Otherwise the compiler arranges these accumulators in the loop as this fold reads them, by 114 shuffles for
        // each 64 elements: four times the time. Other types' are better off in registers throughout.
        all = black_box(all);
    }
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
