//! Scans along a dimension other than the innermost in memory: a row of lanes at a time, whose results so far
//! are the accumulators.

use std::mem::MaybeUninit;

use keyfold_core::Result;
use keyfold_kit::isa::{self, Isa, Work};

use super::combine::Combine;
use super::{Job, Stage, TASK, new_stage};
use crate::reduce::blocks::Block;
use crate::reduce::geometry::{runs, steps};
use crate::reduce::parallel::for_parts;

/// The most lanes side by side, whose accumulators stay in the cache.
const TILE: usize = 512;

/// Elements that are staged at a time.
const STAGED: usize = 4096;

/// Lanes per task, at least: neighbours share cache lines.
const MIN_LANES: usize = 64;

pub(super) fn scan_columns<M: Combine>(job: &Job<'_, M::Number>) -> Result<()> {
    let (lanes, len) = (job.geometry.lanes(), job.geometry.len());
    let (inner, _) = steps(&job.geometry.kept);
    for_parts(lanes, (TASK / len).max(MIN_LANES), lanes * len, |part| {
        let mut tile = Tile::<M>::new(job);
        runs(&job.geometry.kept, part, 1, |run| {
            for start in (0..run.len).step_by(TILE) {
                let at = start as isize;
                let (x, out) = (run.x + at * inner.x, run.out + at * inner.out);
                tile.scan(x, out, TILE.min(run.len - start));
            }
        });
        Ok(())
    })
}

/// Lanes side by side.
struct Tile<'a, M: Combine> {
    job: &'a Job<'a, M::Number>,
    /// Whether elements are read in place, and results written in place.
    reads: bool,
    writes: bool,
    from: Stage<M::Number>,
    to: Stage<M::Number>,
    all: Vec<M::Number>,
}

impl<'a, M: Combine> Tile<'a, M> {
    fn new(job: &'a Job<'a, M::Number>) -> Self {
        let (inner, _) = steps(&job.geometry.kept);
        let reads = job.input.direct() && inner.x == 1;
        let writes = job.to.direct && inner.out == 1;
        let from = new_stage(if reads { 0 } else { STAGED });
        let to = new_stage(if writes { 0 } else { STAGED });
        Tile { job, reads, writes, from, to, all: Vec::with_capacity(TILE) }
    }

    /// Scans `count` lanes, of which the first begins at these offsets.
    fn scan(&mut self, x: isize, out: isize, count: usize) {
        let Job { geometry, input, to: results } = self.job;
        let (inner, _) = steps(&geometry.kept);
        let (lane, _) = steps(&geometry.reduced);
        let len = geometry.len();
        let at_once = if self.reads && self.writes { len } else { (STAGED / count).max(1) };
        self.all.clear();
        for start in (0..len).step_by(at_once) {
            let rows = at_once.min(len - start);
            let x = x + start as isize * lane.x;
            let out = out + start as isize * lane.out;
            // SAFETY: both traversals stay inside their tensors, no other thread accesses these lanes of the
            // result, and the stages have room for the rows.
            unsafe {
                let (mut from, mut from_step) = (input.at(x).cast(), lane.x);
                if !self.reads {
                    let block = Block::along(rows, lane.x, count, inner.x);
                    input.fill(x, block, self.from.as_mut_ptr().cast());
                    (from, from_step) = (self.from.as_ptr().cast(), count as isize);
                }
                let (mut to, mut to_step) = (results.sink.at(out).cast(), lane.out);
                if !self.writes {
                    (to, to_step) = (self.to.as_mut_ptr().cast(), count as isize);
                }
                let all = &mut self.all;
                isa::dispatch(Rows::<M> { from, from_step, to, to_step, rows, count, all });
                for row in (0..rows).filter(|_| !self.writes) {
                    let found: *mut M::Number = self.to.as_mut_ptr().add(row * count).cast();
                    let found = std::slice::from_raw_parts_mut(found, count);
                    results.sink.put(found, out + row as isize * lane.out, inner.out);
                }
            }
        }
    }
}

/// Rows of `count` numbers, a step apart, and those of their results.
struct Rows<'a, M: Combine> {
    from: *const M::Number,
    from_step: isize,
    to: *mut M::Number,
    to_step: isize,
    rows: usize,
    count: usize,
    /// The results of the row before; empty before the first row.
    all: &'a mut Vec<M::Number>,
}

impl<M: Combine> Work for Rows<'_, M> {
    type Output = ();
    const AVX512: bool = false;

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Rows { mut from, from_step, mut to, to_step, rows, count, all } = self;
        for _ in 0..rows {
            // SAFETY: whoever makes the rows promises that they are there, and that no results overlap
            // elements.
            let (row, found) = unsafe {
                (
                    std::slice::from_raw_parts(from, count),
                    std::slice::from_raw_parts_mut(to.cast::<MaybeUninit<M::Number>>(), count),
                )
            };
            if all.is_empty() {
                all.extend_from_slice(row);
                for (found, x) in found.iter_mut().zip(row) {
                    found.write(*x);
                }
            } else {
                for ((all, x), found) in all.iter_mut().zip(row).zip(found) {
                    *all = M::combine(*all, *x);
                    found.write(*all);
                }
            }
            (from, to) = (from.wrapping_offset(from_step), to.wrapping_offset(to_step));
        }
    }
}
