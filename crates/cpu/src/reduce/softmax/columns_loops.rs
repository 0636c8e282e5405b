//! The loops of softmax over columns, compiled for each level.

use keyfold_kit::isa::{self, Isa, Work};

use super::float::Float;
use crate::reduce::convert::To;
use crate::reduce::monoid::{Extreme, Monoid};

/// The maximum of each column so far, the sum of the exponentials of the differences from it, and
/// workspace for the same of some rows.
pub(super) struct Columns<'a, A> {
    pub(super) greatest: &'a mut [A],
    pub(super) sum: &'a mut [A],
    pub(super) next: &'a mut [A],
    pub(super) part: &'a mut [A],
}

struct IncludeRows<'a, S, A> {
    columns: Columns<'a, A>,
    x: *const S,
    step: isize,
    rows: usize,
}

impl<S: To<A> + Copy, A: Float> Work for IncludeRows<'_, S, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let IncludeRows { columns: Columns { greatest, sum, next, part }, x, step, rows } = self;
        let len = greatest.len();
        // SAFETY: the caller of `include_rows` promises that each row has that many elements.
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

/// The subtrahend of the exponentials: 0 while all elements are negative infinity, so that their
/// exponentials are 0 instead of NaN.
#[inline(always)]
fn finite_subtrahend<A: Float>(greatest: A) -> A {
    if greatest == A::LOWEST { A::ZERO } else { greatest }
}

#[inline(always)]
fn add_exp<I: Isa, S: To<A> + Copy, A: Float>(sum: &mut [A], greatest: &[A], x: &[S]) {
    for ((sum, greatest), x) in sum.iter_mut().zip(greatest).zip(x) {
        *sum = sum.plus(x.convert().minus(finite_subtrahend(*greatest)).exp::<I>());
    }
}

#[inline(always)]
fn rescale<I: Isa, A: Float>(greatest: &mut [A], sum: &mut [A], next: &[A], part: &[A]) {
    for (((greatest, sum), next), part) in greatest.iter_mut().zip(sum).zip(next).zip(part) {
        let scaled = sum.times(greatest.minus(finite_subtrahend(*next)).exp::<I>());
        *sum = scaled.plus(*part);
        *greatest = *next;
    }
}

/// Includes some more rows, a step apart.
///
/// # Safety
/// Each row has as many elements as there are columns.
pub(super) unsafe fn include_rows<S: To<A> + Copy, A: Float>(
    columns: Columns<'_, A>,
    x: *const S,
    step: isize,
    rows: usize,
) {
    isa::dispatch(IncludeRows { columns, x, step, rows });
}

struct Rows<'a, S, A, D, const LOG: bool> {
    greatest: &'a [A],
    normalizer: &'a [A],
    strip: RowStrip<S, D>,
}

impl<S, A, D, const LOG: bool> Work for Rows<'_, S, A, D, LOG>
where
    S: To<A> + Copy,
    A: Float + To<D>,
{
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let RowStrip { x, x_step, out, out_step, rows } = self.strip;
        let len = self.greatest.len();
        for r in 0..rows as isize {
            let x = x.wrapping_offset(r * x_step);
            let out = out.wrapping_offset(r * out_step);
            // SAFETY: the caller of `finish_rows` promises that the rows are valid and don't overlap.
            let (x, out) = unsafe {
                (std::slice::from_raw_parts(x, len), std::slice::from_raw_parts_mut(out, len))
            };
            finish_row::<I, S, A, D, LOG>(out, x, self.greatest, self.normalizer);
        }
    }
}

#[inline(always)]
fn finish_row<I: Isa, S, A, D, const LOG: bool>(
    out: &mut [D],
    x: &[S],
    greatest: &[A],
    normalizer: &[A],
) where
    S: To<A> + Copy,
    A: Float + To<D>,
{
    for (((out, x), greatest), normalizer) in out.iter_mut().zip(x).zip(greatest).zip(normalizer) {
        let differences = x.convert().minus(*greatest);
        let result = if LOG {
            differences.minus(*normalizer)
        } else {
            differences.exp::<I>().times(*normalizer)
        };
        *out = result.convert();
    }
}

/// Dense rows of elements, a step apart, and the destination of their results.
pub(super) struct RowStrip<S, D> {
    pub(super) x: *const S,
    pub(super) x_step: isize,
    pub(super) out: *mut D,
    pub(super) out_step: isize,
    pub(super) rows: usize,
}

/// Writes the results of some rows, given each column's maximum and [`MaxAndSum::normalizer`].
///
/// # Safety
/// The rows are readable and writable, and the written rows overlap no others.
pub(super) unsafe fn finish_rows<S, A, D>(
    greatest: &[A],
    normalizer: &[A],
    strip: RowStrip<S, D>,
    log: bool,
) where
    S: To<A> + Copy,
    A: Float + To<D>,
{
    if log {
        isa::dispatch(Rows::<_, _, _, true> { greatest, normalizer, strip });
    } else {
        isa::dispatch(Rows::<_, _, _, false> { greatest, normalizer, strip });
    }
}
