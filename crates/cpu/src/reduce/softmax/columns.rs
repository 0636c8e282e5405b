//! Softmax along a dimension where neighbours in memory belong to different lanes: in tiles of columns,
//! whose rows are read twice. The first pass computes the maximum of each column and the sum of its
//! exponentials together: some rows at a time, with the sum so far rescaled to each new maximum.

use std::mem::MaybeUninit;
use std::ops::Range;

use keyfold_core::Result;

use super::Job;
use super::columns_loops::{Columns, RowStrip, finish_rows, include_rows};
use super::float::{Float, MaxAndSum};
use super::lanes::join_parts;
use crate::reduce::blocks::Block;
use crate::reduce::convert::To;
use crate::reduce::geometry::{Dim, count, runs, steps};
use crate::reduce::parallel::{DisjointSlice, for_parts};

/// Columns of a tile.
const WIDTH: usize = 1024;
/// Rows per step.
const ROWS: usize = 32;
/// The number of tasks that few tiles are divided into.
const TASKS: usize = 16;
/// Elements per task of one thread, approximately.
const TASK: usize = 1 << 15;

/// The division of columns into tiles: pieces of the innermost kept dimension, or, if it is short,
/// several indices of the dimension around it.
struct ColumnTiles<'a> {
    inner: Dim,
    around: Dim,
    outer: &'a [Dim],
    row: Dim,
    tile: (usize, usize),
    per_outer: usize,
    grouped: bool,
    read: bool,
    write: bool,
}

#[derive(Clone, Copy)]
struct Tile {
    x: isize,
    out: isize,
    size: (usize, usize),
}

impl<'a> ColumnTiles<'a> {
    fn new<S: Copy + 'static, D>(job: &'a Job<'_, S, D>) -> Self {
        let kept = &*job.geometry.kept;
        let (inner, around) = steps(kept);
        let (row, _) = steps(&job.geometry.reduced);
        let grouped = kept.len() > 1 && inner.size < WIDTH / 8;
        let outer = &kept[..kept.len() - 1 - usize::from(grouped)];
        let (tile, per_outer) = if grouped {
            let places = (WIDTH / inner.size).min(around.size);
            ((places, inner.size), around.size.div_ceil(places))
        } else {
            let parts = inner.size.div_ceil(WIDTH);
            let width = inner.size.div_ceil(parts).next_multiple_of(16).min(inner.size);
            ((1, width), inner.size.div_ceil(width))
        };
        let read = !grouped && job.input.direct() && inner.x == 1;
        let write = !grouped && inner.out == 1;
        ColumnTiles { inner, around, outer, row, tile, per_outer, grouped, read, write }
    }

    fn get(&self, tile: usize) -> Tile {
        let (outer, at) = (tile / self.per_outer, tile % self.per_outer);
        let mut place = Tile { x: 0, out: 0, size: self.tile };
        runs(self.outer, outer..outer + 1, 1, |run| (place.x, place.out) = (run.x, run.out));
        let (dim, size) = match self.grouped {
            true => (&self.around, &mut place.size.0),
            false => (&self.inner, &mut place.size.1),
        };
        let start = at * *size;
        *size = (*size).min(dim.size - start);
        place.x += dim.x * start as isize;
        place.out += dim.out * start as isize;
        place
    }

    fn width(&self) -> usize {
        self.tile.0 * self.tile.1
    }
}

struct Scratch<S, A, D> {
    greatest: Vec<A>,
    sum: Vec<A>,
    next: Vec<A>,
    part: Vec<A>,
    xs: Vec<MaybeUninit<S>>,
    outs: Vec<MaybeUninit<D>>,
}

impl<S: Copy, A: Float, D: Copy> Scratch<S, A, D> {
    fn new(tiles: &ColumnTiles<'_>) -> Self {
        let (width, reduce_staged) = (tiles.width(), tiles.width() * ROWS);
        Scratch {
            greatest: vec![A::ZERO; width],
            sum: vec![A::ZERO; width],
            next: vec![A::ZERO; width],
            part: vec![A::ZERO; width],
            xs: vec![MaybeUninit::uninit(); if tiles.read { 0 } else { reduce_staged }],
            outs: vec![MaybeUninit::uninit(); if tiles.write { 0 } else { reduce_staged }],
        }
    }
}

