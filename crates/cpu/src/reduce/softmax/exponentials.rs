//! Sums of exponentials, in independent accumulators.

use keyfold_kit::isa::Isa;

use super::float::Float;
use crate::reduce::convert::To;

/// The number of independent accumulators: four of the widest vectors of float32.
pub(super) const ACCUMULATORS: usize = 64;

#[inline(always)]
fn fold_accumulators<A: Float>(mut sums: [A; ACCUMULATORS]) -> A {
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

/// Writes the exponentials of the differences from `greatest`, and returns their sum.
#[inline(always)]
pub(super) fn exp_into<I: Isa, S: To<A> + Copy, A: Float>(
    x: &[S],
    out: &mut [A],
    greatest: A,
) -> A {
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
        total = total.plus(fold_accumulators(sums));
    }
    total
}

/// Returns the sum of the exponentials of the differences from `greatest`.
#[inline(always)]
pub(super) fn exp_sum<I: Isa, S: To<A> + Copy, A: Float>(x: &[S], greatest: A) -> A {
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
        let tail = xs.remainder();
        if !tail.is_empty() {
            let numbers = padded::<S, A>(tail);
            let used = tail.len().next_multiple_of(GROUP);
            for (sum, number) in sums.iter_mut().zip(&numbers[..used]) {
                *sum = sum.plus(number.minus(greatest).exp::<I>());
            }
        }
        total = total.plus(fold_accumulators(sums));
    }
    total
}
