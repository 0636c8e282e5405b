//! The loops over lanes and their parts, compiled for each level.

use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use keyfold_kit::isa::{self, Isa, Work};
use keyfold_kit::math::Real;

use crate::reduce::convert::{Plain, To};
use crate::reduce::lanes::{FEW, Group, dense, together};
use crate::reduce::monoid::{Addend, Extreme, Monoid, Ordered, Sum};

/// A float that softmax is computed in.
pub(super) trait Float: Ordered + Addend + To<Self> {
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn reciprocal(self) -> Self;
    fn exp<I: Isa>(self) -> Self;
    fn ln(self) -> Self;
    /// As `ln`, for many at a time.
    fn log<I: Isa>(self) -> Self;
    const ONE: Self;
}

macro_rules! float {
    ($($type:ty),*) => {$(
        impl Float for $type {
            const ONE: Self = 1.0;
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn reciprocal(self) -> Self {
                1.0 / self
            }
            #[inline(always)]
            fn exp<I: Isa>(self) -> Self {
                Real::exp::<I>(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                <$type>::ln(self)
            }
            #[inline(always)]
            fn log<I: Isa>(self) -> Self {
                Real::log::<I>(self)
            }
        }
    )*};
}
float!(f32, f64);

/// The greatest element of a lane, and the sum of the exponentials of the differences from it.
#[derive(Clone, Copy)]
pub(super) struct Stats<A> {
    pub(super) greatest: A,
    pub(super) sum: A,
}

impl<A: Float> Stats<A> {
    pub(super) const NONE: Self = Stats { greatest: A::LOWEST, sum: A::ZERO };

    /// Of the elements of both.
    #[inline(always)]
    pub(super) fn join<I: Isa>(self, other: Self) -> Self {
        let greatest = Extreme::<A, false>::combine(self.greatest, other.greatest);
        let part = |s: Self| {
            // Nothing but negative infinities has no sum, and no difference from itself.
            let scaled = s.sum.times(s.greatest.minus(greatest).exp::<I>());
            if s.sum == A::ZERO { A::ZERO } else { scaled }
        };
        Stats { greatest, sum: part(self).plus(part(other)) }
    }

    /// What a difference from the greatest is multiplied with once it's an exponential; or what is
    /// subtracted from it.
    #[inline(always)]
    pub(super) fn rest(self, log: bool) -> A {
        if log { self.sum.ln() } else { self.sum.reciprocal() }
    }
}

/// Softmax of lanes of dense elements, `x_step` apart, into ones `out_step` apart.
#[derive(Clone, Copy)]
pub(super) struct Lanes<S, D> {
    pub(super) x: *const S,
    pub(super) x_step: isize,
    pub(super) out: *mut D,
    pub(super) out_step: isize,
    pub(super) lanes: usize,
    pub(super) len: usize,
}

struct Whole<'a, S, A, D, const LOG: bool> {
    all: Lanes<S, D>,
    shares: &'a mut Vec<A>,
}

impl<S, A, D, const LOG: bool> Work for Whole<'_, S, A, D, LOG>
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Lanes { x, x_step, out, out_step, lanes, len } = self.all;
        if len < SHORT {
            return short::<I, S, A, D, LOG>(self.all);
        }
        // Where the results are such numbers they come first: large ones are on their way to the memory
        // while others are computed.
        let there = TypeId::of::<A>() == TypeId::of::<D>();
        if !LOG && !there {
            self.shares.resize(len, A::ZERO);
        }
        for lane in 0..lanes as isize {
            let x = x.wrapping_offset(lane * x_step);
            let out = out.wrapping_offset(lane * out_step);
            // SAFETY: the caller of `softmax_lanes` says that the lane is there.
            let from = unsafe { std::slice::from_raw_parts(x, len) };
            let greatest = dense::<I, Plain<S, A>, Extreme<A, false>>(from);
            // SAFETY: as above, and the lane of the result is this thread's alone.
            unsafe {
                if LOG {
                    let sum = exp_sum::<I, S, A>(from, greatest);
                    finish::<I, S, A, D, LOG>((x, out), len, Stats { greatest, sum });
                } else if there {
                    let out = std::slice::from_raw_parts_mut(out.cast::<A>(), len);
                    let by = exp_into::<I, S, A>(from, out, greatest).reciprocal();
                    out.iter_mut().for_each(|x| *x = x.times(by));
                } else {
                    let sum = exp_into::<I, S, A>(from, self.shares, greatest);
                    scale::<I, A, D>(self.shares, sum.reciprocal(), out);
                }
            }
        }
    }
}

