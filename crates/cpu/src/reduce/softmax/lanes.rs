//! The loops of softmax over lanes and their parts, compiled for each level.

use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use keyfold_kit::isa::{self, Isa, Work};
use keyfold_kit::math::Real;

use crate::reduce::convert::{Converted, To};
use crate::reduce::lanes::{Group, PARTIALS, reduce_dense, reduce_group};
use crate::reduce::monoid::{Addend, Extreme, Monoid, Ordered, Sum};

/// A float type that softmax is computed in.
pub(super) trait Float: Ordered + Addend + To<Self> {
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn reciprocal(self) -> Self;
    fn exp<I: Isa>(self) -> Self;
    fn ln(self) -> Self;
    /// As `ln`, in vector code.
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

/// The maximum of a lane, and the sum of the exponentials of the differences from it.
#[derive(Clone, Copy)]
pub(super) struct MaxAndSum<A> {
    pub(super) greatest: A,
    pub(super) sum: A,
}

impl<A: Float> MaxAndSum<A> {
    pub(super) const NONE: Self = MaxAndSum { greatest: A::LOWEST, sum: A::ZERO };

    /// Joins the statistics of two parts.
    #[inline(always)]
    pub(super) fn join<I: Isa>(self, other: Self) -> Self {
        let greatest = Extreme::<A, false>::combine(self.greatest, other.greatest);
        let part = |s: Self| {
            // If all elements are negative infinity the sum is 0, and the difference from the maximum
            // would be NaN.
            let scaled = s.sum.times(s.greatest.minus(greatest).exp::<I>());
            if s.sum == A::ZERO { A::ZERO } else { scaled }
        };
        MaxAndSum { greatest, sum: part(self).plus(part(other)) }
    }

    /// The normalizer: the factor of the exponentials, or for the logarithm the subtrahend of the
    /// differences.
    #[inline(always)]
    pub(super) fn normalizer(self, log: bool) -> A {
        if log { self.sum.ln() } else { self.sum.reciprocal() }
    }
}

/// Lanes of dense elements, `x_step` apart, and of results, `out_step` apart.
#[derive(Clone, Copy)]
pub(super) struct Lanes<S, D> {
    pub(super) x: *const S,
    pub(super) x_step: isize,
    pub(super) out: *mut D,
    pub(super) out_step: isize,
    pub(super) lanes: usize,
    pub(super) len: usize,
}

struct WholeLanes<'a, S, A, D, const LOG: bool> {
    all: Lanes<S, D>,
    exponentials: &'a mut Vec<A>,
}

impl<S, A, D, const LOG: bool> Work for WholeLanes<'_, S, A, D, LOG>
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Lanes { x, x_step, out, out_step, lanes, len } = self.all;
        if len < SHORT_LANE {
            return short_lanes::<I, S, A, D, LOG>(self.all);
        }
        // If results have the computed type, the exponentials are written to the output first: the
        // stores of a large lane proceed while other elements are computed.
        let writes_computed = TypeId::of::<A>() == TypeId::of::<D>();
        if !LOG && !writes_computed {
            self.exponentials.resize(len, A::ZERO);
        }
        for lane in 0..lanes as isize {
            let x = x.wrapping_offset(lane * x_step);
            let out = out.wrapping_offset(lane * out_step);
            // SAFETY: the caller of `softmax_lanes` promises that the lane is readable.
            let from = unsafe { std::slice::from_raw_parts(x, len) };
            let greatest = reduce_dense::<I, Converted<S, A>, Extreme<A, false>>(from);
            // SAFETY: as above, and no other thread accesses the lane of the result.
            unsafe {
                if LOG {
                    let sum = exp_sum::<I, S, A>(from, greatest);
                    finish::<I, S, A, D, LOG>((x, out), len, MaxAndSum { greatest, sum });
                } else if writes_computed {
                    let out = std::slice::from_raw_parts_mut(out.cast::<A>(), len);
                    let by = exp_into::<I, S, A>(from, out, greatest).reciprocal();
                    out.iter_mut().for_each(|x| *x = x.times(by));
                } else {
                    let sum = exp_into::<I, S, A>(from, self.exponentials, greatest);
                    scale::<I, A, D>(self.exponentials, sum.reciprocal(), out);
                }
            }
        }
    }
}

