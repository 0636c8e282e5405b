//! Batch norm whose channels are short: the tensor is a matrix of examples by columns, where each channel is a
//! few columns side by side.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::isa::{self, Isa, Work};

use super::forward::TASK;
use super::loops::Moments;
use super::memory::{BLOCK, Float, Source, Target};
use crate::reduce::parallel::{DisjointSlice, for_parts};

/// Columns that are computed together: rows of that many elements are read one after another.
const PANEL: usize = 256;

/// Rows whose sums are computed in the cache, and then added in float64.
const ROWS: usize = 64;

/// The rows of a part, whose sums one thread computes. It depends only on sizes, so that sums don't depend on
/// the number of threads.
fn rows_of_part(columns: usize) -> usize {
    ((1 << 18) / columns.max(1)).clamp(ROWS, 1 << 14)
}

/// A matrix of examples by columns.
#[derive(Clone, Copy)]
pub(super) struct Matrix<A> {
    pub(super) source: Source<A>,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl<A: Float> Matrix<A> {
    /// Returns the elements of a row in a panel.
    ///
    /// # Safety
    /// The row and the panel are inside.
    #[inline(always)]
    unsafe fn read<'b>(&self, row: usize, panel: &Range<usize>, buffer: &'b mut [A]) -> &'b [A] {
        // SAFETY: the caller's promise; a panel fits into the buffer.
        unsafe { self.source.read(row * self.columns + panel.start, panel.len(), buffer) }
    }
}

/// Computes the moments of the columns in some rows.
struct ColumnMoments<'a, A>(Matrix<A>, Range<usize>, &'a mut [Moments]);

impl<A: Float> Work for ColumnMoments<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ColumnMoments(matrix, rows, all) = self;
        let mut buffer = matrix.source.buffer();
        for start in (0..matrix.columns).step_by(PANEL) {
            let panel = start..matrix.columns.min(start + PANEL);
            for first in rows.clone().step_by(ROWS) {
                let some = first..rows.end.min(first + ROWS);
                let (mut means, mut squares) = ([A::ZERO; PANEL], [A::ZERO; PANEL]);
                for row in some.clone() {
                    // SAFETY: the row and the panel are inside the matrix.
                    let x = unsafe { matrix.read(row, &panel, &mut buffer) };
                    for (sum, x) in means.iter_mut().zip(x) {
                        *sum = *sum + *x;
                    }
                }
                let count = some.len() as f64;
                let share = A::from_f64(1.0 / count);
                for mean in &mut means {
                    *mean = *mean * share;
                }
                for row in some {
                    // SAFETY: as above.
                    let x = unsafe { matrix.read(row, &panel, &mut buffer) };
                    for ((sum, mean), x) in squares.iter_mut().zip(&means).zip(x) {
                        let distance = *x - *mean;
                        *sum = distance.mul_add::<I>(distance, *sum);
                    }
                }
                for ((all, mean), squares) in all[panel.clone()].iter_mut().zip(means).zip(squares)
                {
                    let (mean, squares) = (mean.to_f64(), squares.to_f64());
                    *all = all.join(Moments { count, mean, squares });
                }
            }
        }
    }
}

/// Returns the moments of each column.
///
/// # Errors
/// Those of the thread pool.
pub(super) fn moments<A: Float>(matrix: Matrix<A>) -> Result<Vec<Moments>> {
    let Matrix { rows, columns, .. } = matrix;
    let part = rows_of_part(columns);
    let parts = rows.div_ceil(part);
    let mut all = vec![Moments::default(); parts * columns];
    let shared = DisjointSlice::new(&mut all);
    for_parts(parts, 1, rows * columns, |tasks| {
        for task in tasks {
            // SAFETY: each task has a range of its own.
            let own = unsafe { shared.part(task * columns..(task + 1) * columns) };
            let rows = task * part..rows.min((task + 1) * part);
            isa::dispatch(ColumnMoments(matrix, rows, own));
        }
        Ok(())
    })?;
    let (first, others) = all.split_at_mut(columns);
    for part in others.chunks_exact(columns) {
        first.iter_mut().zip(part).for_each(|(all, part)| *all = all.join(*part));
    }
    all.truncate(columns);
    Ok(all)
}

/// Computes the sums of the gradients, and of their products with the distances from the mean.
struct ColumnSums<'a, A> {
    grad: Matrix<A>,
    x: Matrix<A>,
    means: &'a [A],
    rows: Range<usize>,
    sums: &'a mut [(f64, f64)],
}

