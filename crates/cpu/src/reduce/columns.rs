//! Reducing along dimensions where elements that are neighbours in memory belong to different lanes:
//! rows are added up in a tile of columns that stays in the cache.
//!
//! Tiles, and the parts of their rows where there are few tiles, are shared out among threads. Both
//! depend on nothing but shape and layout, and the parts are combined pairwise in their order; so no
//! result depends on the number of threads. Within a part, every [`ROWS`] rows' sum goes into a
//! cascade, so that the error of sums stays small.

use std::ops::Range;

use keyfold_core::{Dims, Result};

use super::blocks::{Block, Input, Sink};
use super::cascade::fold_rows;
use super::geometry::{Dim, Geometry, count, runs, steps};
use super::lanes::FEW;
use super::ops::Ops;
use super::share::{Shared, for_parts};

/// Bytes of a tile that is combined with rows where they lie.
const DIRECT: usize = 8 << 10;
/// Bytes of a tile whose rows are converted first.
const STAGED: usize = 2 << 10;
/// Rows that are added up directly.
const ROWS: usize = 128;
/// Tasks that the work is cut into, where there are too few tiles.
const TASKS: usize = 64;
/// Elements of a part of a tile's rows, at least.
const PART: usize = 1 << 15;

/// A reduction with everything that it needs.
pub(crate) struct Columns<'a, S, A> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) input: Input<S>,
    pub(crate) ops: Ops<S, A>,
    pub(crate) sink: Sink<A>,
}

/// What a row of a tile is.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// A piece of the innermost dimension.
    Plain,
    /// Several rows of the innermost dimension, since it's short: they are combined at the end.
    Wide,
    /// Several places of the dimension around it, since it's short.
    Group,
}

struct Plan<'a> {
    shape: Shape,
    /// The innermost dimension that stays, and the one around it.
    inner: Dim,
    around: Dim,
    /// The dimensions around the tiles.
    outer: &'a [Dim],
    /// How many of `around` (or, of a wide row, of rows) and of `inner` make a tile.
    tile: (usize, usize),
    /// Tiles per place of `outer`.
    per_outer: usize,
    /// The rows, and the innermost of their dimensions as it was.
    rows: Dims<Dim>,
    row: Dim,
    /// Whether rows are read where they lie.
    direct: bool,
}

impl<'a> Plan<'a> {
    fn new<S: Copy + 'static, A: Number>(job: &'a Columns<'_, S, A>) -> Self {
        let kept = &*job.geometry.kept;
        let (inner, around) = steps(kept);
        let (row, _) = steps(&job.geometry.reduced);
        let dense = job.input.direct && (inner.x == 1 || inner.size == 1);
        let room = |bytes: usize| (bytes / size_of::<A>()).max(64);
        let mut rows = job.geometry.reduced.clone();
        let mut outer = &kept[..kept.len().saturating_sub(1)];
        let short = inner.size < room(STAGED) / 2;
        let (shape, direct, tile, per_outer);
        // Rows that fill vectors are added up as they are.
        let fills = dense && !outer.is_empty() && inner.size >= FEW && row.size >= FEW;
        if short && !fills && row.size * inner.size >= room(STAGED) {
            shape = Shape::Wide;
            direct = dense && row.x == inner.size as isize;
            let wide = (room(if direct { DIRECT / 2 } else { STAGED }) / inner.size).min(row.size);
            (tile, per_outer) = ((wide, inner.size), 1);
            if let Some(last) = rows.last_mut() {
                *last = Dim { size: row.size.div_ceil(wide), x: row.x * wide as isize, out: 0 };
            }
        } else if short && !fills && !outer.is_empty() {
            (shape, direct) = (Shape::Group, false);
            let places = (room(STAGED) / inner.size).min(around.size);
            (tile, per_outer) = ((places, inner.size), around.size.div_ceil(places));
            outer = &outer[..outer.len() - 1];
        } else {
            (shape, direct) = (Shape::Plain, dense);
            let parts = inner.size.div_ceil(room(if direct { DIRECT } else { STAGED }));
            // All of about one size, in whole cache lines.
            let width = inner.size.div_ceil(parts).next_multiple_of(64).min(inner.size);
            (tile, per_outer) = ((1, width), inner.size.div_ceil(width));
        }
        Plan { shape, inner, around, outer, tile, per_outer, rows, row, direct }
    }

    fn width(&self) -> usize {
        self.tile.0 * self.tile.1
    }

    fn tiles(&self) -> usize {
        count(self.outer) * self.per_outer
    }

    /// Where a tile begins in input and result, and its size.
    fn place(&self, tile: usize) -> Place {
        let (outer, at) = (tile / self.per_outer, tile % self.per_outer);
        let mut place = Place { x: 0, out: 0, tile: self.tile };
        runs(self.outer, outer..outer + 1, 1, |run| (place.x, place.out) = (run.x, run.out));
        let mut forward = |dim: &Dim, by: usize| {
            place.x += dim.x * by as isize;
            place.out += dim.out * by as isize;
            by
        };
        match self.shape {
            Shape::Wide => {}
            Shape::Group => {
                let start = forward(&self.around, at * self.tile.0);
                place.tile.0 = self.tile.0.min(self.around.size - start);
            }
            Shape::Plain => {
                let start = forward(&self.inner, at * self.tile.1);
                place.tile.1 = self.tile.1.min(self.inner.size - start);
            }
        }
        place
    }
}