/// Writes the numbers multiplied by a factor.
///
/// # Safety
/// The destination has room for as many results.
#[inline(always)]
unsafe fn scale<I: Isa, A: Float + To<D>, D: Copy>(x: &[A], by: A, out: *mut D) {
    let mut done = 0;
    if <A as To<D>>::IN_GROUPS {
        let (mut products, mut results) =
            ([A::ZERO; ACCUMULATORS], [To::<D>::convert(A::ZERO); ACCUMULATORS]);
        for x in x.chunks_exact(ACCUMULATORS) {
            for i in 0..ACCUMULATORS {
                products[i] = x[i].times(by);
            }
            <A as To<D>>::convert_all::<I>(&products, &mut results);
            // SAFETY: the caller's promise.
            unsafe { out.add(done).copy_from_nonoverlapping(results.as_ptr(), ACCUMULATORS) };
            done += ACCUMULATORS;
        }
    }
    for (i, x) in x.iter().enumerate().skip(done) {
        // SAFETY: the caller's promise.
        unsafe { out.add(i).write(x.times(by).convert()) };
    }
}

/// Shorter lanes are computed side by side.
const SHORT_LANE: usize = 64;

/// Elements of a block of short lanes.
const BLOCK: usize = 1024;

/// Returns the first `count` numbers, zeroed. Clearing all would take longer than computing a few lanes.
#[inline(always)]
fn zeros<A: Float>(room: &mut [MaybeUninit<A>; BLOCK], count: usize) -> &mut [A] {
    let room = &mut room[..count];
    room.fill(MaybeUninit::new(A::ZERO));
    // SAFETY: these were just written.
    unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), count) }
}

#[inline(always)]
fn short_lanes<I: Isa, S, A, D, const LOG: bool>(all: Lanes<S, D>)
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    let Lanes { x, x_step, out, out_step, lanes, len } = all;
    // As many lanes as form whole groups.
    let most = (BLOCK / len / PARTIALS * PARTIALS).min(lanes.next_multiple_of(PARTIALS));
    let mut room = [[const { MaybeUninit::<A>::uninit() }; BLOCK]; 3];
    let [differences, exp, normalizers] = &mut room;
    let (differences, exp, normalizers) =
        (zeros(differences, most * len), zeros(exp, most * len), zeros(normalizers, most));
    for first in (0..lanes).step_by(most) {
        let count = most.min(lanes - first);
        let used = count * len;
        let lane = |lane: usize| {
            let from = x.wrapping_offset((first + lane) as isize * x_step);
            // SAFETY: the caller of `softmax_lanes` promises that the lane is readable.
            unsafe { std::slice::from_raw_parts(from, len) }
        };
        for group in (0..count).step_by(PARTIALS) {
            let some = PARTIALS.min(count - group);
            let from = x.wrapping_offset((first + group) as isize * x_step);
            // SAFETY: the caller of `softmax_lanes` promises that the lanes are readable.
            let lanes = unsafe {
                Group::<Converted<S, A>, Extreme<A, false>>::new(from, x_step, some, len)
            };
            let best = reduce_group::<I, _, _>(lanes);
            for (at, greatest) in best.iter().enumerate().take(some) {
                let differences = &mut differences[(group + at) * len..(group + at + 1) * len];
                for (differences, x) in differences.iter_mut().zip(lane(group + at)) {
                    *differences = x.convert().minus(*greatest);
                }
            }
        }
        // One loop over all lanes, independent of their length.
        for (exp, differences) in exp[..used].iter_mut().zip(&differences[..used]) {
            *exp = differences.exp::<I>();
        }
        for group in (0..count).step_by(PARTIALS) {
            // Groups are always full: the lanes after the last one are zeros.
            let from = exp[group * len..(group + PARTIALS) * len].as_ptr();
            // SAFETY: the group's exponentials, or zeros, are inside the buffer.
            let lanes =
                unsafe { Group::<Converted<A, A>, Sum<A>>::new(from, len as isize, PARTIALS, len) };
            normalizers[group..group + PARTIALS].copy_from_slice(&reduce_group::<I, _, _>(lanes));
        }
        for normalizer in &mut normalizers[..count] {
            *normalizer = if LOG { normalizer.log::<I>() } else { normalizer.reciprocal() };
        }
        let pairs =
            exp[..used].chunks_exact_mut(len).zip(differences[..used].chunks_exact_mut(len));
        for (lane, ((exp, differences), normalizer)) in pairs.zip(&*normalizers).enumerate() {
            let to = out.wrapping_offset((first + lane) as isize * out_step);
            // SAFETY: as above; no other thread accesses the lanes of the result.
            unsafe {
                if LOG {
                    differences
                        .iter_mut()
                        .for_each(|differences| *differences = differences.minus(*normalizer));
                    scale::<I, A, D>(differences, A::ONE, to);
                } else {
                    scale::<I, A, D>(exp, *normalizer, to);
                }
            }
        }
    }
}

