//! The loops over lanes and their parts, compiled for each level.

use keyfold_expr::isa::{self, Isa, Work};
use keyfold_expr::math::Real;

use crate::reduce::convert::{Plain, To};
use crate::reduce::lanes::dense;
use crate::reduce::monoid::{Addend, Extreme, Greatest, Monoid, Ordered};

/// A float that softmax is computed in.
pub(super) trait Float: Ordered + Addend + To<Self> {
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn reciprocal(self) -> Self;
    fn exp<I: Isa>(self) -> Self;
    fn ln(self) -> Self;
}

macro_rules! float {
    ($($type:ty),*) => {$(
        impl Float for $type {
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
        let greatest = Extreme::<Greatest, A>::combine(self.greatest, other.greatest);
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

/// Softmax of lanes of dense numbers, `x_step` apart, into ones `out_step` apart.
#[derive(Clone, Copy)]
pub(super) struct Lanes<A> {
    pub(super) x: *const A,
    pub(super) x_step: isize,
    pub(super) out: *mut A,
    pub(super) out_step: isize,
    pub(super) lanes: usize,
    pub(super) len: usize,
}

struct Whole<A, const LOG: bool>(Lanes<A>);

impl<A: Float, const LOG: bool> Work for Whole<A, LOG> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Lanes { x, x_step, out, out_step, lanes, len } = self.0;
        if len < SHORT {
            return short::<I, A, LOG>(self.0);
        }
        for lane in 0..lanes as isize {
            let (x, out) = (x.wrapping_offset(lane * x_step), out.wrapping_offset(lane * out_step));
            // SAFETY: the caller of `softmax_lanes` says that the lanes are there and don't overlap.
            let (x, out) = unsafe {
                (std::slice::from_raw_parts(x, len), std::slice::from_raw_parts_mut(out, len))
            };
            let greatest = dense::<Plain<A, A>, Extreme<Greatest, A>>(x);
            if LOG {
                let sum = exp_sum::<I, A>(x, greatest);
                finish::<I, A, LOG>(x, out, Stats { greatest, sum });
            } else {
                let sum = exp_into::<I, A>(x, out, greatest);
                let by = sum.reciprocal();
                out.iter_mut().for_each(|x| *x = x.times(by));
            }
        }
    }
}

/// Lanes shorter than this are done side by side.
const SHORT: usize = 64;

/// Numbers that are done at a time, where lanes are short.
const BLOCK: usize = 1024;

#[inline(always)]
fn short<I: Isa, A: Float, const LOG: bool>(all: Lanes<A>) {
    let Lanes { x, x_step, out, out_step, lanes, len } = all;
    let (mut less, mut exp) = ([A::ZERO; BLOCK], [A::ZERO; BLOCK]);
    let most = BLOCK / len;
    let mut first = 0;
    while first < lanes {
        let count = most.min(lanes - first);
        let used = count * len;
        for (lane, less) in less[..used].chunks_exact_mut(len).enumerate() {
            let from = x.wrapping_offset((first + lane) as isize * x_step);
            // SAFETY: the caller of `softmax_lanes` says that the lane is there.
            let x = unsafe { std::slice::from_raw_parts(from, len) };
            let worst = Extreme::<Greatest, A>::IDENTITY;
            let greatest = x.iter().fold(worst, |a, x| Extreme::<Greatest, A>::combine(a, *x));
            for (less, x) in less.iter_mut().zip(x) {
                *less = x.minus(greatest);
            }
        }
        // One loop over all, whatever the length of the lanes.
        for (exp, less) in exp[..used].iter_mut().zip(&less[..used]) {
            *exp = less.exp::<I>();
        }
        let pairs = exp[..used].chunks_exact(len).zip(less[..used].chunks_exact(len));
        for (lane, (exp, less)) in pairs.enumerate() {
            let sum = exp.iter().fold(A::ZERO, |a, x| a.plus(*x));
            let to = out.wrapping_offset((first + lane) as isize * out_step);
            // SAFETY: as above; lanes of the result are this thread's alone.
            let out = unsafe { std::slice::from_raw_parts_mut(to, len) };
            if LOG {
                let by = sum.ln();
                out.iter_mut().zip(less).for_each(|(out, less)| *out = less.minus(by));
            } else {
                let by = sum.reciprocal();
                out.iter_mut().zip(exp).for_each(|(out, exp)| *out = exp.times(by));
            }
        }
        first += count;
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

#[inline(always)]
fn exp_into<I: Isa, A: Float>(x: &[A], out: &mut [A], greatest: A) -> A {
    let mut total = A::ZERO;
    for (x, out) in x.chunks(RUN).zip(out.chunks_mut(RUN)) {
        let mut sums = [A::ZERO; WAYS];
        let (mut xs, mut outs) = (x.chunks_exact(WAYS), out.chunks_exact_mut(WAYS));
        for (x, out) in (&mut xs).zip(&mut outs) {
            for i in 0..WAYS {
                let exp = x[i].minus(greatest).exp::<I>();
                out[i] = exp;
                sums[i] = sums[i].plus(exp);
            }
        }
        for ((sum, x), out) in sums.iter_mut().zip(xs.remainder()).zip(outs.into_remainder()) {
            let exp = x.minus(greatest).exp::<I>();
            *out = exp;
            *sum = sum.plus(exp);
        }
        total = total.plus(fold_ways(sums));
    }
    total
}

#[inline(always)]
fn exp_sum<I: Isa, A: Float>(x: &[A], greatest: A) -> A {
    let mut total = A::ZERO;
    for x in x.chunks(RUN) {
        let mut sums = [A::ZERO; WAYS];
        let mut xs = x.chunks_exact(WAYS);
        for x in &mut xs {
            for i in 0..WAYS {
                sums[i] = sums[i].plus(x[i].minus(greatest).exp::<I>());
            }
        }
        for (sum, x) in sums.iter_mut().zip(xs.remainder()) {
            *sum = sum.plus(x.minus(greatest).exp::<I>());
        }
        total = total.plus(fold_ways(sums));
    }
    total
}

#[inline(always)]
fn finish<I: Isa, A: Float, const LOG: bool>(x: &[A], out: &mut [A], stats: Stats<A>) {
    let (greatest, rest) = (stats.greatest, stats.rest(LOG));
    for (out, x) in out.iter_mut().zip(x) {
        let less = x.minus(greatest);
        *out = if LOG { less.minus(rest) } else { less.exp::<I>().times(rest) };
    }
}

/// Softmax of whole lanes.
///
/// # Safety
/// The lanes can be read and written, and those written overlap no others.
pub(super) unsafe fn softmax_lanes<A: Float>(lanes: Lanes<A>, log: bool) {
    if log {
        isa::dispatch(Whole::<A, true>(lanes));
    } else {
        isa::dispatch(Whole::<A, false>(lanes));
    }
}

struct Part<'a, A>(&'a [A]);

impl<A: Float> Work for Part<'_, A> {
    type Output = Stats<A>;
    #[inline(always)]
    fn run<I: Isa>(self) -> Stats<A> {
        let greatest = dense::<Plain<A, A>, Extreme<Greatest, A>>(self.0);
        let none = greatest == A::LOWEST;
        let sum = if none { A::ZERO } else { exp_sum::<I, A>(self.0, greatest) };
        Stats { greatest, sum }
    }
}

/// Of a part of a lane.
pub(super) fn stats_of<A: Float>(x: &[A]) -> Stats<A> {
    isa::dispatch(Part(x))
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

struct Finish<'a, A, const LOG: bool> {
    x: &'a [A],
    out: &'a mut [A],
    stats: Stats<A>,
}

impl<A: Float, const LOG: bool> Work for Finish<'_, A, LOG> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        finish::<I, A, LOG>(self.x, self.out, self.stats);
    }
}

/// The results of a part of a lane.
pub(super) fn finish_part<A: Float>(x: &[A], out: &mut [A], stats: Stats<A>, log: bool) {
    if log {
        isa::dispatch(Finish::<A, true> { x, out, stats });
    } else {
        isa::dispatch(Finish::<A, false> { x, out, stats });
    }
}