/// Writes the numbers times another.
///
/// # Safety
/// As many results can be written.
#[inline(always)]
unsafe fn scale<I: Isa, A: Float + To<D>, D: Copy>(x: &[A], by: A, out: *mut D) {
    let mut done = 0;
    if <A as To<D>>::IN_GROUPS {
        let (mut products, mut results) = ([A::ZERO; WAYS], [To::<D>::convert(A::ZERO); WAYS]);
        for x in x.chunks_exact(WAYS) {
            for i in 0..WAYS {
                products[i] = x[i].times(by);
            }
            <A as To<D>>::convert_all::<I>(&products, &mut results);
            // SAFETY: the caller's promise.
            unsafe { out.add(done).copy_from_nonoverlapping(results.as_ptr(), WAYS) };
            done += WAYS;
        }
    }
    for (i, x) in x.iter().enumerate().skip(done) {
        // SAFETY: the caller's promise.
        unsafe { out.add(i).write(x.times(by).convert()) };
    }
}

/// Lanes shorter than this are done side by side.
const SHORT: usize = 64;

/// Numbers that are done at a time, where lanes are short.
const BLOCK: usize = 1024;

/// The first `count` of them, as zeros. Clearing all would take longer than a few lanes do.
#[inline(always)]
fn zeros<A: Float>(room: &mut [MaybeUninit<A>; BLOCK], count: usize) -> &mut [A] {
    let room = &mut room[..count];
    room.fill(MaybeUninit::new(A::ZERO));
    // SAFETY: these were just written.
    unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), count) }
}

#[inline(always)]
fn short<I: Isa, S, A, D, const LOG: bool>(all: Lanes<S, D>)
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    let Lanes { x, x_step, out, out_step, lanes, len } = all;
    // So many that groups of them are whole.
    let most = (BLOCK / len / FEW * FEW).min(lanes.next_multiple_of(FEW));
    let mut room = [[const { MaybeUninit::<A>::uninit() }; BLOCK]; 3];
    let [less, exp, rests] = &mut room;
    let (less, exp, rests) = (zeros(less, most * len), zeros(exp, most * len), zeros(rests, most));
    for first in (0..lanes).step_by(most) {
        let count = most.min(lanes - first);
        let used = count * len;
        let lane = |lane: usize| {
            let from = x.wrapping_offset((first + lane) as isize * x_step);
            // SAFETY: the caller of `softmax_lanes` says that the lane is there.
            unsafe { std::slice::from_raw_parts(from, len) }
        };
        for group in (0..count).step_by(FEW) {
            let some = FEW.min(count - group);
            let from = x.wrapping_offset((first + group) as isize * x_step);
            // SAFETY: the caller of `softmax_lanes` says that the lanes are there.
            let lanes =
                unsafe { Group::<Plain<S, A>, Extreme<A, false>>::new(from, x_step, some, len) };
            let best = together::<I, _, _>(lanes);
            for (at, greatest) in best.iter().enumerate().take(some) {
                let less = &mut less[(group + at) * len..(group + at + 1) * len];
                for (less, x) in less.iter_mut().zip(lane(group + at)) {
                    *less = x.convert().minus(*greatest);
                }
            }
        }
        // One loop over all, whatever the length of the lanes.
        for (exp, less) in exp[..used].iter_mut().zip(&less[..used]) {
            *exp = less.exp::<I>();
        }
        for group in (0..count).step_by(FEW) {
            // Of all that there is room for, so that a lane's sum doesn't depend on how many there are.
            let from = exp[group * len..(group + FEW) * len].as_ptr();
            // SAFETY: so many exponentials are there.
            let lanes = unsafe { Group::<Plain<A, A>, Sum<A>>::new(from, len as isize, FEW, len) };
            rests[group..group + FEW].copy_from_slice(&together::<I, _, _>(lanes));
        }
        for rest in &mut rests[..count] {
            *rest = if LOG { rest.log::<I>() } else { rest.reciprocal() };
        }
        let pairs = exp[..used].chunks_exact_mut(len).zip(less[..used].chunks_exact_mut(len));
        for (lane, ((exp, less), rest)) in pairs.zip(&*rests).enumerate() {
            let to = out.wrapping_offset((first + lane) as isize * out_step);
            // SAFETY: as above; lanes of the result are this thread's alone.
            unsafe {
                if LOG {
                    less.iter_mut().for_each(|less| *less = less.minus(*rest));
                    scale::<I, A, D>(less, A::ONE, to);
                } else {
                    scale::<I, A, D>(exp, *rest, to);
                }
            }
        }
    }
}

