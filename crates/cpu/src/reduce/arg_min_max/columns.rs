//! Argument reductions of columns: searched row by row, in tiles of columns that stay in the cache.

use std::mem::MaybeUninit;
use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::isa::{self, Isa, Work};

use super::{Best, Search, is_better};
use crate::reduce::blocks::{Block, Input, Sink};
use crate::reduce::convert::To;
use crate::reduce::geometry::{Geometry, count, runs, steps};
use crate::reduce::monoid::Ordered;
use crate::reduce::parallel::{DisjointSlice, for_parts};
use crate::reduce::rows::{BLOCK, PART};

/// Columns of a tile.
const COLUMNS: usize = 512;
/// The fewest rows of columns that one thread searches.
const ROWS: usize = 256;
/// The number of tasks that few columns are divided into.
const TASKS: usize = 64;

/// A search of columns.
pub(super) struct Columns<'a, S, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) input: Input<S>,
    pub(super) search: &'a Search<S, T>,
    pub(super) sink: Sink<Best<T>>,
}

/// Searches every lane, in tiles of columns and parts of their rows; no lane is empty.
///
/// # Errors
/// Those of [`for_parts`](crate::reduce::parallel::for_parts).
pub(super) fn search_columns<S, T>(job: &Columns<'_, S, T>) -> Result<()>
where
    S: Copy + 'static,
    T: Copy + Send + Sync + 'static,
{
    let kept = &*job.geometry.kept;
    let (inner, _) = steps(kept);
    let outer = &kept[..kept.len().saturating_sub(1)];
    let (len, width) = (job.geometry.len(), inner.size.min(COLUMNS));
    let per_outer = inner.size.div_ceil(width);
    let tiles = count(outer) * per_outer;
    let elements = job.geometry.lanes() * len;
    // The row numbers of a part must fit in 32 bits.
    let most = (len / ROWS).max(1);
    let part = len.div_ceil(TASKS.div_ceil(tiles).min(most)).min(1 << 30);
    let parts = len.div_ceil(part);
    let index = |tile: usize| {
        let (mut x, mut out) = (0, 0);
        let at = tile / per_outer;
        runs(outer, at..at + 1, 1, |run| (x, out) = (run.x, run.out));
        let start = tile % per_outer * width;
        let width = width.min(inner.size - start);
        (x + start as isize * inner.x, out + start as isize * inner.out, width)
    };
    let none = job.search.loops.empty;
    let mut partial = vec![none; if parts > 1 { tiles * parts * width } else { 0 }];
    let shared = DisjointSlice::new(&mut partial);
    let grain = (PART / (part * width)).max(1);
    for_parts(tiles * parts, grain, elements, |tasks| {
        let mut scratch = Scratch::new(job, width);
        for task in tasks {
            let (tile, at) = (task / parts, task % parts);
            let (x, out, columns) = index(tile);
            part_of_columns(job, x, columns, at * part..len.min((at + 1) * part), &mut scratch);
            // SAFETY: each task writes to its own elements, of the result or of the partial results.
            unsafe {
                if parts == 1 {
                    job.sink.put(&mut scratch.found[..columns], out, inner.out);
                } else {
                    let found = shared.part(task * width..task * width + columns);
                    found.copy_from_slice(&scratch.found[..columns]);
                }
            }
        }
        Ok(())
    })?;
    for (tile, partial) in partial.chunks_exact(parts * width).enumerate() {
        let (_, out, columns) = index(tile);
        for c in 0..columns {
            let (rows, mut best) = (partial[c..].iter().step_by(width), none);
            rows.for_each(|part| (job.search.loops.join)(&mut best, part));
            // SAFETY: the traversal of the result stays inside it.
            unsafe { job.sink.put(&mut [best], out + c as isize * inner.out, 1) };
        }
    }
    Ok(())
}

struct Scratch<S, T> {
    best: Vec<T>,
    rows: Vec<u32>,
    found: Vec<Best<T>>,
    /// Staging memory for rows that are gathered first.
    stage: Vec<MaybeUninit<S>>,
}

impl<S: Copy, T: Copy> Scratch<S, T> {
    fn new(job: &Columns<'_, S, T>, width: usize) -> Self {
        Scratch {
            best: vec![job.search.loops.empty.number; width],
            rows: vec![0; width],
            found: vec![job.search.loops.empty; width],
            stage: vec![MaybeUninit::uninit(); BLOCK.max(width)],
        }
    }
}

/// Searches a part of a tile's columns; the best number of each column and its row are left in
/// `scratch`.
fn part_of_columns<S: Copy + 'static, T: Copy>(
    job: &Columns<'_, S, T>,
    x: isize,
    columns: usize,
    range: Range<usize>,
    scratch: &mut Scratch<S, T>,
) {
    let (inner, _) = steps(&job.geometry.kept);
    let (row, _) = steps(&job.geometry.reduced);
    let direct = job.input.direct() && (inner.x == 1 || inner.size == 1);
    let Scratch { best, rows, found, stage } = scratch;
    let (best, indices) = (&mut best[..columns], &mut rows[..columns]);
    let start = range.start as i64;
    // The first row initialises the best numbers, so that indices are right where no number beats the
    // identity.
    let mut next = 0_u32;
    indices.fill(0);
    let mut first = true;
    runs(&job.geometry.reduced, range, 1, |run| {
        let mut done = 0;
        while done < run.len {
            let at = x + run.x + done as isize * row.x;
            let mut count = run.len - done;
            let (from, step): (*const S, isize) = if direct {
                (job.input.at(at).cast(), row.x)
            } else {
                count = count.min((stage.len() / columns).max(1));
                let block = Block::along(count, row.x, columns, inner.x);
                // SAFETY: the traversal stays inside the tensor, and the block's elements fit in the
                // stage.
                unsafe { job.input.fill(at, block, stage.as_mut_ptr().cast()) };
                (stage.as_ptr().cast(), columns as isize)
            };
            // SAFETY: as above; elements that are read directly are of this type.
            unsafe {
                if first {
                    (job.search.convert_row)(from, best);
                    first = false;
                }
                (job.search.rows)(from, step, count, best, indices, next);
            }
            next += count as u32;
            done += count;
        }
    });
    for ((found, row), number) in found.iter_mut().zip(&*indices).zip(&*best) {
        *found = Best { number: *number, index: start + i64::from(*row) };
    }
}