pub(super) fn softmax_columns<S, A, D>(job: &Job<'_, S, D>) -> Result<()>
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy,
{
    let tiles = ColumnTiles::new(job);
    let (rows, width) = (job.geometry.len(), tiles.width());
    let total = count(tiles.outer) * tiles.per_outer;
    let elements = rows * job.geometry.lanes();
    let most = (rows * width / TASK).max(1);
    let part = rows.div_ceil(TASKS.div_ceil(total).min(most)).next_multiple_of(ROWS);
    let parts = rows.div_ceil(part);
    if parts == 1 {
        let grain = (TASK / (width * rows)).max(1);
        return for_parts(total, grain, elements, |tasks| {
            let mut scratch = Scratch::<S, A, D>::new(&tiles);
            for tile in tasks {
                let tile = tiles.get(tile);
                max_and_sums_of_tile(job, &tiles, tile, 0..rows, &mut scratch);
                for (sum, greatest) in scratch.sum.iter_mut().zip(&scratch.greatest) {
                    *sum = MaxAndSum { greatest: *greatest, sum: *sum }.normalizer(job.log);
                }
                write(job, &tiles, tile, 0..rows, &mut scratch);
            }
            Ok(())
        });
    }
    let range = |task: usize| {
        let start = task % parts * part;
        start..rows.min(start + part)
    };
    let mut partial = vec![MaxAndSum::<A>::NONE; total * parts * width];
    let shared = DisjointSlice::new(&mut partial);
    for_parts(total * parts, 1, elements, |tasks| {
        let mut scratch = Scratch::<S, A, D>::new(&tiles);
        for task in tasks {
            max_and_sums_of_tile(job, &tiles, tiles.get(task / parts), range(task), &mut scratch);
            for (c, (greatest, sum)) in scratch.greatest.iter().zip(&scratch.sum).enumerate() {
                // The parts of a column are stored side by side.
                let at = (task / parts * width + c) * parts + task % parts;
                // SAFETY: each task writes to its own elements.
                unsafe { shared.write(at, MaxAndSum { greatest: *greatest, sum: *sum }) };
            }
        }
        Ok(())
    })?;
    let max_and_sum: Vec<_> = partial.chunks_exact(parts).map(join_parts).collect();
    for_parts(total * parts, 1, elements, |tasks| {
        let mut scratch = Scratch::<S, A, D>::new(&tiles);
        for task in tasks {
            let first = task / parts * width;
            for (c, max_and_sum) in max_and_sum[first..first + width].iter().enumerate() {
                scratch.greatest[c] = max_and_sum.greatest;
                scratch.sum[c] = max_and_sum.normalizer(job.log);
            }
            write(job, &tiles, tiles.get(task / parts), range(task), &mut scratch);
        }
        Ok(())
    })
}

/// Returns some rows of a tile: in place, or staged.
///
/// # Safety
/// The rows are inside the tensor, and fit in the stage.
unsafe fn rows_of<S: Copy + 'static, D>(
    job: &Job<'_, S, D>,
    tiles: &ColumnTiles<'_>,
    tile: Tile,
    rows: Range<usize>,
    xs: &mut [MaybeUninit<S>],
) -> (*const S, isize) {
    let x = tile.x + rows.start as isize * tiles.row.x;
    if tiles.read {
        return (job.input.at(x).cast(), tiles.row.x);
    }
    let (places, len) = tile.size;
    let width = places * len;
    let step = tiles.inner.x;
    // SAFETY: the caller's promise.
    unsafe {
        if places == 1 {
            let block = Block::along(rows.len(), tiles.row.x, len, step);
            job.input.fill(x, block, xs.as_mut_ptr().cast());
        } else {
            let block = Block::along(places, tiles.around.x, len, step);
            for row in 0..rows.len() {
                let x = x + row as isize * tiles.row.x;
                job.input.fill(x, block, xs[row * width..].as_mut_ptr().cast());
            }
        }
    }
    (xs.as_ptr().cast(), width as isize)
}

/// Computes the maximum and the sum of each of a tile's columns, into `scratch`.
fn max_and_sums_of_tile<S, A, D>(
    job: &Job<'_, S, D>,
    tiles: &ColumnTiles<'_>,
    tile: Tile,
    rows: Range<usize>,
    scratch: &mut Scratch<S, A, D>,
) where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy,
{
    let width = tile.size.0 * tile.size.1;
    scratch.greatest[..width].fill(A::LOWEST);
    scratch.sum[..width].fill(A::ZERO);
    for start in rows.clone().step_by(ROWS) {
        let some = start..rows.end.min(start + ROWS);
        let columns = Columns {
            greatest: &mut scratch.greatest[..width],
            sum: &mut scratch.sum[..width],
            next: &mut scratch.next[..width],
            part: &mut scratch.part[..width],
        };
        // SAFETY: the rows are inside the tensor.
        unsafe {
            let (x, step) = rows_of(job, tiles, tile, some.clone(), &mut scratch.xs);
            include_rows(columns, x, step, some.len());
        }
    }
}

/// Writes the results of a tile, given each column's maximum and [`MaxAndSum::normalizer`].
fn write<S, A, D>(
    job: &Job<'_, S, D>,
    tiles: &ColumnTiles<'_>,
    tile: Tile,
    rows: Range<usize>,
    scratch: &mut Scratch<S, A, D>,
) where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy,
{
    let (places, len) = tile.size;
    let width = places * len;
    let Scratch { greatest, sum, xs, outs, .. } = scratch;
    for start in rows.clone().step_by(ROWS) {
        let some = start..rows.end.min(start + ROWS);
        let at = tile.out + start as isize * tiles.row.out;
        // SAFETY: the rows are inside both tensors, and no other task writes this tile's results.
        unsafe {
            let (x, x_step) = rows_of(job, tiles, tile, some.clone(), xs);
            let (out, out_step) = match tiles.write {
                true => (job.sink.at(at).cast(), tiles.row.out),
                false => (outs.as_mut_ptr().cast::<D>(), width as isize),
            };
            let strip = RowStrip { x, x_step, out, out_step, rows: some.len() };
            finish_rows(&greatest[..width], &sum[..width], strip, job.log);
            if tiles.write {
                continue;
            }
            for row in 0..some.len() {
                let at = at + row as isize * tiles.row.out;
                for place in 0..places {
                    let results = out.add(row * width + place * len);
                    let results = std::slice::from_raw_parts_mut(results, len);
                    let at = at + place as isize * tiles.around.out;
                    job.sink.put(results, at, tiles.inner.out);
                }
            }
        }
    }
}