/// Independent sums: four of the widest vectors of float32.
const WAYS: usize = 64;

#[inline(always)]
fn fold_ways<A: Float>(mut sums: [A; WAYS]) -> A {
    let mut half = WAYS / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] = sums[i].plus(sums[i + half]);
        }
        half /= 2;
    }
    sums[0]
}

/// Elements whose exponentials are added up in [`WAYS`] ways before they are combined.
const RUN: usize = 4096;

/// What doesn't fill [`WAYS`], as numbers, and behind it what adds nothing to the sum.
#[inline(always)]
fn padded<S: To<A> + Copy, A: Float>(x: &[S]) -> [A; WAYS] {
    let mut all = [A::LOWEST; WAYS];
    for (all, x) in all.iter_mut().zip(x) {
        *all = x.convert();
    }
    all
}

/// Numbers in whole vectors, in what is padded.
const GROUP: usize = 16;

#[inline(always)]
fn exp_into<I: Isa, S: To<A> + Copy, A: Float>(x: &[S], out: &mut [A], greatest: A) -> A {
    let mut total = A::ZERO;
    for (x, out) in x.chunks(RUN).zip(out.chunks_mut(RUN)) {
        let mut sums = [A::ZERO; WAYS];
        let (mut xs, mut outs) = (x.chunks_exact(WAYS), out.chunks_exact_mut(WAYS));
        for (x, out) in (&mut xs).zip(&mut outs) {
            if S::IN_GROUPS {
                S::convert_all::<I>(x, out);
                for i in 0..WAYS {
                    let exp = out[i].minus(greatest).exp::<I>();
                    out[i] = exp;
                    sums[i] = sums[i].plus(exp);
                }
            } else {
                for i in 0..WAYS {
                    let exp = x[i].convert().minus(greatest).exp::<I>();
                    out[i] = exp;
                    sums[i] = sums[i].plus(exp);
                }
            }
        }
        let out = outs.into_remainder();
        if !out.is_empty() {
            let mut exps = padded::<S, A>(xs.remainder());
            let used = out.len().next_multiple_of(GROUP);
            for (exp, sum) in exps[..used].iter_mut().zip(&mut sums) {
                *exp = exp.minus(greatest).exp::<I>();
                *sum = sum.plus(*exp);
            }
            out.copy_from_slice(&exps[..out.len()]);
        }
        total = total.plus(fold_ways(sums));
    }
    total
}

#[inline(always)]
fn exp_sum<I: Isa, S: To<A> + Copy, A: Float>(x: &[S], greatest: A) -> A {
    let mut total = A::ZERO;
    for x in x.chunks(RUN) {
        let mut sums = [A::ZERO; WAYS];
        let mut xs = x.chunks_exact(WAYS);
        for x in &mut xs {
            if S::IN_GROUPS {
                let mut numbers = [A::ZERO; WAYS];
                S::convert_all::<I>(x, &mut numbers);
                for i in 0..WAYS {
                    sums[i] = sums[i].plus(numbers[i].minus(greatest).exp::<I>());
                }
            } else {
                for i in 0..WAYS {
                    sums[i] = sums[i].plus(x[i].convert().minus(greatest).exp::<I>());
                }
            }
        }
        let rest = xs.remainder();
        if !rest.is_empty() {
            let less = padded::<S, A>(rest);
            let used = rest.len().next_multiple_of(GROUP);
            for (sum, less) in sums.iter_mut().zip(&less[..used]) {
                *sum = sum.plus(less.minus(greatest).exp::<I>());
            }
        }
        total = total.plus(fold_ways(sums));
    }
    total
}