struct Rows<'a, S, T, const MIN: bool> {
    from: *const S,
    step: isize,
    rows: usize,
    best: &'a mut [T],
    indices: &'a mut [u32],
    first: u32,
}

impl<S: To<T> + Copy + 'static, T: Ordered, const MIN: bool> Work for Rows<'_, S, T, MIN> {
    type Output = ();
    const AVX512: bool = false;
    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in 0..self.rows {
            let from = self.from.wrapping_offset(row as isize * self.step);
            // SAFETY: the caller of `rows` promises that each row has that many elements.
            let x = unsafe { std::slice::from_raw_parts(from, self.best.len()) };
            compare_row::<S, T, MIN>(self.best, self.indices, x, self.first + row as u32);
        }
    }
}

#[inline(always)]
fn compare_row<S: To<T> + Copy, T: Ordered, const MIN: bool>(
    best: &mut [T],
    indices: &mut [u32],
    x: &[S],
    row: u32,
) {
    for ((best, index), x) in best.iter_mut().zip(indices).zip(x) {
        let x = x.convert();
        let better = is_better::<T, MIN>(*best, x);
        *best = if better { x } else { *best };
        *index = if better { row } else { *index };
    }
}

/// # Safety
/// Each row has at least as many readable elements as `best`.
pub(super) unsafe fn rows<S: To<T> + Copy + 'static, T: Ordered, const MIN: bool>(
    from: *const S,
    step: isize,
    rows: usize,
    best: &mut [T],
    indices: &mut [u32],
    first: u32,
) {
    isa::dispatch(Rows::<S, T, MIN> { from, step, rows, best, indices, first });
}

/// # Safety
/// The row has at least as many readable elements as there are numbers.
pub(super) unsafe fn convert_row<S: To<T> + Copy, T>(from: *const S, to: &mut [T]) {
    for (i, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *to = unsafe { *from.add(i) }.convert();
    }
}
