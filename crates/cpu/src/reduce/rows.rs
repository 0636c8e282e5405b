//! Reducing along dimensions whose elements are the nearest in memory: lane by lane.
//!
//! The lanes are shared out among threads; a long one is cut into parts of [`PART`] elements, which
//! depend on nothing but its length, and the parts' results are joined pairwise in their order. So
//! no result depends on the number of threads.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_core::Result;

use super::blocks::{Block, Input, Sink};
use super::cascade::Cascade;
use super::geometry::{Geometry, runs, steps};
pub(crate) use super::lanes::BLOCK;
use super::lanes::{BLOCKS, FEW};
use super::ops::Loops;
use super::share::{Shared, for_parts};

/// A reduction of lanes with everything that it needs.
pub(crate) struct Rows<'a, S, R> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) input: Input<S>,
    pub(crate) loops: &'a Loops<S, R>,
    pub(crate) sink: Sink<R>,
}

/// The longest part of a lane that one thread reduces.
pub(crate) const PART: usize = BLOCKS * BLOCK;

/// Results that are kept before they are written.
const RESULTS: usize = 128;

impl<S: Copy + 'static, R: Copy + Send + Sync> Rows<'_, S, R> {
    /// Reduces every lane; none is empty.
    ///
    /// # Errors
    /// Those of sharing out work.
    pub(crate) fn reduce(&self) -> Result<()> {
        let (lanes, len) = (self.geometry.lanes(), self.geometry.len());
        if len > PART {
            return self.in_parts(lanes, len);
        }
        for_parts(lanes, (PART / len).max(1), lanes * len, |some| {
            self.whole_lanes(some, len);
            Ok(())
        })
    }

    fn in_parts(&self, lanes: usize, len: usize) -> Result<()> {
        let parts = len.div_ceil(PART);
        let mut partial = vec![self.loops.none; lanes * parts];
        let shared = Shared::new(&mut partial);
        // The first part of a single lane that nothing behind it can change.
        let last = AtomicUsize::new(usize::MAX);
        for_parts(lanes * parts, 1, lanes * len, |tasks| {
            let mut stage = room();
            for task in tasks {
                if task > last.load(Ordering::Relaxed) {
                    break;
                }
                let (lane, start) = (task / parts, task % parts * PART);
                let mut x = 0;
                runs(&self.geometry.kept, lane..lane + 1, 1, |run| x = run.x);
                let result = self.part_of_lane(x, start..len.min(start + PART), &mut stage);
                if lanes == 1 && (self.loops.is_final)(result) {
                    last.fetch_min(task, Ordering::Relaxed);
                }
                // SAFETY: each task has a place of its own.
                unsafe { shared.write(task, (self.loops.forward)(result, start)) };
            }
            Ok(())
        })?;
        let mut partial = partial.chunks_exact(parts);
        runs(&self.geometry.kept, 0..lanes, 1, |run| {
            let step = steps(&self.geometry.kept).0.out;
            for (i, partial) in (0..run.len as isize).zip(&mut partial) {
                let mut all = Cascade::new(self.loops.none, self.loops.join);
                partial.iter().for_each(|p| all.push(*p));
                let result = all.finish().unwrap_or(self.loops.none);
                // SAFETY: the result's own walk stays inside it.
                unsafe { self.sink.put(&mut [result], run.out + i * step, 1) };
            }
        });
        Ok(())
    }

    /// Lanes one after the other.
    fn whole_lanes(&self, some: Range<usize>, len: usize) {
        let (kept, _) = steps(&self.geometry.kept);
        let (inner, _) = steps(&self.geometry.reduced);
        let simple = self.geometry.reduced.len() == 1;
        let in_place = simple && self.input.direct && inner.x == 1;
        let mut results = [self.loops.none; RESULTS];
        let mut stage = room();
        runs(&self.geometry.kept, some, 1, |run| {
            let mut done = 0;
            while done < run.len {
                let x = run.x + done as isize * kept.x;
                let mut count = RESULTS.min(run.len - done);
                if in_place {
                    let from = self.input.at(x).cast();
                    // SAFETY: the walk stays inside the tensor, whose elements are of this type.
                    unsafe { (self.loops.lanes)(from, kept.x, len, &mut results[..count]) };
                } else if simple && len <= BLOCK / 2 {
                    count = count.min(BLOCK / len);
                    let block = Block::along(count, kept.x, len, inner.x);
                    // SAFETY: the walk stays inside the tensor, and the block's elements fit.
                    unsafe { self.staged(x, block, len, &mut results[..count], &mut stage) };
                } else {
                    count = 1;
                    results[0] = self.part_of_lane(x, 0..len, &mut stage);
                }
                let out = run.out + done as isize * kept.out;
                // SAFETY: the walk over the result stays inside it, and each lane has its own place.
                unsafe { self.sink.put(&mut results[..count], out, kept.out) };
                done += count;
            }
        });
    }

