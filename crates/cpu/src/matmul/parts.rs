//! Dividing products among threads: by the batch, and by rows and columns of each result.

use keyfold_core::Result;
use keyfold_kit::pool::{PIECE_NANOSECONDS, Schedule, grain_for, num_threads, parallel_for};
use keyfold_tensor::{Tensor, for_each_offset};

use super::matrix::{Matrix, Operands, Sizes};
use crate::bits::Bits;

/// The most elements of a part that is written in place: larger ones gain nothing, and smaller ones are
/// shared more evenly.
pub(super) const PART: usize = 528 * 512;

/// Rows and columns of a part are multiples of these, except at the end: whole tiles of the kernels.
const ROWS: usize = 24;
const COLUMNS: usize = 64;

/// The parts of a large product for each thread.
const PARTS_PER_THREAD: usize = 2;

/// The place of a part: the index in the batch, and the first row and column.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) batch: usize,
    pub(super) row: usize,
    pub(super) column: usize,
}

/// Rows and columns of one result of the batch.
pub(super) struct Part<'a, S> {
    /// The sizes of the part's own product.
    pub(super) sizes: Sizes,
    pub(super) a: Matrix<'a, S>,
    pub(super) b: Matrix<'a, S>,
    pub(super) place: Place,
}

impl<'a, S: Bits> Part<'a, S> {
    /// Returns the product of two matrices as one part, if this thread alone should compute it: the shortest
    /// way for the smallest calls.
    ///
    /// # Errors
    /// If the host can't access the memory.
    #[inline(always)]
    pub(super) fn single(a: &'a Tensor, b: &'a Tensor, costs: &Costs) -> Result<Option<Self>> {
        let (&[m, k], &[_, n]) = (&a.shape()[..], &b.shape()[..]) else { return Ok(None) };
        let sizes = Sizes { m, k, n };
        if cost_of(sizes, costs) > PIECE_NANOSECONDS || !costs.allow(m, n) {
            return Ok(None);
        }
        let (a, b) = (Matrix::new(a)?, Matrix::new(b)?);
        Ok(Some(Part { sizes, a, b, place: Place::default() }))
    }
}

/// The costs that decide how work is divided.
pub(super) struct Costs {
    /// Nanoseconds of a multiplication with its addition.
    pub(super) nanoseconds: f64,
    /// The most elements of a part.
    pub(super) part: usize,
    /// The most rows or columns of a part.
    pub(super) side: usize,
}

impl Costs {
    fn allow(&self, rows: usize, columns: usize) -> bool {
        rows.saturating_mul(columns) <= self.part && rows.max(columns) <= self.side
    }
}

/// Nanoseconds of a multiplication that waits for memory: one of a matrix and a vector, where each element
/// is used once.
const MEMORY_NANOSECONDS: f64 = 0.12;

impl<S: Bits> Operands<'_, S> {
    /// Calls `f` with parts that make up all results, on several threads if that pays.
    ///
    /// # Errors
    /// Those of the pool.
    #[inline]
    pub(super) fn for_parts(&self, costs: &Costs, f: impl Fn(Part<'_, S>) + Sync) -> Result<()> {
        let Sizes { m, k, n } = self.sizes;
        let count: usize = self.batch.iter().product();
        let each = cost_of(self.sizes, costs);
        if each * count as f64 > PIECE_NANOSECONDS || !costs.allow(m, n) {
            return self.share(costs, count, f);
        }
        let mut place = Place::default();
        for_each_offset(&self.batch, [&self.a.steps, &self.b.steps], |[at_a, at_b]| {
            let (a, b) = (self.a.at(at_a), self.b.at(at_b));
            f(Part { sizes: Sizes { m, k, n }, a, b, place });
            place.batch += 1;
        })
    }

    /// As [`Operands::for_parts`], with the threads of the pool.
    #[inline(never)]
    fn share(&self, costs: &Costs, count: usize, f: impl Fn(Part<'_, S>) + Sync) -> Result<()> {
        let Sizes { m, k, n } = self.sizes;
        let (rows, columns) = part_size(self.sizes, count, num_threads()?, costs);
        let (down, across) = (m.div_ceil(rows), n.div_ceil(columns));
        let grain = grain_for(cost_of(Sizes { m: rows, k, n: columns }, costs));
        parallel_for(Schedule::Adaptive, 0..count * down * across, grain, |parts| {
            for part in parts {
                let (batch, own) = (part / (down * across), part % (down * across));
                let (row, column) = (own / across * rows, own % across * columns);
                let sizes = Sizes { m: rows.min(m - row), k, n: columns.min(n - column) };
                let a = self.a.nth(batch, &self.batch).from(row, 0);
                let b = self.b.nth(batch, &self.batch).from(0, column);
                f(Part { sizes, a, b, place: Place { batch, row, column } });
            }
            Ok(())
        })
    }
}

fn cost_of(Sizes { m, k, n }: Sizes, costs: &Costs) -> f64 {
    let each = if m.min(n) < 4 { MEMORY_NANOSECONDS } else { costs.nanoseconds };
    each.max(costs.nanoseconds) * m as f64 * k as f64 * n as f64
}

/// Returns the rows and columns of a part: the whole result, halved until the parts are small enough, and
/// there are enough of them for all threads.
fn part_size(sizes: Sizes, count: usize, threads: usize, costs: &Costs) -> (usize, usize) {
    let Sizes { m, k, n } = sizes;
    let enough = if threads == 1 { 1 } else { threads * PARTS_PER_THREAD };
    let half = |size: usize, unit: usize| size.div_ceil(2).next_multiple_of(unit).min(size);
    let (mut rows, mut columns) = (m, n);
    loop {
        let parts = count.saturating_mul(m.div_ceil(rows)).saturating_mul(n.div_ceil(columns));
        let cost = cost_of(Sizes { m: rows, k, n: columns }, costs);
        if costs.allow(rows, columns) && (parts >= enough || cost <= 2.0 * PIECE_NANOSECONDS) {
            return (rows, columns);
        }
        let by_row = (half(rows, ROWS), columns);
        let by_column = (rows, half(columns, COLUMNS));
        let next = if rows >= columns { [by_row, by_column] } else { [by_column, by_row] };
        let Some(smaller) = next.into_iter().find(|next| *next != (rows, columns)) else {
            return (rows, columns);
        };
        (rows, columns) = smaller;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_small_and_enough_for_the_threads() {
        let costs = Costs { nanoseconds: 0.02, part: PART, side: usize::MAX };
        let size = |m, k, n, threads| part_size(Sizes { m, k, n }, 1, threads, &costs);
        assert_eq!(size(2048, 2048, 2048, 1), (528, 512));
        assert_eq!(size(64, 64, 64, 2), (64, 64));
        assert_eq!(size(512, 512, 512, 2), (264, 256));
        let (rows, columns) = size(8, 4096, 4096, 2);
        assert_eq!((rows, columns), (8, 1024));
        let (rows, columns) = size(1 << 20, 1, 1, 2);
        assert!(rows >= 24 && columns == 1);
        assert_eq!(size(1, usize::MAX, 1, 8), (1, 1));
    }
}
