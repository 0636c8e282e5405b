//! Reductions along dimensions where neighbours in memory belong to different lanes: rows are
//! accumulated in a tile of columns that stays in the cache.
//!
//! Tiles, and parts of their rows if there are few tiles, are divided among threads. The division
//! depends only on shape and layout, and parts are combined pairwise in order, so no result depends on
//! the number of threads. Within a part, the sum of every [`ROWS`] rows is pushed to a cascade, so that
//! rounding errors stay small.

use std::ops::Range;

use keyfold_core::{Dims, Result};

use super::blocks::{Block, Input, Sink};
use super::cascade::fold_rows;
use super::geometry::{Dim, Geometry, count, runs, steps};
use super::group::PARTIALS;
use super::kernels::ReductionKernels;
use super::parallel::{DisjointSlice, for_parts};

/// Bytes of a tile whose rows are accumulated in place.
const DIRECT_TILE_BYTES: usize = 8 << 10;
/// Bytes of a tile whose rows are converted first.
const STAGED_TILE_BYTES: usize = 2 << 10;
/// Rows that are accumulated in order.
const ROWS: usize = 128;
/// The number of tasks that few tiles are divided into.
const TASKS: usize = 64;
/// The fewest elements of a part of a tile's rows.
const PART_ELEMENTS: usize = 1 << 15;

/// A reduction of columns.
pub(crate) struct Columns<'a, S, A> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) input: Input<S>,
    pub(crate) ops: ReductionKernels<S, A>,
    pub(crate) sink: Sink<A>,
}

/// The elements that form a row of a tile.
#[derive(Clone, Copy, PartialEq)]
enum TileRow {
    /// A piece of the innermost dimension.
    Piece,
    /// Several rows of a short innermost dimension, which are combined with each other at the end.
    SeveralRows,
    /// A short innermost dimension, at several indices of the dimension around it.
    SeveralIndices,
}

struct ColumnTiles<'a> {
    shape: TileRow,
    /// The innermost kept dimension, and the one around it.
    inner: Dim,
    around: Dim,
    /// The dimensions outside the tiles.
    outer: &'a [Dim],
    /// The size of a tile along `around` (for wide rows, along the rows) and along `inner`.
    tile: (usize, usize),
    /// Tiles per index of `outer`.
    per_outer: usize,
    /// The reduced dimensions; `row` is the innermost of them before wide rows were formed.
    rows: Dims<Dim>,
    row: Dim,
    /// Whether rows are read in place.
    direct: bool,
}

impl<'a> ColumnTiles<'a> {
    fn new<S: Copy + 'static, A: Accumulator>(job: &'a Columns<'_, S, A>) -> Self {
        let kept = &*job.geometry.kept;
        let (inner, around) = steps(kept);
        let (row, _) = steps(&job.geometry.reduced);
        let dense = job.input.direct() && (inner.x == 1 || inner.size == 1);
        let elements_of = |bytes: usize| (bytes / size_of::<A>()).max(64);
        let mut rows = job.geometry.reduced.clone();
        let mut outer = &kept[..kept.len().saturating_sub(1)];
        let short = inner.size < elements_of(STAGED_TILE_BYTES) / 2;
        let (shape, direct, tile, per_outer);
        // Rows that fill vectors are accumulated one by one.
        let fills = dense && !outer.is_empty() && inner.size >= PARTIALS && row.size >= PARTIALS;
        if short && !fills && row.size * inner.size >= elements_of(STAGED_TILE_BYTES) {
            shape = TileRow::SeveralRows;
            direct = dense && row.x == inner.size as isize;
            let wide =
                (elements_of(if direct { DIRECT_TILE_BYTES / 2 } else { STAGED_TILE_BYTES })
                    / inner.size)
                    .min(row.size);
            (tile, per_outer) = ((wide, inner.size), 1);
            if let Some(last) = rows.last_mut() {
                *last = Dim { size: row.size.div_ceil(wide), x: row.x * wide as isize, out: 0 };
            }
        } else if short && !fills && !outer.is_empty() {
            (shape, direct) = (TileRow::SeveralIndices, false);
            let places = (elements_of(STAGED_TILE_BYTES) / inner.size).min(around.size);
            (tile, per_outer) = ((places, inner.size), around.size.div_ceil(places));
            outer = &outer[..outer.len() - 1];
        } else {
            (shape, direct) = (TileRow::Piece, dense);
            let parts = inner.size.div_ceil(elements_of(if direct {
                DIRECT_TILE_BYTES
            } else {
                STAGED_TILE_BYTES
            }));
            // Tiles of nearly equal size, in whole cache lines.
            let width = inner.size.div_ceil(parts).next_multiple_of(64).min(inner.size);
            (tile, per_outer) = ((1, width), inner.size.div_ceil(width));
        }
        ColumnTiles { shape, inner, around, outer, tile, per_outer, rows, row, direct }
    }

    fn width(&self) -> usize {
        self.tile.0 * self.tile.1
    }

    fn tiles(&self) -> usize {
        count(self.outer) * self.per_outer
    }

    /// Returns the offset of a tile in input and result, and its size.
    fn offsets(&self, tile: usize) -> TileOffsets {
        let (outer, at) = (tile / self.per_outer, tile % self.per_outer);
        let mut offsets = TileOffsets { x: 0, out: 0, tile: self.tile };
        runs(self.outer, outer..outer + 1, 1, |run| (offsets.x, offsets.out) = (run.x, run.out));
        let mut forward = |dim: &Dim, by: usize| {
            offsets.x += dim.x * by as isize;
            offsets.out += dim.out * by as isize;
            by
        };
        match self.shape {
            TileRow::SeveralRows => {}
            TileRow::SeveralIndices => {
                let start = forward(&self.around, at * self.tile.0);
                offsets.tile.0 = self.tile.0.min(self.around.size - start);
            }
            TileRow::Piece => {
                let start = forward(&self.inner, at * self.tile.1);
                offsets.tile.1 = self.tile.1.min(self.inner.size - start);
            }
        }
        offsets
    }
}

