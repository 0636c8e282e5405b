//! Softmax of short lanes, side by side in blocks.

use std::mem::MaybeUninit;

use keyfold_kit::isa::Isa;

use super::float::Float;
use super::lanes::{Lanes, scale};
use crate::reduce::convert::{Converted, To};
use crate::reduce::group::{Group, PARTIALS, reduce_group};
use crate::reduce::monoid::{Extreme, Sum};

/// The length from which lanes are computed one after another.
pub(super) const SHORT_LANE: usize = 64;

/// Elements of a block of short lanes.
const BLOCK: usize = 1024;

/// Returns the first `count` numbers, zeroed. Clearing all would take longer than computing a few lanes.
#[inline(always)]
fn zeros<A: Float>(workspace: &mut [MaybeUninit<A>; BLOCK], count: usize) -> &mut [A] {
    let workspace = &mut workspace[..count];
    workspace.fill(MaybeUninit::new(A::ZERO));
    // SAFETY: these were just written.
    unsafe { std::slice::from_raw_parts_mut(workspace.as_mut_ptr().cast(), count) }
}

/// Computes softmax of short lanes, in blocks of many lanes.
#[inline(always)]
pub(super) fn short_lanes<I: Isa, S, A, D, const LOG: bool>(all: Lanes<S, D>)
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    let Lanes { x, x_step, out, out_step, lanes, len } = all;
    // As many lanes as form whole groups.
    let most = (BLOCK / len / PARTIALS * PARTIALS).min(lanes.next_multiple_of(PARTIALS));
    let mut workspace = [[const { MaybeUninit::<A>::uninit() }; BLOCK]; 3];
    let [differences, exp, normalizers] = &mut workspace;
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
                for (difference, x) in differences.iter_mut().zip(lane(group + at)) {
                    *difference = x.convert().minus(*greatest);
                }
            }
        }
        // One loop over all lanes, independent of their length.
        for (exp, difference) in exp[..used].iter_mut().zip(&differences[..used]) {
            *exp = difference.exp::<I>();
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
                        .for_each(|difference| *difference = difference.minus(*normalizer));
                    scale::<I, A, D>(differences, A::ONE, to);
                } else {
                    scale::<I, A, D>(exp, *normalizer, to);
                }
            }
        }
    }
}
