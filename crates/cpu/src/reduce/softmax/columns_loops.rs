//! The loops over columns side by side, compiled for each level.

use keyfold_kit::isa::{self, Isa, Work};

use super::lanes::Float;
use crate::reduce::convert::To;
use crate::reduce::monoid::{Extreme, Monoid};

/// Columns side by side: the greatest of each so far, the sum of the exponentials of the
/// differences from it, and room for the same of some rows.
pub(super) struct Columns<'a, A> {
    pub(super) greatest: &'a mut [A],
    pub(super) sum: &'a mut [A],
    pub(super) next: &'a mut [A],
    pub(super) part: &'a mut [A],
}

struct More<'a, S, A> {
    columns: Columns<'a, A>,
    x: *const S,
    step: isize,
    rows: usize,
}

impl<S: To<A> + Copy, A: Float> Work for More<'_, S, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let More { columns: Columns { greatest, sum, next, part }, x, step, rows } = self;
        let len = greatest.len();
        // SAFETY: the caller of `more_rows` says that each row has so many numbers there.
        let row = |r: usize| unsafe {
            std::slice::from_raw_parts(x.wrapping_offset(r as isize * step), len)
        };
        next.copy_from_slice(greatest);
        for r in 0..rows {
            maxima(next, row(r));
        }
        part.fill(A::ZERO);
        for r in 0..rows {
            add_exp::<I, S, A>(part, next, row(r));
        }
        rescale::<I, A>(greatest, sum, next, part);
    }
}

#[inline(always)]
fn maxima<S: To<A> + Copy, A: Float>(all: &mut [A], x: &[S]) {
    for (all, x) in all.iter_mut().zip(x) {
        *all = Extreme::<A, false>::combine(*all, x.convert());
    }
}

/// The difference from what is subtracted: 0 where nothing but negative infinities came so far, so
/// that their exponentials are 0.
#[inline(always)]
fn finite<A: Float>(greatest: A) -> A {
    if greatest == A::LOWEST { A::ZERO } else { greatest }
}

#[inline(always)]
fn add_exp<I: Isa, S: To<A> + Copy, A: Float>(sum: &mut [A], greatest: &[A], x: &[S]) {
    for ((sum, greatest), x) in sum.iter_mut().zip(greatest).zip(x) {
        *sum = sum.plus(x.convert().minus(finite(*greatest)).exp::<I>());
    }
}

#[inline(always)]
fn rescale<I: Isa, A: Float>(greatest: &mut [A], sum: &mut [A], next: &[A], part: &[A]) {
    for (((greatest, sum), next), part) in greatest.iter_mut().zip(sum).zip(next).zip(part) {
        let scaled = sum.times(greatest.minus(finite(*next)).exp::<I>());
        *sum = scaled.plus(*part);
        *greatest = *next;
    }
}

/// Takes some more rows, a step apart, into account.
///
/// # Safety
/// Each row has as many numbers as there are columns.
pub(super) unsafe fn more_rows<S: To<A> + Copy, A: Float>(
    columns: Columns<'_, A>,
    x: *const S,
    step: isize,
    rows: usize,
) {
    isa::dispatch(More { columns, x, step, rows });
}

struct Rows<'a, S, A, D, const LOG: bool> {
    greatest: &'a [A],
    rest: &'a [A],
    strip: Strip<S, D>,
}

impl<S, A, D, const LOG: bool> Work for Rows<'_, S, A, D, LOG>
where
    S: To<A> + Copy,
    A: Float + To<D>,
{
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Strip { x, x_step, out, out_step, rows } = self.strip;
        let len = self.greatest.len();
        for r in 0..rows as isize {
            let x = x.wrapping_offset(r * x_step);
            let out = out.wrapping_offset(r * out_step);
            // SAFETY: the caller of `finish_rows` says that the rows are there and don't overlap.
            let (x, out) = unsafe {
                (std::slice::from_raw_parts(x, len), std::slice::from_raw_parts_mut(out, len))
            };
            finish_row::<I, S, A, D, LOG>(out, x, self.greatest, self.rest);
        }
    }
}

#[inline(always)]
fn finish_row<I: Isa, S, A, D, const LOG: bool>(out: &mut [D], x: &[S], greatest: &[A], rest: &[A])
where
    S: To<A> + Copy,
    A: Float + To<D>,
{
    for (((out, x), greatest), rest) in out.iter_mut().zip(x).zip(greatest).zip(rest) {
        let less = x.convert().minus(*greatest);
        let result = if LOG { less.minus(*rest) } else { less.exp::<I>().times(*rest) };
        *out = result.convert();
    }
}

/// Dense rows of elements, a step apart, and where their results go.
pub(super) struct Strip<S, D> {
    pub(super) x: *const S,
    pub(super) x_step: isize,
    pub(super) out: *mut D,
    pub(super) out_step: isize,
    pub(super) rows: usize,
}

/// The results of some rows: given, for each column, its greatest and [`Stats::rest`].
///
/// # Safety
/// The rows can be read and written, and those written overlap no others.
pub(super) unsafe fn finish_rows<S, A, D>(greatest: &[A], rest: &[A], strip: Strip<S, D>, log: bool)
where
    S: To<A> + Copy,
    A: Float + To<D>,
{
    if log {
        isa::dispatch(Rows::<_, _, _, true> { greatest, rest, strip });
    } else {
        isa::dispatch(Rows::<_, _, _, false> { greatest, rest, strip });
    }
}