#[derive(Clone, Copy)]
struct TileOffsets {
    x: isize,
    out: isize,
    tile: (usize, usize),
}

/// The memory of one thread.
struct Scratch<S, A> {
    sums: Vec<A>,
    /// Staging memory for rows that are gathered first.
    stage: Vec<S>,
    /// Elements that fit in the stage.
    stage_len: usize,
    /// The pending sums of each level; see [`super::cascade`].
    pending: Vec<A>,
    pushed: u64,
}

/// The type of an accumulator.
pub(crate) trait Accumulator: Copy + Send + Sync + 'static {}
impl<A: Copy + Send + Sync + 'static> Accumulator for A {}

/// Reduces every lane; none is empty.
///
/// # Errors
/// Those of [`for_parts`](crate::reduce::parallel::for_parts).
pub(crate) fn reduce_columns<S, A>(job: &Columns<'_, S, A>) -> Result<()>
where
    S: Copy + 'static,
    A: Accumulator,
{
    let plan = ColumnTiles::new(job);
    let (tiles, width, rows) = (plan.tiles(), plan.width(), count(&plan.rows));
    let elements = job.geometry.lanes() * job.geometry.len();
    let most = (rows * width / PART_ELEMENTS).max(1);
    let part = rows.div_ceil(TASKS.div_ceil(tiles).min(most)).next_multiple_of(4);
    let parts = rows.div_ceil(part);
    if parts == 1 {
        let grain = (PART_ELEMENTS / (width * rows)).max(1);
        return for_parts(tiles, grain, elements, |tasks| {
            let mut scratch = Scratch::new(&plan);
            for tile in tasks {
                let offsets = plan.offsets(tile);
                part_of_tile(job, &plan, offsets, 0..rows, &mut scratch);
                put(job, &plan, offsets, &mut scratch.sums);
            }
            Ok(())
        });
    }
    let kept = if plan.shape == TileRow::SeveralRows { plan.tile.1 } else { width };
    let mut partial = vec![job.ops.identity(); tiles * parts * kept];
    let shared = DisjointSlice::new(&mut partial);
    for_parts(tiles * parts, 1, elements, |tasks| {
        let mut scratch = Scratch::new(&plan);
        for task in tasks {
            let (tile, at) = (task / parts, task % parts);
            let range = at * part..rows.min((at + 1) * part);
            part_of_tile(job, &plan, plan.offsets(tile), range, &mut scratch);
            // SAFETY: each task writes to its own elements.
            let results = unsafe { shared.part(task * kept..(task + 1) * kept) };
            results[..scratch.sums.len()].copy_from_slice(&scratch.sums);
        }
        Ok(())
    })?;
    for (tile, partial) in partial.chunks_exact_mut(parts * kept).enumerate() {
        fold_rows(partial, kept, |all, one| add(&job.ops, all, one));
        put(job, &plan, plan.offsets(tile), partial);
    }
    Ok(())
}

fn add<S, A: Copy>(ops: &ReductionKernels<S, A>, all: &mut [A], one: &[A]) {
    let all = &mut all[..one.len()];
    // SAFETY: one row, as long as `all`.
    unsafe { (ops.merge)(one.as_ptr(), 0, 1, all) }
}

impl<S: Copy + 'static, A: Accumulator> Scratch<S, A> {
    fn new(plan: &ColumnTiles<'_>) -> Self {
        let stage_len = if plan.direct { 0 } else { 4 * plan.width() };
        Scratch {
            sums: Vec::with_capacity(plan.width()),
            stage: Vec::with_capacity(stage_len),
            stage_len,
            pending: Vec::new(),
            pushed: 0,
        }
    }

    /// Pushes the sums to the cascade: stores them at a free level, or combines them with that level's
    /// sums and continues at the next level.
    fn push(&mut self, ops: &ReductionKernels<S, A>) {
        let width = self.sums.len();
        let level = self.pushed.trailing_ones() as usize;
        for pending in self.pending.chunks_exact(width).take(level) {
            add(ops, &mut self.sums, pending);
        }
        if self.pending.len() == level * width {
            self.pending.extend_from_slice(&self.sums);
        } else {
            self.pending[level * width..(level + 1) * width].copy_from_slice(&self.sums);
        }
        self.pushed += 1;
        self.sums.fill(ops.identity());
    }

    fn finish(&mut self, ops: &ReductionKernels<S, A>) {
        let width = self.sums.len();
        for (level, pending) in self.pending.chunks_exact(width).enumerate() {
            if self.pushed >> level & 1 == 1 {
                add(ops, &mut self.sums, pending);
            }
        }
    }
}