/// The number of independent accumulators: four of the widest vectors of float32.
const ACCUMULATORS: usize = 64;

#[inline(always)]
fn fold_ways<A: Float>(mut sums: [A; ACCUMULATORS]) -> A {
    let mut half = ACCUMULATORS / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] = sums[i].plus(sums[i + half]);
        }
        half /= 2;
    }
    sums[0]
}

/// Elements whose exponentials are added in [`ACCUMULATORS`] accumulators before these are folded.
const SUM_RUN: usize = 4096;

/// Converts a tail shorter than [`ACCUMULATORS`], padded with numbers that add nothing to the sum.
#[inline(always)]
fn padded<S: To<A> + Copy, A: Float>(x: &[S]) -> [A; ACCUMULATORS] {
    let mut all = [A::LOWEST; ACCUMULATORS];
    for (all, x) in all.iter_mut().zip(x) {
        *all = x.convert();
    }
    all
}

/// Numbers in the groups of vectors that are computed of a padded tail.
const GROUP: usize = 16;

#[inline(always)]
fn exp_into<I: Isa, S: To<A> + Copy, A: Float>(x: &[S], out: &mut [A], greatest: A) -> A {
    let mut total = A::ZERO;
    for (x, out) in x.chunks(SUM_RUN).zip(out.chunks_mut(SUM_RUN)) {
        let mut sums = [A::ZERO; ACCUMULATORS];
        let (mut xs, mut outs) = (x.chunks_exact(ACCUMULATORS), out.chunks_exact_mut(ACCUMULATORS));
        for (x, out) in (&mut xs).zip(&mut outs) {
            if S::IN_GROUPS {
                S::convert_all::<I>(x, out);
                for i in 0..ACCUMULATORS {
                    let exp = out[i].minus(greatest).exp::<I>();
                    out[i] = exp;
                    sums[i] = sums[i].plus(exp);
                }
            } else {
                for i in 0..ACCUMULATORS {
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
    for x in x.chunks(SUM_RUN) {
        let mut sums = [A::ZERO; ACCUMULATORS];
        let mut xs = x.chunks_exact(ACCUMULATORS);
        for x in &mut xs {
            if S::IN_GROUPS {
                let mut numbers = [A::ZERO; ACCUMULATORS];
                S::convert_all::<I>(x, &mut numbers);
                for i in 0..ACCUMULATORS {
                    sums[i] = sums[i].plus(numbers[i].minus(greatest).exp::<I>());
                }
            } else {
                for i in 0..ACCUMULATORS {
                    sums[i] = sums[i].plus(x[i].convert().minus(greatest).exp::<I>());
                }
            }
        }
        let normalizer = xs.remainder();
        if !normalizer.is_empty() {
            let differences = padded::<S, A>(normalizer);
            let used = normalizer.len().next_multiple_of(GROUP);
            for (sum, differences) in sums.iter_mut().zip(&differences[..used]) {
                *sum = sum.plus(differences.minus(greatest).exp::<I>());
            }
        }
        total = total.plus(fold_ways(sums));
    }
    total
}

/// Writes the results of dense elements.
///
/// # Safety
/// As many elements can be read, and written at the second pointer.
#[inline(always)]
unsafe fn finish<I: Isa, S, A, D, const LOG: bool>(
    (x, out): (*const S, *mut D),
    len: usize,
    max_and_sum: MaxAndSum<A>,
) where
    S: To<A> + Copy,
    A: Float + To<D>,
    D: Copy + 'static,
{
    let (greatest, normalizer) = (max_and_sum.greatest, max_and_sum.normalizer(LOG));
    let mut done = 0;
    if <S as To<A>>::IN_GROUPS && <A as To<D>>::IN_GROUPS {
        let (mut numbers, mut results) =
            ([A::ZERO; ACCUMULATORS], [To::<D>::convert(A::ZERO); ACCUMULATORS]);
        while len - done >= ACCUMULATORS {
            // SAFETY: the caller's promise.
            unsafe {
                let x = std::slice::from_raw_parts(x.add(done), ACCUMULATORS);
                S::convert_all::<I>(x, &mut numbers);
                for number in &mut numbers {
                    let differences = number.minus(greatest);
                    *number = if LOG {
                        differences.minus(normalizer)
                    } else {
                        differences.exp::<I>().times(normalizer)
                    };
                }
                <A as To<D>>::convert_all::<I>(&numbers, &mut results);
                out.add(done).copy_from_nonoverlapping(results.as_ptr(), ACCUMULATORS);
            }
            done += ACCUMULATORS;
        }
    }
    for i in done..len {
        // SAFETY: the caller's promise.
        unsafe {
            let differences = x.add(i).read().convert().minus(greatest);
            let result = if LOG {
                differences.minus(normalizer)
            } else {
                differences.exp::<I>().times(normalizer)
            };
            out.add(i).write(result.convert());
        }
    }
}

/// Computes softmax of whole lanes; `exponentials` is workspace for exponentials of another type than the
/// results.
///
/// # Safety
/// The lanes can be read and written, and the written lanes overlap no others.
pub(super) unsafe fn softmax_lanes<S, A, D>(all: Lanes<S, D>, exponentials: &mut Vec<A>, log: bool)
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    if log {
        isa::dispatch(WholeLanes::<_, _, _, true> { all, exponentials });
    } else {
        isa::dispatch(WholeLanes::<_, _, _, false> { all, exponentials });
    }
}

struct Part<'a, S, A>(&'a [S], PhantomData<A>);

impl<S: To<A> + Copy + 'static, A: Float> Work for Part<'_, S, A> {
    type Output = MaxAndSum<A>;
    #[inline(always)]
    fn run<I: Isa>(self) -> MaxAndSum<A> {
        let greatest = reduce_dense::<I, Converted<S, A>, Extreme<A, false>>(self.0);
        let none = greatest == A::LOWEST;
        let sum = if none { A::ZERO } else { exp_sum::<I, S, A>(self.0, greatest) };
        MaxAndSum { greatest, sum }
    }
}

/// Computes the statistics of a part of a lane.
pub(super) fn max_and_sum_of<S: To<A> + Copy + 'static, A: Float>(x: &[S]) -> MaxAndSum<A> {
    isa::dispatch(Part(x, PhantomData))
}

struct Join<'a, A>(&'a [MaxAndSum<A>]);