impl<A: Float> Work for ColumnSums<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ColumnSums { grad, x, means, rows, sums } = self;
        let (mut of_grad, mut of_x) = (grad.source.buffer(), x.source.buffer());
        for start in (0..x.columns).step_by(PANEL) {
            let panel = start..x.columns.min(start + PANEL);
            for first in rows.clone().step_by(ROWS) {
                let (mut totals, mut products) = ([A::ZERO; PANEL], [A::ZERO; PANEL]);
                for row in first..rows.end.min(first + ROWS) {
                    // SAFETY: the row and the panel are inside the matrices.
                    let (g, x) = unsafe {
                        (grad.read(row, &panel, &mut of_grad), x.read(row, &panel, &mut of_x))
                    };
                    let sums = totals.iter_mut().zip(&mut products);
                    let means = &means[panel.clone()];
                    for ((((total, product), g), x), mean) in sums.zip(g).zip(x).zip(means) {
                        *total = *total + *g;
                        *product = g.mul_add::<I>(*x - *mean, *product);
                    }
                }
                let own = sums[panel.clone()].iter_mut();
                for ((sums, total), product) in own.zip(totals).zip(products) {
                    sums.0 += total.to_f64();
                    sums.1 += product.to_f64();
                }
            }
        }
    }
}

/// Returns the sums of each column: of the gradients, and of their products with the distances from the mean.
///
/// # Errors
/// Those of the thread pool.
pub(super) fn gradient_sums<A: Float>(
    grad: Matrix<A>,
    x: Matrix<A>,
    means: &[A],
) -> Result<Vec<(f64, f64)>> {
    let Matrix { rows, columns, .. } = x;
    let part = rows_of_part(columns);
    let parts = rows.div_ceil(part);
    let mut all = vec![(0.0, 0.0); parts * columns];
    let shared = DisjointSlice::new(&mut all);
    for_parts(parts, 1, rows * columns, |tasks| {
        for task in tasks {
            // SAFETY: each task has a range of its own.
            let sums = unsafe { shared.part(task * columns..(task + 1) * columns) };
            let rows = task * part..rows.min((task + 1) * part);
            isa::dispatch(ColumnSums { grad, x, means, rows, sums });
        }
        Ok(())
    })?;
    let (first, others) = all.split_at_mut(columns);
    for part in others.chunks_exact(columns) {
        for (all, part) in first.iter_mut().zip(part) {
            *all = (all.0 + part.0, all.1 + part.1);
        }
    }
    all.truncate(columns);
    Ok(all)
}

/// Writes `(x - mean) * by + plus * g + constant` for each element, where the factors are the columns'.
struct ColumnResults<'a, A> {
    x: Matrix<A>,
    /// The gradients, and their factors.
    grad: Option<(Matrix<A>, &'a [A])>,
    factors: [&'a [A]; 3],
    out: Target<A>,
    rows: Range<usize>,
}

impl<A: Float> Work for ColumnResults<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ColumnResults { x, grad, factors: [means, by, constants], out, rows } = self;
        let of_grad = &mut grad.map_or_else(Vec::new, |(grad, _)| grad.source.buffer());
        let (of_x, to) = (&mut x.source.buffer(), &mut out.buffer());
        for row in rows {
            for start in (0..x.columns).step_by(BLOCK) {
                let panel = start..x.columns.min(start + BLOCK);
                let (means, by) = (&means[panel.clone()], &by[panel.clone()]);
                let constants = &constants[panel.clone()];
                let at = row * x.columns + panel.start;
                // SAFETY: the row and the panel are inside the matrices, and this thread alone computes them.
                let (x, y) = unsafe { (x.read(row, &panel, of_x), out.begin(at, panel.len(), to)) };
                let columns = means.iter().zip(by).zip(constants);
                for ((y, x), ((mean, by), constant)) in y.iter_mut().zip(x).zip(columns) {
                    *y = (*x - *mean).mul_add::<I>(*by, *constant);
                }
                if let Some((grad, plus)) = grad {
                    // SAFETY: as above.
                    let g = unsafe { grad.read(row, &panel, of_grad) };
                    for ((y, g), plus) in y.iter_mut().zip(g).zip(&plus[panel.clone()]) {
                        *y = g.mul_add::<I>(*plus, *y);
                    }
                }
                // SAFETY: as above.
                unsafe { out.end(at, panel.len(), to) };
            }
        }
    }
}

/// Writes `(x - mean) * by + constant` for each element, and `plus * g` more if there are gradients; the
/// factors are the columns': the means, `by`, and the constants.
///
/// # Errors
/// Those of the thread pool.
pub(super) fn results<A: Float>(
    x: Matrix<A>,
    grad: Option<(Matrix<A>, &[A])>,
    factors: [&[A]; 3],
    out: Target<A>,
) -> Result<()> {
    let grain = (TASK / x.columns.max(1)).max(1);
    for_parts(x.rows, grain, x.rows * x.columns, |rows| {
        isa::dispatch(ColumnResults { x, grad, factors, out, rows });
        Ok(())
    })
}
