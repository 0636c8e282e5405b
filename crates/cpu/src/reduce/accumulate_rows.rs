//! Accumulation of rows element by element, for reductions along dimensions other than the innermost in
//! memory.

use std::marker::PhantomData;

use keyfold_kit::isa::{self, Isa, Work};

use super::convert::{Convert, To, Unconverted};
use super::monoid::Monoid;

struct Accumulate<'a, C: Convert, M, J: Monoid> {
    from: *const C::From,
    step: isize,
    rows: usize,
    all: &'a mut [J::Number],
    marker: PhantomData<M>,
}

impl<C, M, J> Work for Accumulate<'_, C, M, J>
where
    C: Convert,
    M: Monoid<Number = C::To>,
    M::Number: To<J::Number>,
    J: Monoid,
{
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Accumulate { from, step, rows, all, .. } = self;
        let len = all.len();
        // SAFETY: the caller of `accumulate` promises that each row has that many elements.
        let row = |r: usize| unsafe {
            std::slice::from_raw_parts(from.wrapping_offset(r as isize * step), len)
        };
        let mut r = 0;
        // Four rows at a time, so that the accumulators are loaded and stored less often.
        while r + 4 <= rows {
            let rows = [row(r), row(r + 1), row(r + 2), row(r + 3)];
            if C::IN_GROUPS {
                grouped::<I, C, M, J>(all, rows);
            } else {
                accumulate_four::<C, M, J>(all, rows);
            }
            r += 4;
        }
        while r < rows {
            for (all, a) in all.iter_mut().zip(row(r)) {
                *all = J::combine(*all, C::one(*a).convert());
            }
            r += 1;
        }
    }
}

/// Accumulates four rows of elements that are converted in groups first.
#[inline(always)]
fn grouped<I, C, M, J>(all: &mut [J::Number], rows: [&[C::From]; 4])
where
    I: Isa,
    C: Convert,
    M: Monoid<Number = C::To>,
    M::Number: To<J::Number>,
    J: Monoid,
{
    let mut numbers = [[M::IDENTITY; CHUNK]; 4];
    for (at, all) in all.chunks_mut(CHUNK).enumerate() {
        let part = at * CHUNK..at * CHUNK + all.len();
        for (numbers, row) in numbers.iter_mut().zip(rows) {
            C::all::<I>(&row[part.clone()], &mut numbers[..all.len()]);
        }
        let [a, b, c, d] = &numbers;
        accumulate_four::<Unconverted<M::Number>, M, J>(all, [a, b, c, d]);
    }
}

#[inline(always)]
fn accumulate_four<C, M, J>(all: &mut [J::Number], [a, b, c, d]: [&[C::From]; 4])
where
    C: Convert,
    M: Monoid<Number = C::To>,
    M::Number: To<J::Number>,
    J: Monoid,
{
    let len = all.len();
    let (a, b, c, d) = (&a[..len], &b[..len], &c[..len], &d[..len]);
    if !M::HAS_SPECIAL {
        return combine_all::<C, M, J>(all, a, b, c, d);
    }
    // Special numbers are rare, so a chunk is checked as a whole before it is combined by the fast path.
    for start in (0..len).step_by(CHUNK) {
        let end = len.min(start + CHUNK);
        let all = &mut all[start..end];
        let (a, b) = (&a[start..end], &b[start..end]);
        let (c, d) = (&c[start..end], &d[start..end]);
        if are_special::<C, M, J>(all, a, b, c, d) {
            combine_all::<C, M, J>(all, a, b, c, d);
            continue;
        }
        for i in 0..all.len() {
            let (a, b) = (C::one(a[i]), C::one(b[i]));
            let (c, d) = (C::one(c[i]), C::one(d[i]));
            let all_four =
                M::combine_ordinary(M::combine_ordinary(a, b), M::combine_ordinary(c, d));
            all[i] = J::combine_ordinary(all[i], all_four.convert());
        }
    }
}

/// Elements that are checked together for special numbers.
const CHUNK: usize = 128;

#[inline(always)]
fn are_special<C, M, J>(
    all: &[J::Number],
    a: &[C::From],
    b: &[C::From],
    c: &[C::From],
    d: &[C::From],
) -> bool
where
    C: Convert,
    M: Monoid<Number = C::To>,
    J: Monoid,
{
    let len = all.len();
    let (a, b, c, d) = (&a[..len], &b[..len], &c[..len], &d[..len]);
    let mut special = false;
    for i in 0..len {
        special |= M::is_special(C::one(a[i])) | M::is_special(C::one(b[i]));
        special |= M::is_special(C::one(c[i])) | M::is_special(C::one(d[i]));
        special |= J::is_special(all[i]);
    }
    special
}

#[inline(always)]
fn combine_all<C, M, J>(
    all: &mut [J::Number],
    a: &[C::From],
    b: &[C::From],
    c: &[C::From],
    d: &[C::From],
) where
    C: Convert,
    M: Monoid<Number = C::To>,
    M::Number: To<J::Number>,
    J: Monoid,
{
    let len = all.len();
    let (a, b, c, d) = (&a[..len], &b[..len], &c[..len], &d[..len]);
    for i in 0..len {
        let (a, b) = (C::one(a[i]), C::one(b[i]));
        let (c, d) = (C::one(c[i]), C::one(d[i]));
        let all_four = M::combine(M::combine(a, b), M::combine(c, d));
        all[i] = J::combine(all[i], all_four.convert());
    }
}

/// Combines each accumulator with the element at its position in each of the rows, which are a step
/// apart. The elements are converted, several are combined by `M`, and the results are combined with the
/// accumulator by `J`.
///
/// # Safety
/// Each row has at least as many readable elements as there are accumulators.
pub(crate) unsafe fn accumulate<C, M, J>(
    from: *const C::From,
    step: isize,
    rows: usize,
    all: &mut [J::Number],
) where
    C: Convert,
    M: Monoid<Number = C::To>,
    M::Number: To<J::Number>,
    J: Monoid,
{
    isa::dispatch(Accumulate::<C, M, J> { from, step, rows, all, marker: PhantomData });
}