/// Combines the rows of a tile into `scratch.sums`.
fn part_of_tile<S: Copy + 'static, A: Accumulator>(
    job: &Columns<'_, S, A>,
    plan: &ColumnTiles<'_>,
    offsets: TileOffsets,
    range: Range<usize>,
    scratch: &mut Scratch<S, A>,
) {
    let width = offsets.tile.0 * offsets.tile.1;
    scratch.sums.clear();
    scratch.sums.resize(width, job.ops.identity());
    scratch.pending.clear();
    scratch.pushed = 0;
    let mut fresh = 0;
    let (last, _) = steps(&plan.rows);
    let inside = range.start;
    let mut at = inside;
    runs(&plan.rows, range, 1, |run| {
        let mut done = 0;
        while done < run.len {
            if fresh >= ROWS {
                scratch.push(&job.ops);
                fresh = 0;
            }
            let start = offsets.x + run.x + done as isize * last.x;
            // The last of several wide rows may be shorter.
            let first = (at + done) % last.size;
            let whole = match plan.shape {
                TileRow::SeveralRows => (plan.row.size / offsets.tile.0).saturating_sub(first),
                _ => usize::MAX,
            };
            let count = (run.len - done).min(ROWS - fresh).min(whole.max(1));
            let count = if whole == 0 {
                let left = plan.row.size % offsets.tile.0;
                let tile = (left, offsets.tile.1);
                rows(job, plan, start, tile, 1, scratch)
            } else {
                rows(job, plan, start, offsets.tile, count, scratch)
            };
            done += count;
            fresh += count;
        }
        at += run.len;
    });
    scratch.finish(&job.ops);
    if plan.shape == TileRow::SeveralRows {
        fold_rows(&mut scratch.sums, offsets.tile.1, |all, one| add(&job.ops, all, one));
        scratch.sums.truncate(offsets.tile.1);
    }
}

/// Combines some rows with the sums, and returns the number of rows.
fn rows<S: Copy + 'static, A: Accumulator>(
    job: &Columns<'_, S, A>,
    plan: &ColumnTiles<'_>,
    start: isize,
    tile: (usize, usize),
    most: usize,
    scratch: &mut Scratch<S, A>,
) -> usize {
    let (last, _) = steps(&plan.rows);
    let width = tile.0 * tile.1;
    let sums = &mut scratch.sums[..width];
    if plan.direct {
        // SAFETY: the traversal stays inside the tensor, whose elements are of this type.
        unsafe { (job.ops.accumulate)(job.input.at(start).cast(), last.x, most, sums) };
        return most;
    }
    let count = most.min(scratch.stage_len / width);
    let (len, step) = (tile.1, plan.inner.x);
    // Prefetch the next rows, if they aren't contiguous with these.
    let ahead = |rows: usize| rows as isize * last.x * job.input.size as isize;
    let stage = scratch.stage.as_mut_ptr();
    // SAFETY: the traversal stays inside the tensor; the stage has room for this many rows.
    unsafe {
        match plan.shape {
            TileRow::Piece => {
                let ahead = ahead(count);
                let block = Block { ahead, ..Block::along(count, last.x, len, step) };
                job.input.fill(start, block, stage);
            }
            TileRow::SeveralRows => {
                let block = Block::along(count * tile.0, plan.row.x, len, step);
                job.input.fill(start, block, stage);
            }
            TileRow::SeveralIndices => {
                let ahead = ahead(1);
                let block = Block { ahead, ..Block::along(tile.0, plan.around.x, len, step) };
                for row in 0..count {
                    let start = start + row as isize * last.x;
                    job.input.fill(start, block, stage.add(row * width));
                }
            }
        }
        (job.ops.accumulate)(stage, width as isize, count, sums);
    }
    count
}

fn put<S, A: Copy>(
    job: &Columns<'_, S, A>,
    plan: &ColumnTiles<'_>,
    offsets: TileOffsets,
    results: &mut [A],
) {
    let (rows, len) =
        if plan.shape == TileRow::SeveralRows { (1, offsets.tile.1) } else { offsets.tile };
    for (row, results) in results[..rows * len].chunks_exact_mut(len).enumerate() {
        let out = offsets.out + row as isize * plan.around.out;
        // SAFETY: the traversal of the result stays inside it, and each tile writes its own elements.
        unsafe { job.sink.put(results, out, plan.inner.out) };
    }
}
