//! Groups of lanes: up to sixteen lanes, or blocks of a long lane, are reduced together.
//!
//! A lane's elements are combined in many independent accumulators, which vectorises, and these are
//! folded to [`PARTIALS`] partial results ([`super::accumulators`]). The partial results of all lanes of the
//! group are then folded together, neighbour with neighbour, to one result per lane; so short lanes are
//! vectorised, too.

use std::marker::PhantomData;
use std::ops::Range;

use keyfold_kit::isa::{Isa, Level, Work};

use super::accumulators::{WholeVectors, accumulators};
use super::convert::Convert;
use super::monoid::Monoid;

/// Elements that are combined, or converted, at a time: they stay in the L1 cache.
pub(crate) const BLOCK: usize = 1024;

/// Partial results of a block, and blocks that are folded together.
pub(crate) const PARTIALS: usize = 16;

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
    /// There are from 1 to [`PARTIALS`] lanes, whose elements can be read until the group is reduced.
    #[inline(always)]
    pub(crate) unsafe fn new(from: *const C::From, step: isize, count: usize, len: usize) -> Self {
        Group { from, step, count, len, marker: PhantomData }
    }

    /// The same lanes, reduced by another monoid.
    #[inline(always)]
    fn by<N>(self) -> Group<C, N> {
        let Group { from, step, count, len, .. } = self;
        Group { from, step, count, len, marker: PhantomData }
    }
}

/// Reduces each lane of a group; compiled once per level for all callers.
#[inline(always)]
pub(crate) fn reduce_group<I: Isa, C: Convert, M: Monoid<Number = C::To>>(
    group: Group<C, M>,
) -> [M::Number; PARTIALS] {
    I::call(group.by::<M::Plain>())
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
            let [partials] = partials_of::<I, C, M, 1>(len, lane);
            results[0] = fold_neighbours::<M>(&partials);
        } else if count == PARTIALS && side_by_side::<I>() {
            results = fold_groups::<I, M>(&partials_of::<I, C, M, PARTIALS>(len, lane));
        } else {
            let mut all = [[M::IDENTITY; PARTIALS]; PARTIALS];
            for (at, all) in all.iter_mut().enumerate().take(count) {
                [*all] = partials_of::<I, C, M, 1>(len, |_| lane(at));
            }
            results = fold_groups::<I, M>(&all);
        }
        results
    }
}

/// Whether the lanes of a full group are combined side by side. On the baseline of x86-64, for processors from before
/// 2013, they are combined one by one: the loops for several lanes were most of a reduction's code there.
pub(crate) const fn side_by_side<I: Isa>() -> bool {
    !cfg!(target_arch = "x86_64") || !matches!(I::LEVEL, Level::Baseline)
}

/// Combines the elements of each lane into partial results. The tails of all lanes, which don't fill the accumulators,
/// are loaded side by side and combined in one loop.
///
/// The number of lanes is a constant: where it was a variable of at most [`PARTIALS`] the compiler kept the lanes in
/// memory, or in registers that it selected from, as it came, and twice the time was a matter of luck.
#[inline(always)]
fn partials_of<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>, const ROWS: usize>(
    len: usize,
    lane: impl Fn(usize) -> &'a [C::From],
) -> [[M::Number; PARTIALS]; ROWS] {
    let mut at = PARTIALS;
    let mut all = if len >= accumulators::<M>() {
        at = len - len % accumulators::<M>();
        let mut all = [[M::IDENTITY; PARTIALS]; ROWS];
        for (row, all) in all.iter_mut().enumerate() {
            let vectors = WholeVectors::<C, M>(&lane(row)[..at], PhantomData);
            // A call per lane would take longer than a short lane does.
            *all = if ROWS == 1 { I::call(vectors) } else { vectors.run::<I>() };
        }
        all
    } else {
        load_partials::<I, C, M, ROWS>(|at| &lane(at)[..PARTIALS])
    };
    if at < len {
        combine_tail::<I, C, M, ROWS>(&mut all, at..len, lane);
    }
    all
}

/// Loads [`PARTIALS`] elements of each lane as numbers: side by side, so that one loop of constant length
/// converts them.
#[inline(always)]
fn load_partials<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>, const ROWS: usize>(
    few: impl Fn(usize) -> &'a [C::From],
) -> [[C::To; PARTIALS]; ROWS] {
    let mut to = [[M::IDENTITY; PARTIALS]; ROWS];
    if size_of::<C::From>() == size_of::<C::To>() && size_of::<C::To>() >= 8 {
        // Conversions between types of 8 bytes and more are cheap enough without the copy.
        for (at, to) in to.iter_mut().enumerate() {
            C::all::<I>(few(at), to);
        }
        return to;
    }
    let mut elements = [[few(0)[0]; PARTIALS]; ROWS];
    for (at, elements) in elements.iter_mut().enumerate() {
        elements.copy_from_slice(few(at));
    }
    C::all::<I>(elements.as_flattened(), to.as_flattened_mut());
    to
}

/// Combines the elements in a range of each lane with the lane's partial results.
#[inline(always)]
fn combine_tail<'a, I: Isa, C: Convert, M: Monoid<Number = C::To>, const ROWS: usize>(
    all: &mut [[M::Number; PARTIALS]; ROWS],
    range: Range<usize>,
    lane: impl Fn(usize) -> &'a [C::From],
) {
    let (mut at, len) = (range.start, range.end);
    while at < len {
        // The last step loads the lane's last elements; those combined before are replaced by the
        // identity.
        let start = at.min(len - PARTIALS);
        let mut next = load_partials::<I, C, M, ROWS>(|at| &lane(at)[start..start + PARTIALS]);
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

/// Combines elements in order.
#[inline(always)]
pub(crate) fn fold_in_order<C: Convert, M: Monoid<Number = C::To>>(x: &[C::From]) -> M::Number {
    x.iter().fold(M::IDENTITY, |all, x| M::combine(all, C::one(*x)))
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
