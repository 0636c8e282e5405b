//! Products of matrices that stay in the cache: the tiles of scores, and what they are multiplied with.

use std::array;

use keyfold_kit::isa::{Isa, Level, Work};
use keyfold_kit::math::Real;

/// The number that the columns of a product are a multiple of: no level's registers are left half full.
pub(super) const COLUMNS: usize = 16;

/// The product of `a` (`rows x depth`, of any steps) and `b` (`depth x columns`, dense along its rows),
/// added to `c` or written there.
///
/// The matrices lie in readable and writable memory, `columns` is a multiple of [`COLUMNS`], and `c`
/// overlaps neither factor.
pub(super) struct Product<T> {
    pub(super) a: *const T,
    /// The steps of `a` from row to row and along a row.
    pub(super) a_steps: (isize, isize),
    pub(super) b: *const T,
    pub(super) b_row: isize,
    pub(super) c: *mut T,
    pub(super) c_row: isize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
    /// Whether the product is added to `c`.
    pub(super) adds: bool,
}

impl<T: Real> Work for Product<T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        // Two registers of columns, and as many rows as the accumulators leave registers for. Wider panels
        // come first, so that what is left over is one narrower panel.
        match (I::LEVEL, size_of::<T>()) {
            (Level::Avx512, 4) => {
                let done = self.panels::<I, 8, 32>(0);
                self.panels::<I, 8, 16>(done);
            }
            (Level::Avx512, _) => _ = self.panels::<I, 8, 16>(0),
            (Level::Avx2, 4) => _ = self.panels::<I, 4, 16>(0),
            (Level::Avx2, _) | (Level::Baseline, 4) => _ = self.panels::<I, 4, 8>(0),
            (Level::Baseline, _) => _ = self.panels::<I, 4, 4>(0),
        }
    }
}

impl<T: Real> Product<T> {
    /// Computes whole panels of `N` columns from one on, and returns the first column that is left.
    #[inline(always)]
    fn panels<I: Isa, const M: usize, const N: usize>(&self, mut column: usize) -> usize {
        while column + N <= self.columns {
            for row in (0..self.rows).step_by(M) {
                // SAFETY: the type's contract; the rows and columns are inside.
                unsafe { self.tile::<I, M, N>(row, column) };
            }
            column += N;
        }
        column
    }

    /// Computes `M` rows, or those that are left, of `N` columns, whose sums stay in registers.
    ///
    /// # Safety
    /// The type's contract, and the first row and all columns are inside.
    #[inline(always)]
    unsafe fn tile<I: Isa, const M: usize, const N: usize>(&self, row: usize, column: usize) {
        let rows = M.min(self.rows - row);
        // SAFETY: rows that aren't there are computed as copies of the last one, and not written.
        unsafe {
            let a: [*const T; M] = array::from_fn(|i| {
                self.a.offset((row + i.min(rows - 1)) as isize * self.a_steps.0)
            });
            let mut b = self.b.add(column);
            let mut sums = [[T::ZERO; N]; M];
            for k in 0..self.depth as isize {
                let line = b.cast::<[T; N]>().read();
                for (sums, a) in sums.iter_mut().zip(a) {
                    let x = a.offset(k * self.a_steps.1).read();
                    for (sum, y) in sums.iter_mut().zip(line) {
                        *sum = x.mul_add::<I>(y, *sum);
                    }
                }
                b = b.wrapping_offset(self.b_row);
            }
            for (i, sums) in sums.iter_mut().enumerate().take(rows) {
                let to = self.c.offset((row + i) as isize * self.c_row).add(column);
                let to = to.cast::<[T; N]>();
                if self.adds {
                    let before = to.read();
                    for (sum, x) in sums.iter_mut().zip(before) {
                        *sum = *sum + x;
                    }
                }
                to.write(*sums);
            }
        }
    }
}