#[derive(Clone, Copy)]
struct Place {
    x: isize,
    out: isize,
    tile: (usize, usize),
}

/// What a thread works with.
struct Scratch<S, A> {
    sums: Vec<A>,
    /// Room for rows that are copied together first.
    stage: Vec<S>,
    /// Elements that fit there.
    room: usize,
    /// Of each level, sums that wait for a partner of their size; see [`super::cascade`].
    waiting: Vec<A>,
    pushed: u64,
}

/// What elements are combined to.
pub(crate) trait Number: Copy + Send + Sync + 'static {}
impl<A: Copy + Send + Sync + 'static> Number for A {}

/// Reduces every lane; none is empty.
///
/// # Errors
/// Those of sharing out work.
pub(crate) fn reduce_columns<S, A>(job: &Columns<'_, S, A>) -> Result<()>
where
    S: Copy + 'static,
    A: Number,
{
    let plan = Plan::new(job);
    let (tiles, width, rows) = (plan.tiles(), plan.width(), count(&plan.rows));
    let elements = job.geometry.lanes() * job.geometry.len();
    let most = (rows * width / PART).max(1);
    let part = rows.div_ceil(TASKS.div_ceil(tiles).min(most)).next_multiple_of(4);
    let parts = rows.div_ceil(part);
    if parts == 1 {
        let grain = (PART / (width * rows)).max(1);
        return for_parts(tiles, grain, elements, |tasks| {
            let mut scratch = Scratch::new(&plan);
            for tile in tasks {
                let place = plan.place(tile);
                part_of_tile(job, &plan, place, 0..rows, &mut scratch);
                put(job, &plan, place, &mut scratch.sums);
            }
            Ok(())
        });
    }
    let kept = if plan.shape == Shape::Wide { plan.tile.1 } else { width };
    let mut partial = vec![job.ops.identity(); tiles * parts * kept];
    let shared = Shared::new(&mut partial);
    for_parts(tiles * parts, 1, elements, |tasks| {
        let mut scratch = Scratch::new(&plan);
        for task in tasks {
            let (tile, at) = (task / parts, task % parts);
            let range = at * part..rows.min((at + 1) * part);
            part_of_tile(job, &plan, plan.place(tile), range, &mut scratch);
            // SAFETY: each task has a place of its own.
            let results = unsafe { shared.part(task * kept..(task + 1) * kept) };
            results[..scratch.sums.len()].copy_from_slice(&scratch.sums);
        }
        Ok(())
    })?;
    for (tile, partial) in partial.chunks_exact_mut(parts * kept).enumerate() {
        fold_rows(partial, kept, |all, one| add(&job.ops, all, one));
        put(job, &plan, plan.place(tile), partial);
    }
    Ok(())
}

fn add<S, A: Copy>(ops: &Ops<S, A>, all: &mut [A], one: &[A]) {
    let all = &mut all[..one.len()];
    // SAFETY: one row, as long as `all`.
    unsafe { (ops.merge)(one.as_ptr(), 0, 1, all) }
}

impl<S: Copy + 'static, A: Number> Scratch<S, A> {
    fn new(plan: &Plan<'_>) -> Self {
        let room = if plan.direct { 0 } else { 4 * plan.width() };
        Scratch {
            sums: Vec::with_capacity(plan.width()),
            stage: Vec::with_capacity(room),
            room,
            waiting: Vec::new(),
            pushed: 0,
        }
    }

    /// Puts the sums where one of their size waits, or adds the two and goes on to the next level.
    fn push(&mut self, ops: &Ops<S, A>) {
        let width = self.sums.len();
        let level = self.pushed.trailing_ones() as usize;
        for waiting in self.waiting.chunks_exact(width).take(level) {
            add(ops, &mut self.sums, waiting);
        }
        if self.waiting.len() == level * width {
            self.waiting.extend_from_slice(&self.sums);
        } else {
            self.waiting[level * width..(level + 1) * width].copy_from_slice(&self.sums);
        }
        self.pushed += 1;
        self.sums.fill(ops.identity());
    }

    fn finish(&mut self, ops: &Ops<S, A>) {
        let width = self.sums.len();
        for (level, waiting) in self.waiting.chunks_exact(width).enumerate() {
            if self.pushed >> level & 1 == 1 {
                add(ops, &mut self.sums, waiting);
            }
        }
    }
}

