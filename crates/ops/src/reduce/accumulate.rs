//! Rows of numbers combined element by element, for reductions along other dimensions than the
//! nearest in memory.

use keyfold_expr::isa::{self, Isa, Work};

use super::monoid::Monoid;

struct Accumulate<'a, M: Monoid> {
    from: *const M::Number,
    step: isize,
    rows: usize,
    all: &'a mut [M::Number],
}

impl<M: Monoid> Work for Accumulate<'_, M> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Accumulate { from, step, rows, all } = self;
        let len = all.len();
        // SAFETY: the caller of `accumulate` says that each row has so many numbers there.
        let row = |r: usize| unsafe {
            std::slice::from_raw_parts(from.wrapping_offset(r as isize * step), len)
        };
        let mut r = 0;
        // Four at a time, so that the results are loaded and stored less often.
        while r + 4 <= rows {
            four::<M>(all, row(r), row(r + 1), row(r + 2), row(r + 3));
            r += 4;
        }
        while r < rows {
            one::<M>(all, row(r));
            r += 1;
        }
    }
}

#[inline(always)]
fn four<M: Monoid>(
    all: &mut [M::Number],
    a: &[M::Number],
    b: &[M::Number],
    c: &[M::Number],
    d: &[M::Number],
) {
    let len = all.len();
    let (a, b, c, d) = (&a[..len], &b[..len], &c[..len], &d[..len]);
    for i in 0..len {
        let pair = M::combine(M::combine(a[i], b[i]), M::combine(c[i], d[i]));
        all[i] = M::combine(all[i], pair);
    }
}

#[inline(always)]
fn one<M: Monoid>(all: &mut [M::Number], a: &[M::Number]) {
    for (all, a) in all.iter_mut().zip(a) {
        *all = M::combine(*all, *a);
    }
}

/// Combines each of `all` with the number at its place in each row, the rows a step apart.
///
/// # Safety
/// As many numbers as there are in `all` can be read in each row.
pub(crate) unsafe fn accumulate<M: Monoid>(
    from: *const M::Number,
    step: isize,
    rows: usize,
    all: &mut [M::Number],
) {
    isa::dispatch(Accumulate::<M> { from, step, rows, all });
}