    /// A range of the elements of the lane that begins at `x`, joined.
    fn part_of_lane(&self, x: isize, range: Range<usize>, stage: &mut Stage<S>) -> R {
        let (inner, around) = steps(&self.geometry.reduced);
        let direct = self.input.direct && inner.x == 1;
        let Loops { none, join, forward, is_final, decides, .. } = *self.loops;
        let mut all = Cascade::new(none, join);
        let (mut place, mut decided) = (0, None);
        let in_rows = direct && inner.size >= GATHER;
        let at_once = if in_rows { FEW * inner.size.min(BLOCK) } else { BLOCK };
        runs(&self.geometry.reduced, range, at_once, |run| {
            if in_rows && run.rows > 1 && run.len <= BLOCK && decided.is_none() {
                let mut found = [none; FEW];
                let found = &mut found[..run.rows];
                let from = self.input.at(x + run.x).cast();
                // SAFETY: the walk stays inside the tensor, whose elements are of this type.
                unsafe { (self.loops.lanes)(from, around.x, run.len, found) };
                for found in found {
                    let found = forward(*found, place);
                    all.push(found);
                    place += run.len;
                    decided = decided.or(is_final(found).then_some(found));
                }
                return;
            }
            // Short rows are gathered into blocks; long ones are cut into blocks.
            let gather = run.rows > 1 && !in_rows;
            let (rows, len) = if gather { (1, run.rows * run.len) } else { (run.rows, run.len) };
            let most = if direct { PART } else { BLOCK };
            for row in 0..rows as isize {
                let mut done = 0;
                while done < len && decided.is_none() {
                    // Often the first few decide.
                    let most = if decides && place + done == 0 { FIRST } else { most };
                    let count = if gather { len } else { most.min(len - done) };
                    let at = x + run.x + row * around.x + done as isize * inner.x;
                    let mut found = [none];
                    // SAFETY: the walk stays inside the tensor, and what is staged fits: several rows
                    // are up to a block.
                    unsafe {
                        if direct && !gather {
                            (self.loops.lanes)(self.input.at(at).cast(), 0, count, &mut found);
                        } else {
                            let rows = if gather { run.rows } else { 1 };
                            let len = count / rows;
                            let block = Block::along(rows, around.x, len, inner.x);
                            self.staged(at, block, count, &mut found, stage);
                        }
                    }
                    let found = forward(found[0], place + done);
                    all.push(found);
                    done += count;
                    decided = is_final(found).then_some(found);
                }
                place += len;
            }
        });
        decided.or(all.finish()).unwrap_or(none)
    }

    /// Lanes of so many elements each, copied together first.
    ///
    /// # Safety
    /// The block is inside the tensor, has at most [`BLOCK`] elements, and all the lanes'.
    unsafe fn staged(
        &self,
        x: isize,
        block: Block,
        len: usize,
        results: &mut [R],
        stage: &mut Stage<S>,
    ) {
        debug_assert!(block.rows * block.len <= BLOCK && len * results.len() <= BLOCK);
        // SAFETY: the caller's promise.
        unsafe {
            self.input.fill(x, block, stage.as_mut_ptr().cast());
            (self.loops.lanes)(stage.as_ptr().cast(), len as isize, len, results);
        }
    }
}

/// Room for a block of elements.
type Stage<S> = [MaybeUninit<S>; BLOCK];

fn room<S: Copy>() -> Stage<S> {
    [MaybeUninit::uninit(); BLOCK]
}

/// Elements that are looked at first where they can decide.
const FIRST: usize = 64;

/// Rows shorter than this are worth copying together first.
const GATHER: usize = 128;