/// Writes the results of dense elements.
///
/// # Safety
/// So many can be read, and written to where the second pointer says.
#[inline(always)]
unsafe fn finish<I: Isa, S, A, D, const LOG: bool>(
    (x, out): (*const S, *mut D),
    len: usize,
    stats: Stats<A>,
) where
    S: To<A> + Copy,
    A: Float + To<D>,
    D: Copy + 'static,
{
    let (greatest, rest) = (stats.greatest, stats.rest(LOG));
    let mut done = 0;
    if <S as To<A>>::IN_GROUPS && <A as To<D>>::IN_GROUPS {
        let (mut numbers, mut results) = ([A::ZERO; WAYS], [To::<D>::convert(A::ZERO); WAYS]);
        while len - done >= WAYS {
            // SAFETY: the caller's promise.
            unsafe {
                let x = std::slice::from_raw_parts(x.add(done), WAYS);
                S::convert_all::<I>(x, &mut numbers);
                for number in &mut numbers {
                    let less = number.minus(greatest);
                    *number = if LOG { less.minus(rest) } else { less.exp::<I>().times(rest) };
                }
                <A as To<D>>::convert_all::<I>(&numbers, &mut results);
                out.add(done).copy_from_nonoverlapping(results.as_ptr(), WAYS);
            }
            done += WAYS;
        }
    }
    for i in done..len {
        // SAFETY: the caller's promise.
        unsafe {
            let less = x.add(i).read().convert().minus(greatest);
            let result = if LOG { less.minus(rest) } else { less.exp::<I>().times(rest) };
            out.add(i).write(result.convert());
        }
    }
}

/// Softmax of whole lanes; there is a `Vec` for what comes before the results.
///
/// # Safety
/// The lanes can be read and written, and those written overlap no others.
pub(super) unsafe fn softmax_lanes<S, A, D>(all: Lanes<S, D>, shares: &mut Vec<A>, log: bool)
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    if log {
        isa::dispatch(Whole::<_, _, _, true> { all, shares });
    } else {
        isa::dispatch(Whole::<_, _, _, false> { all, shares });
    }
}

struct Part<'a, S, A>(&'a [S], PhantomData<A>);

impl<S: To<A> + Copy + 'static, A: Float> Work for Part<'_, S, A> {
    type Output = Stats<A>;
    #[inline(always)]
    fn run<I: Isa>(self) -> Stats<A> {
        let greatest = dense::<I, Plain<S, A>, Extreme<A, false>>(self.0);
        let none = greatest == A::LOWEST;
        let sum = if none { A::ZERO } else { exp_sum::<I, S, A>(self.0, greatest) };
        Stats { greatest, sum }
    }
}

/// Of a part of a lane.
pub(super) fn stats_of<S: To<A> + Copy + 'static, A: Float>(x: &[S]) -> Stats<A> {
    isa::dispatch(Part(x, PhantomData))
}

struct Join<'a, A>(&'a [Stats<A>]);

impl<A: Float> Work for Join<'_, A> {
    type Output = Stats<A>;
    #[inline(always)]
    fn run<I: Isa>(self) -> Stats<A> {
        self.0.iter().fold(Stats::NONE, |all, part| all.join::<I>(*part))
    }
}

/// Of a lane whose parts these are of.
pub(super) fn joined<A: Float>(parts: &[Stats<A>]) -> Stats<A> {
    isa::dispatch(Join(parts))
}

struct Finish<S, A, D, const LOG: bool> {
    places: (*const S, *mut D),
    len: usize,
    stats: Stats<A>,
}

impl<S, A, D, const LOG: bool> Work for Finish<S, A, D, LOG>
where
    S: To<A> + Copy,
    A: Float + To<D>,
    D: Copy + 'static,
{
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        // SAFETY: the caller of `finish_part` promises it.
        unsafe { finish::<I, S, A, D, LOG>(self.places, self.len, self.stats) };
    }
}

/// The results of a part of a lane.
///
/// # Safety
/// So many elements can be read, and written to where the second pointer says.
pub(super) unsafe fn finish_part<S, A, D>(
    places: (*const S, *mut D),
    len: usize,
    stats: Stats<A>,
    log: bool,
) where
    S: To<A> + Copy,
    A: Float + To<D>,
    D: Copy + 'static,
{
    if log {
        isa::dispatch(Finish::<S, A, D, true> { places, len, stats });
    } else {
        isa::dispatch(Finish::<S, A, D, false> { places, len, stats });
    }
}