/// Leaves the combined rows of a tile in `scratch.sums`.
fn part_of_tile<S: Copy + 'static, A: Number>(
    job: &Columns<'_, S, A>,
    plan: &Plan<'_>,
    place: Place,
    range: Range<usize>,
    scratch: &mut Scratch<S, A>,
) {
    let width = place.tile.0 * place.tile.1;
    scratch.sums.clear();
    scratch.sums.resize(width, job.ops.identity());
    scratch.waiting.clear();
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
            let start = place.x + run.x + done as isize * last.x;
            // The last of wide rows may be shorter.
            let first = (at + done) % last.size;
            let whole = match plan.shape {
                Shape::Wide => (plan.row.size / place.tile.0).saturating_sub(first),
                _ => usize::MAX,
            };
            let count = (run.len - done).min(ROWS - fresh).min(whole.max(1));
            let count = if whole == 0 {
                let left = plan.row.size % place.tile.0;
                let tile = (left, place.tile.1);
                rows(job, plan, start, tile, 1, scratch)
            } else {
                rows(job, plan, start, place.tile, count, scratch)
            };
            done += count;
            fresh += count;
        }
        at += run.len;
    });
    scratch.finish(&job.ops);
    if plan.shape == Shape::Wide {
        fold_rows(&mut scratch.sums, place.tile.1, |all, one| add(&job.ops, all, one));
        scratch.sums.truncate(place.tile.1);
    }
}

/// Combines some rows with the sums; how many it were.
fn rows<S: Copy + 'static, A: Number>(
    job: &Columns<'_, S, A>,
    plan: &Plan<'_>,
    start: isize,
    tile: (usize, usize),
    most: usize,
    scratch: &mut Scratch<S, A>,
) -> usize {
    let (last, _) = steps(&plan.rows);
    let width = tile.0 * tile.1;
    let sums = &mut scratch.sums[..width];
    if plan.direct {
        // SAFETY: the walk stays inside the tensor, whose elements are of this type.
        unsafe { (job.ops.accumulate)(job.input.at(start).cast(), last.x, most, sums) };
        return most;
    }
    let count = most.min(scratch.room / width);
    let (len, step) = (tile.1, plan.inner.x);
    // The next rows, where they are far from these.
    let ahead = |rows: usize| rows as isize * last.x * job.input.size as isize;
    let stage = scratch.stage.as_mut_ptr();
    // SAFETY: the walk stays inside the tensor; so many rows fit.
    unsafe {
        match plan.shape {
            Shape::Plain => {
                let ahead = ahead(count);
                let block = Block { ahead, ..Block::along(count, last.x, len, step) };
                job.input.fill(start, block, stage);
            }
            Shape::Wide => {
                let block = Block::along(count * tile.0, plan.row.x, len, step);
                job.input.fill(start, block, stage);
            }
            Shape::Group => {
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

fn put<S, A: Copy>(job: &Columns<'_, S, A>, plan: &Plan<'_>, place: Place, results: &mut [A]) {
    let (rows, len) = if plan.shape == Shape::Wide { (1, place.tile.1) } else { place.tile };
    for (row, results) in results[..rows * len].chunks_exact_mut(len).enumerate() {
        let out = place.out + row as isize * plan.around.out;
        // SAFETY: the walk over the result stays inside it, and each tile has places of its own.
        unsafe { job.sink.put(results, out, plan.inner.out) };
    }
}