impl<A: Float> Work for Join<'_, A> {
    type Output = MaxAndSum<A>;
    #[inline(always)]
    fn run<I: Isa>(self) -> MaxAndSum<A> {
        self.0.iter().fold(MaxAndSum::NONE, |all, part| all.join::<I>(*part))
    }
}

/// Joins the statistics of a lane's parts.
pub(super) fn join_parts<A: Float>(parts: &[MaxAndSum<A>]) -> MaxAndSum<A> {
    isa::dispatch(Join(parts))
}

struct Finish<S, A, D, const LOG: bool> {
    places: (*const S, *mut D),
    len: usize,
    max_and_sum: MaxAndSum<A>,
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
        // SAFETY: the promise of `finish_part`'s caller.
        unsafe { finish::<I, S, A, D, LOG>(self.places, self.len, self.max_and_sum) };
    }
}

/// Writes the results of a part of a lane.
///
/// # Safety
/// As many elements can be read, and written at the second pointer.
pub(super) unsafe fn finish_part<S, A, D>(
    places: (*const S, *mut D),
    len: usize,
    max_and_sum: MaxAndSum<A>,
    log: bool,
) where
    S: To<A> + Copy,
    A: Float + To<D>,
    D: Copy + 'static,
{
    if log {
        isa::dispatch(Finish::<S, A, D, true> { places, len, max_and_sum });
    } else {
        isa::dispatch(Finish::<S, A, D, false> { places, len, max_and_sum });
    }
}
