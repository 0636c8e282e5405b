//! The loops of softmax over lanes and their parts, compiled for each level.

use std::any::TypeId;
use std::marker::PhantomData;

use keyfold_kit::isa::{self, Isa, Work};

use super::exponentials::{ACCUMULATORS, exp_into, exp_sum};
use super::float::{Float, MaxAndSum};
use super::short_lanes::{SHORT_LANE, short_lanes};
use crate::reduce::convert::{Converted, To};
use crate::reduce::lanes::reduce_dense;
use crate::reduce::monoid::Extreme;

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
pub(super) unsafe fn scale<I: Isa, A: Float + To<D>, D: Copy>(x: &[A], by: A, out: *mut D) {
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
                    let difference = number.minus(greatest);
                    *number = if LOG {
                        difference.minus(normalizer)
                    } else {
                        difference.exp::<I>().times(normalizer)
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
            let difference = x.add(i).read().convert().minus(greatest);
            let result = if LOG {
                difference.minus(normalizer)
            } else {
                difference.exp::<I>().times(normalizer)
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
